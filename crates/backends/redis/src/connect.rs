//! How does a connection come to be?
//!
//! Open a stream, log in, and behind sentinels first ask them who the master is. One bound covers all of it. What a
//! stream is, is in [`stream`](crate::stream); many calls share it by the driver's own means.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "client")]
use redis::RedisFuture;
#[cfg(feature = "client")]
use redis::aio::ConnectionLike;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use syncguard_core::ErrorCode;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::builder::{Address, Login};
use crate::error::ConnectError;
use crate::stream::{LastHeard, Stream};

/// So many requests may wait for their turn to be written before callers wait for that, too.
const ROOM: usize = 1_024;

/// Everything needed to connect, again and again.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) target: Target,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) require_tls: bool,
    pub(crate) timeout: Duration,
}

/// Where to connect to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Address(Address),
    /// Whatever the sentinels call the master at that moment.
    Master {
        sentinels: Vec<Address>,
        name: String,
    },
}

/// An established connection that many tasks share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: MultiplexedConnection,
    heard: Arc<LastHeard>,
    task: Arc<Task>,
}

/// The task that reads and writes. Ends with the last clone, even if a reply is still owed.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    /// Sends one command and awaits its reply, an error reply among them.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the command on its way; its reply is thrown away.
    pub(crate) async fn one(&self, command: &Cmd) -> RedisResult<Value> {
        self.shared.clone().send_packed_command(command).await
    }

    /// Sends several commands and awaits all replies; an error reply stays in its place.
    ///
    /// # Cancel safety
    /// As [`one`](Self::one).
    pub(crate) async fn several(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        self.shared.clone().send_packed_commands(commands, 0, commands.len()).await
    }

    /// Whether the connection has ended: nothing would leave on it.
    pub(crate) fn is_closed(&self) -> bool {
        self.task.0.is_finished()
    }

    /// Whether the server has said anything at all since then.
    pub(crate) fn has_heard_since(&self, moment: Instant) -> bool {
        self.heard.is_since(moment)
    }

    /// Ends the connection for all who share it.
    pub(crate) fn close(&self) {
        self.task.0.abort();
    }

    async fn ask<T: FromRedisValue>(&self, question: &Cmd) -> RedisResult<T> {
        Ok(T::from_redis_value(self.one(question).await?.extract_error()?)?)
    }
}

/// For code that brings its own commands.
#[cfg(feature = "client")]
impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.shared.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.shared.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.shared.get_db()
    }
}

impl Connector {
    /// The same way in, to another server.
    pub(crate) fn to(&self, address: Address) -> Self {
        Self { target: Target::Address(address), ..self.clone() }
    }

    /// A connection for commands.
    pub(crate) async fn connect(&self) -> Result<Connection, ConnectError> {
        self.bounded(async {
            let (address, stream) = self.open().await?;
            let connection = match greet(&address, stream, &self.login).await {
                Err(refused) if self.has_needless_password(&address, &refused).await => {
                    return Err(ConnectError::needless_password(&address));
                }
                greeted => greeted?,
            };
            if matches!(self.target, Target::Master { .. }) {
                check_role(&address, &connection).await?;
            }
            Ok(connection)
        })
        .await
    }

    /// Whether the server refused a password that it does not ask for. Its word for that means other things as well, so
    /// it is tried: without the password it answers.
    async fn has_needless_password(&self, address: &Address, refused: &ConnectError) -> bool {
        if !refused.is_about_login() || self.login.user.is_some() || self.login.password.is_none() {
            return false;
        }
        let Ok(stream) = self.stream(address).await else { return false };
        let Ok(connection) = greet(address, stream, &Login::default()).await else { return false };
        let mut ping = Cmd::new();
        ping.arg("PING");
        matches!(connection.ask(&ping).await, Ok(Value::SimpleString(_) | Value::Okay))
    }

