//! How do thousands of tasks talk to one server?
//!
//! Over a few connections that each carry many requests at once. A connection that ends is replaced by the next caller,
//! before anything is sent. When a call has waited in vain on a silent connection, all connections that have been
//! silent since are given up: the network forgets them together. Nothing is ever sent twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use crate::connect::{Connection, Connector};
use crate::error::{CallError, ConnectError};

/// So many calls share a connection before the next one is used. What is under way together leaves in one write and
/// comes back in one read, on both sides; spread over two connections, it takes twice as many.
const CROWDED: usize = 64;

/// A call that waited for this long, or for most of its bound, has seen a silence and not only a slow answer.
const SILENCE: Duration = Duration::from_secs(1);

/// The connections to one server.
pub(crate) struct Pool {
    connector: Connector,
    entries: Box<[Entry]>,
    /// How often a connection took the place of another: the server may have restarted, or be another one.
    replaced: AtomicUsize,
    /// Told when the server was silent for too long, by whoever waited for it. Must not block.
    on_silence: Box<dyn Fn() + Send + Sync>,
}

/// A call on its way. Dropped without an answer, whether by its own bound or because its caller left (a renewal has a
/// bound of its own, which ends first), it tells whether the server was silent all the while.
struct Waiting<'a> {
    pool: &'a Pool,
    entry: &'a Entry,
    connection: &'a Connection,
    since: Instant,
    enough: Duration,
    answered: bool,
}

impl<'a> Waiting<'a> {
    fn new(pool: &'a Pool, entry: &'a Entry, connection: &'a Connection, timeout: Duration) -> Self {
        entry.calls.fetch_add(1, Ordering::Relaxed);
        let enough = (timeout * 3 / 4).min(SILENCE);
        Self { pool, entry, connection, since: Instant::now(), enough, answered: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.entry.calls.fetch_sub(1, Ordering::Relaxed);
        // A connection on which others still hear answers is only slow.
        let silent =
            !self.answered && self.since.elapsed() >= self.enough && !self.connection.has_heard_since(self.since);
        if silent {
            self.pool.give_up_silent(self.since);
        }
    }
}

/// The place of one connection.
#[derive(Default)]
struct Entry {
    connection: RwLock<Option<Connection>>,
    /// Calls under way on it. Only a hint of where to send the next one.
    calls: AtomicUsize,
    // One caller connects; those who waited share its failure, so that a dead server costs each of them one bound and
    // not a queue of them.
    connecting: tokio::sync::Mutex<Connecting>,
    attempts: AtomicUsize,
}

#[derive(Default)]
struct Connecting {
    failure: Option<ConnectError>,
    /// Whether this place ever had a connection.
    succeeded: bool,
}

impl Pool {
    pub(crate) fn new(connector: Connector, connections: usize, on_silence: impl Fn() + Send + Sync + 'static) -> Self {
        let entries = (0..connections).map(|_| Entry::default()).collect();
        Self { connector, entries, replaced: AtomicUsize::new(0), on_silence: Box::new(on_silence) }
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Changes when a connection was replaced: what the server said before, such as the place of a scan, is void then.
    pub(crate) fn replaced(&self) -> usize {
        self.replaced.load(Ordering::Acquire)
    }

    /// Sends one command and awaits its reply.
    pub(crate) async fn command(&self, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
        let (entry, connection) = self.connection().await?;
        answer(self.answered(entry, &connection, connection.one(command), timeout).await?)
    }

    /// Sends several commands on one connection and awaits all replies; an error reply stays in its place.
    pub(crate) async fn commands(&self, commands: &Pipeline, timeout: Duration) -> Result<Vec<Value>, CallError> {
        let (entry, connection) = self.connection().await?;
        self.answered(entry, &connection, connection.several(commands), timeout).await
    }

    async fn answered<T>(
        &self,
        entry: &Entry,
        connection: &Connection,
        sent: impl Future<Output = redis::RedisResult<T>>,
        timeout: Duration,
    ) -> Result<T, CallError> {
        let mut waiting = Waiting::new(self, entry, connection, timeout);
        let answer = tokio::time::timeout(timeout, sent).await;
        waiting.answered = answer.is_ok();
        match answer {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(CallError::from(error)),
            Err(_) => Err(CallError::Timeout),
        }
    }

    /// Every connection that has been silent since then is replaced by the next caller. Calls that are still on it go
    /// on: if it was only slow, they get their answers.
    fn give_up_silent(&self, since: Instant) {
        for entry in &self.entries {
            let mut connection = entry.connection.write().unwrap_or_else(PoisonError::into_inner);
            connection.take_if(|connection| !connection.has_heard_since(since));
        }
        (self.on_silence)();
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

    async fn connection(&self) -> Result<(&Entry, Connection), CallError> {
        let entry = self.least_crowded();
        match entry.current() {
            Some(connection) => Ok((entry, connection)),
            None => entry.connect(self).await.map(|connection| (entry, connection)).map_err(|error| {
                if error.is_silence() {
                    (self.on_silence)();
                }
                CallError::Connect(error)
            }),
        }
    }

    /// The first connection that is not crowded; when all are, the one with the fewest calls.
    fn least_crowded(&self) -> &Entry {
        let calls = |entry: &Entry| entry.calls.load(Ordering::Relaxed);
        let fewest = || self.entries.iter().min_by_key(|entry| calls(entry)).unwrap_or(&self.entries[0]);
        self.entries.iter().find(|entry| calls(entry) < CROWDED).unwrap_or_else(fewest)
    }
}

impl Entry {
    fn current(&self) -> Option<Connection> {
        let connection = self.connection.read().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|connection| !connection.is_closed()).cloned()
    }

    async fn connect(&self, pool: &Pool) -> Result<Connection, ConnectError> {
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
        let result = pool.connector.connect().await;
        self.attempts.fetch_add(1, Ordering::AcqRel);
        connecting.failure = result.as_ref().err().cloned();
        let connection = result?;
        if std::mem::replace(&mut connecting.succeeded, true) {
            pool.replaced.fetch_add(1, Ordering::AcqRel);
        }
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
