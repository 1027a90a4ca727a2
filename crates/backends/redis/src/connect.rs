//! How does a connection come to be?
//!
//! Open a stream, log in, and behind sentinels first ask them who the master is. One bound covers all of it. The stream
//! (TCP, TLS over TCP, or a Unix socket) is opened here and not by the driver: so failures keep their kind, and the
//! reader counts what it hears.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, Value};
use rustls::pki_types::ServerName;
use socket2::TcpKeepalive;
use syncguard_core::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::builder::{Address, Login};
use crate::error::ConnectError;

/// Everything needed to connect, again and again.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) target: Target,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) tls: Option<TlsConnector>,
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
    pub(crate) multiplexed: MultiplexedConnection,
    heard: Arc<LastHeard>,
    closed: Arc<AtomicBool>,
    driver: Arc<Driver>,
}

/// The task that reads and writes. Ends with the last clone, even if a reply is still owed.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sets its flag also when the task is dropped with its runtime.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Connection {
    /// Whether the connection has ended: nothing would leave on it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether the server has said anything at all since then.
    pub(crate) fn has_heard_since(&self, moment: Instant) -> bool {
        self.heard.is_since(moment)
    }

    /// Ends the connection for all who share it.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.driver.0.abort();
    }
}

/// For code that brings its own commands.
#[cfg(feature = "client")]
impl redis::aio::ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        self.multiplexed.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        self.multiplexed.req_packed_commands(commands, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.multiplexed.get_db()
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
        let opened = Stream::open(address, self.tls.as_ref(), self.timeout * 3 / 4).await;
        let Ok(stream) = opened else { return false };
        let Ok(connection) = greet(address, stream, &Login::default()).await else { return false };
        let mut ping = Cmd::new();
        ping.arg("PING");
        let answer = connection.multiplexed.clone().req_packed_command(&ping).await;
        matches!(answer, Ok(Value::SimpleString(_) | Value::Okay))
    }

    /// A connection for messages.
    pub(crate) async fn subscribe(&self) -> Result<PubSub, ConnectError> {
        self.bounded(async {
            let (address, stream) = self.open().await?;
            let info = connection_info(&self.login);
            PubSub::new(&info, stream).await.map_err(|error| ConnectError::from_greeting(&address, &error))
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
        let opened = Stream::open(&address, self.tls.as_ref(), self.timeout * 3 / 4).await;
        let stream = opened.map_err(|error| ConnectError::from_io(&address, &error))?;
        Ok((address, stream))
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
        let opened = Stream::open(sentinel, self.tls.as_ref(), self.timeout * 3 / 4).await;
        let stream = opened.map_err(|error| ConnectError::from_io(sentinel, &error))?;
        let connection = greet(sentinel, stream, &self.sentinel_login).await?;
        let mut ask = Cmd::new();
        ask.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer: redis::RedisResult<Option<(String, u16)>> =
            ask.query_async(&mut connection.multiplexed.clone()).await;
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
    // Our own bound is per call; the driver's would be a second timer for each.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
    let greeted = MultiplexedConnection::new_with_config(&connection_info(login), stream, config).await;
    let (multiplexed, driver) = greeted.map_err(|error| ConnectError::from_greeting(address, &error))?;
    let closed = Arc::new(AtomicBool::new(false));
    let ended = SetOnDrop(closed.clone());
    let task = tokio::spawn(async move {
        let _ended = ended;
        driver.await;
    });
    Ok(Connection { multiplexed, heard, closed, driver: Arc::new(Driver(task.abort_handle())) })
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
    let answer = connection.multiplexed.clone().req_packed_command(&role).await;
    match answer {
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
        Ok(Value::ServerError(error)) if error.code() == "NOPERM" => Ok(()),
        Ok(_) => Ok(()),
        Err(error) => Err(ConnectError::from_greeting(address, &error)),
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An open stream that notes when it last heard something.
pub(crate) struct Stream {
    inner: Box<dyn Duplex>,
    heard: Arc<LastHeard>,
}

/// When a connection last heard anything, in microseconds of this process. Written by its reader alone.
#[derive(Default)]
pub(crate) struct LastHeard(AtomicU64);

impl LastHeard {
    fn note(&self) {
        self.0.store(micros(Instant::now()), Ordering::Relaxed);
    }

    fn is_since(&self, moment: Instant) -> bool {
        self.0.load(Ordering::Relaxed) >= micros(moment)
    }
}

fn micros(moment: Instant) -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(moment.saturating_duration_since(*START).as_micros()).unwrap_or(u64::MAX)
}

impl Stream {
    /// Opens a stream. The caller bounds the time; `handshake` bounds TLS alone, so that its silence can be told from
    /// the network's: a plaintext server answers a TLS greeting with nothing at all.
    pub(crate) async fn open(address: &Address, tls: Option<&TlsConnector>, handshake: Duration) -> io::Result<Self> {
        let inner: Box<dyn Duplex> = match address {
            Address::Tcp { host, port } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                tcp.set_nodelay(true)?;
                bound_silence(&tcp)?;
                match tls {
                    None => Box::new(tcp),
                    Some(connector) => {
                        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                        let greeted = tokio::time::timeout(handshake, connector.connect(name, tcp)).await;
                        Box::new(greeted.unwrap_or_else(|_| Err(io::Error::other(silent_handshake())))?)
                    }
                }
            }
            #[cfg(unix)]
            Address::Unix(path) => Box::new(tokio::net::UnixStream::connect(path).await?),
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self { inner, heard: Arc::default() })
    }
}

/// Has the system end a connection that stays silent for 15 s, also one that nobody uses: a network that forgot it is
/// found out before the next call has to. Calls do not wait for it, see [`pool`](crate::pool).
fn bound_silence(tcp: &TcpStream) -> io::Result<()> {
    let socket = socket2::SockRef::from(tcp);
    let ask = TcpKeepalive::new().with_time(Duration::from_secs(9)).with_interval(Duration::from_secs(2));
    #[cfg(not(target_os = "windows"))]
    let ask = ask.with_retries(3);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(15)))?;
    socket.set_tcp_keepalive(&ask)
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if result.is_ready() {
            self.heard.note();
        }
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

fn silent_handshake() -> rustls::Error {
    rustls::Error::General("no answer to the handshake; the port may be for plaintext".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_silent_socket_is_ended_by_the_system_within_fifteen_seconds() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();

        bound_silence(&tcp).unwrap();

        let socket = socket2::SockRef::from(&tcp);
        assert!(socket.keepalive().unwrap());
        let (idle, interval) = (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert!(idle + interval * socket.tcp_keepalive_retries().unwrap() <= Duration::from_secs(15));
        assert!(socket.tcp_user_timeout().unwrap().unwrap() <= Duration::from_secs(15));
    }
}