    /// A connection for messages.
    pub(crate) async fn subscribe(&self) -> Result<PubSub, ConnectError> {
        self.bounded(async {
            let (address, stream) = self.open().await?;
            let (heard, info) = (stream.heard.clone(), connection_info(&self.login));
            let greeted = PubSub::new(&info, stream).await;
            let greeted = greeted.map_err(|error| not_greeted(&address, &heard, &error))?;
            heard.greeted();
            Ok(greeted)
        })
        .await
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, ConnectError>>) -> Result<T, ConnectError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or_else(|_| Err(ConnectError::timed_out(&self.name())))
    }

    async fn open(&self) -> Result<(Address, Stream), ConnectError> {
        let address = match &self.target {
            Target::Address(address) => address.clone(),
            Target::Master { sentinels, name } => self.ask_sentinels(sentinels, name).await?,
        };
        let stream = self.stream(&address).await?;
        Ok((address, stream))
    }

    /// Every address comes through here: sentinels and cluster nodes announce others than the user wrote down.
    async fn stream(&self, address: &Address) -> Result<Stream, ConnectError> {
        self.check_protection(address)?;
        let opened = Stream::open(address, self.tls.as_ref(), self.timeout * 3 / 4).await;
        opened.map_err(|error| ConnectError::from_io(address, &error))
    }

    /// Refuses an address that would be spoken to in the clear although TLS is required.
    pub(crate) fn check_protection(&self, address: &Address) -> Result<(), ConnectError> {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if self.tls.is_some() || address.is_local() {
            return Ok(());
        }
        if self.require_tls {
            return Err(ConnectError::unencrypted(address));
        }
        if self.login.password.is_some() && !WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!(target: "syncguard", "the redis password travels unencrypted to another host; use rediss://");
        }
        Ok(())
    }

    /// The first sentinel that knows the master decides; they agree among themselves.
    async fn ask_sentinels(&self, sentinels: &[Address], name: &str) -> Result<Address, ConnectError> {
        // One sentinel that hangs must not use up the time of the others.
        let share = self.timeout / u32::try_from(sentinels.len() + 1).unwrap_or(u32::MAX);
        let mut last = None;
        for sentinel in sentinels {
            let asked = tokio::time::timeout(share, self.ask_sentinel(sentinel, name)).await;
            match asked.unwrap_or_else(|_| Err(ConnectError::timed_out(sentinel))) {
                Ok(Some(master)) => return Ok(master),
                Ok(None) => last = last.or(Some(None)),
                Err(error) => last = Some(Some(error)),
            }
        }
        Err(last.flatten().unwrap_or_else(|| {
            ConnectError::new(
                ErrorCode::InvalidArgument,
                "no sentinel knows this master",
                "check the master's name in the url",
            )
        }))
    }

    async fn ask_sentinel(&self, sentinel: &Address, name: &str) -> Result<Option<Address>, ConnectError> {
        let stream = self.stream(sentinel).await?;
        let connection = greet(sentinel, stream, &self.sentinel_login).await?;
        let mut ask = Cmd::new();
        ask.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer: RedisResult<Option<(String, u16)>> = connection.ask(&ask).await;
        let answer = answer.map_err(|error| ConnectError::from_greeting(sentinel, &error))?;
        Ok(answer.map(|(host, port)| Address::Tcp { host, port }))
    }

    /// What to call the target in a message.
    pub(crate) fn name(&self) -> String {
        match &self.target {
            Target::Address(address) => address.to_string(),
            Target::Master { sentinels, .. } => sentinels.iter().map(Address::to_string).collect::<Vec<_>>().join(","),
        }
    }
}

async fn greet(address: &Address, stream: Stream, login: &Login) -> Result<Connection, ConnectError> {
    let heard = stream.heard.clone();
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(ROOM);
    let greeted = MultiplexedConnection::new_with_config(&connection_info(login), stream, config).await;
    let (shared, driver) = greeted.map_err(|error| not_greeted(address, &heard, &error))?;
    heard.greeted();
    let task = Arc::new(Task(tokio::spawn(driver).abort_handle()));
    Ok(Connection { shared, heard, task })
}

fn not_greeted(address: &Address, heard: &LastHeard, error: &RedisError) -> ConnectError {
    if heard.is_too_much() { ConnectError::no_redis(address) } else { ConnectError::from_greeting(address, error) }
}

fn connection_info(login: &Login) -> RedisConnectionInfo {
    let mut info =
        RedisConnectionInfo::default().set_db(login.database).set_lib_name("syncguard", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &login.password {
        info = info.set_password(password);
    }
    info
}

/// During a failover a sentinel may still name the old master, or the new one before it knows that it is.
async fn check_role(address: &Address, connection: &Connection) -> Result<(), ConnectError> {
    let mut role = Cmd::new();
    role.arg("ROLE");
    match connection.ask(&role).await {
        Ok(Value::Array(parts)) => match parts.first() {
            Some(Value::BulkString(word)) if word.as_slice() == b"master" => Ok(()),
            _ => Err(ConnectError::new(
                ErrorCode::ServiceUnavailable,
                format!("redis at {address} is not the master yet"),
                "a failover is under way; it ends by itself",
            )),
        },
        // A user without the right to ask finds out by READONLY instead.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        Ok(_) => Ok(()),
        Err(error) => Err(ConnectError::from_greeting(address, &error)),
    }
}
