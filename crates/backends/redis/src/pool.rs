//! How do thousands of tasks talk to one server?
//!
//! Over a few connections that each carry many requests at once. A connection that ends is replaced by the next caller, before
//! anything is sent; a connection that stays silent for a whole timeout is given up. Nothing is ever sent twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};

use crate::connect::{Connection, Connector};
use crate::error::{CallError, ConnectError};

/// The connections to one server.
pub(crate) struct Pool {
    connector: Connector,
    entries: Box<[Entry]>,
    next: AtomicUsize,
}

/// The place of one connection.
#[derive(Default)]
struct Entry {
    connection: RwLock<Option<Connection>>,
    // One caller connects; those who waited share its failure, so that a dead server costs each of them one bound and not a queue of them.
    connecting: tokio::sync::Mutex<Connecting>,
    attempts: AtomicUsize,
}

#[derive(Default)]
struct Connecting {
    failure: Option<ConnectError>,
}

impl Pool {
    pub(crate) fn new(connector: Connector, connections: usize) -> Self {
        let entries = (0..connections).map(|_| Entry::default()).collect();
        Self { connector, entries, next: AtomicUsize::new(0) }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Sends one command and awaits its reply.
    pub(crate) async fn command(&self, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
        let mut connection = self.connection().await?;
        let heard = connection.heard.load(Ordering::Relaxed);
        match tokio::time::timeout(timeout, connection.multiplexed.send_packed_command(command)).await {
            Ok(Ok(reply)) => answer(reply),
            Ok(Err(error)) => Err(give_up_if_garbled(&connection, error)),
            Err(_) => Err(give_up_if_silent(&connection, heard)),
        }
    }

    /// Sends several commands on one connection and awaits all replies; an error reply stays in its place.
    pub(crate) async fn commands(&self, commands: &Pipeline, timeout: Duration) -> Result<Vec<Value>, CallError> {
        let mut connection = self.connection().await?;
        let heard = connection.heard.load(Ordering::Relaxed);
        let count = commands.len();
        match tokio::time::timeout(timeout, connection.multiplexed.send_packed_commands(commands, 0, count)).await {
            Ok(Ok(replies)) => Ok(replies),
            Ok(Err(error)) => Err(give_up_if_garbled(&connection, error)),
            Err(_) => Err(give_up_if_silent(&connection, heard)),
        }
    }

    /// Makes sure that there is a connection.
    pub(crate) async fn ready(&self) -> Result<(), ConnectError> {
        self.connection().await.map(|_| ()).map_err(|error| match error {
            CallError::Connect(error) => error,
            // `connection` only attempts.
            CallError::Redis(_) | CallError::Timeout => ConnectError::timed_out(&self.connector.name()),
        })
    }

    /// Drops all connections: the server is not what it was (a master that became a replica).
    pub(crate) fn close_all(&self) {
        for entry in &self.entries {
            let connection = entry.connection.write().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(connection) = connection {
                connection.close();
            }
        }
    }

    async fn connection(&self) -> Result<Connection, CallError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = &self.entries[turn % self.entries.len()];
        match entry.current() {
            Some(connection) => Ok(connection),
            None => entry.connect(&self.connector).await.map_err(CallError::Connect),
        }
    }
}

impl Entry {
    fn current(&self) -> Option<Connection> {
        let connection = self.connection.read().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|connection| !connection.is_closed()).cloned()
    }

    async fn connect(&self, connector: &Connector) -> Result<Connection, ConnectError> {
        let seen = self.attempts.load(Ordering::Acquire);
        let mut connecting = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if self.attempts.load(Ordering::Acquire) != seen
            && let Some(failure) = &connecting.failure
        {
            return Err(failure.clone());
        }
        let result = connector.connect().await;
        self.attempts.fetch_add(1, Ordering::AcqRel);
        connecting.failure = result.as_ref().err().cloned();
        let connection = result?;
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        Ok(connection)
    }
}

fn answer(reply: Value) -> Result<Value, CallError> {
    match reply {
        Value::ServerError(error) => Err(CallError::Redis(error.into())),
        reply => Ok(reply),
    }
}

/// After bytes that are no reply, nobody knows whose reply comes next.
fn give_up_if_garbled(connection: &Connection, error: RedisError) -> CallError {
    if error.kind() == ErrorKind::Parse {
        connection.close();
    }
    CallError::from(error)
}

/// A connection on which others still hear answers is only slow; one that is silent may be dead without knowing.
fn give_up_if_silent(connection: &Connection, heard: u64) -> CallError {
    if connection.heard.load(Ordering::Relaxed) == heard {
        connection.close();
    }
    CallError::Timeout
}
