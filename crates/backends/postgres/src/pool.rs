//! Who may use a connection, and what happens to one that was left in the middle?
//!
//! Connections are kept on a stack and handed out one operation at a time. Three rules keep a stuck key from stopping
//! the rest: acquires of one key go one after another (the server would serialise them anyway, at the price of a
//! connection each), all acquires together leave some connections to release and extend, and every wait is bounded.
//!
//! A connection whose operation did not come to its end, because it failed, timed out or its future was dropped, may be
//! in an open transaction or owe answers. It is closed, never handed on.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::Result;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use crate::connect::Target;
use crate::error;
use crate::introduce::Purpose;
use crate::statement::{Columns, Sql};

/// An operation that was left after so long without its answers has seen a silence, and not only a slow answer.
const SILENCE: Duration = Duration::from_secs(1);

/// The connections of one backend.
pub(crate) enum Pool {
    Own(Box<OwnPool>),
    /// Brought along by the caller, who may use it for other things too.
    #[cfg(feature = "deadpool")]
    Brought(deadpool_postgres::Pool),
}

/// Connections that this backend makes itself.
pub(crate) struct OwnPool {
    target: Target,
    size: usize,
    /// Connections that nobody uses. Together with those in use never more than `size`.
    idle: Arc<Mutex<Vec<OwnSession>>>,
    /// One per connection that may be in use.
    permits: Arc<Semaphore>,
}

struct OwnSession {
    client: Client,
    /// Reads and writes for the client. It ends with the runtime that it was made on.
    driving: JoinHandle<()>,
    /// A runtime that is kept but does not run drives nothing, so a connection is used on its own runtime only.
    runtime: tokio::runtime::Id,
    /// The statements that this connection knows, by their names and by the columns they are for.
    prepared: Mutex<HashMap<(&'static str, Columns), Statement>>,
    behind_pooler: bool,
}

impl Drop for OwnSession {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

impl Pool {
    pub(crate) fn own(target: Target, size: usize) -> Self {
        let permits = Arc::new(Semaphore::new(size));
        Self::Own(Box::new(OwnPool { target, size, idle: Arc::default(), permits }))
    }

    /// A connection for one operation, by `deadline`.
    pub(crate) async fn get(&self, deadline: Instant) -> Result<Session> {
        match self {
            Self::Own(pool) => pool.get(deadline).await,
            #[cfg(feature = "deadpool")]
            Self::Brought(pool) => match timeout_at(deadline, pool.get()).await {
                Ok(Ok(object)) => {
                    let inner = Some(Inner::Brought(object));
                    Ok(Session { inner, state: State::Clean, begun: Instant::now() })
                }
                Ok(Err(error)) => Err(error::from_pool(&error)),
                Err(_) => Err(error::all_busy()),
            },
        }
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Own(pool) => pool.size,
            #[cfg(feature = "deadpool")]
            Self::Brought(pool) => pool.status().max_size,
        }
    }

    /// Whether connections were seen to lead through a pooler; unknown for a pool that was brought along.
    #[cfg_attr(not(feature = "deadpool"), allow(clippy::unnecessary_wraps, reason = "a brought pool has none"))]
    pub(crate) fn behind_pooler(&self) -> Option<bool> {
        match self {
            Self::Own(pool) => Some(pool.target.seen.pooler()),
            #[cfg(feature = "deadpool")]
            Self::Brought(_) => None,
        }
    }

    #[cfg_attr(not(feature = "deadpool"), allow(clippy::unnecessary_wraps, reason = "a brought pool has none"))]
    pub(crate) fn target(&self) -> Option<&Target> {
        match self {
            Self::Own(pool) => Some(&pool.target),
            #[cfg(feature = "deadpool")]
            Self::Brought(_) => None,
        }
    }
}

impl OwnPool {
    async fn get(&self, deadline: Instant) -> Result<Session> {
        let waiting = timeout_at(deadline, self.permits.clone().acquire_owned());
        let permit = waiting.await.map_err(|_| error::all_busy())?.map_err(|_| error::all_busy())?;
        let session = match self.pop_idle() {
            Some(session) => session,
            None => self.open(deadline).await?,
        };
        let inner = Inner::Own { session, home: self.idle.clone(), _permit: permit };
        Ok(Session { inner: Some(inner), state: State::Clean, begun: Instant::now() })
    }

    /// An idle connection of this runtime that is not known to be closed.
    fn pop_idle(&self) -> Option<OwnSession> {
        let here = tokio::runtime::Handle::current().id();
        let mut idle = lock(&self.idle);
        idle.retain(|session| !session.client.is_closed());
        if let Some(own) = idle.iter().rposition(|session| session.runtime == here) {
            return Some(idle.remove(own));
        }
        // The connection that will be made takes the place of one that waits for another runtime.
        if idle.len() > self.permits.available_permits() {
            idle.remove(0);
        }
        None
    }

    async fn open(&self, deadline: Instant) -> Result<OwnSession> {
        let connected = timeout_at(deadline, self.target.connect(Purpose::Locks))
            .await
            .map_err(|_| error::no_answer_to_connect())??;
        let mut messages = connected.messages;
        // The end of a connection is seen by whoever waits for an answer; there is nobody else to tell.
        let driving =
            tokio::spawn(async move { while let Some(Ok(_)) = poll_fn(|cx| messages.as_mut().poll_next(cx)).await {} });
        Ok(OwnSession {
            client: connected.client,
            driving,
            runtime: tokio::runtime::Handle::current().id(),
            prepared: Mutex::default(),
            behind_pooler: connected.behind_pooler,
        })
    }
}

enum Inner {
    Own {
        session: OwnSession,
        home: Arc<Mutex<Vec<OwnSession>>>,
        _permit: OwnedSemaphorePermit,
    },
    #[cfg(feature = "deadpool")]
    Brought(deadpool_postgres::Object),
}

/// A connection on loan. Goes back when dropped, or is closed if it was left in the middle of something.
pub(crate) struct Session {
    inner: Option<Inner>,
    state: State,
    /// When the last operation began.
    begun: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Owes nothing.
    Clean,
    /// In the middle of something.
    Busy,
    /// Broke or fell silent.
    Broken,
}

impl Session {
    pub(crate) fn client(&self) -> &Client {
        match self.inner.as_ref() {
            Some(Inner::Own { session, .. }) => &session.client,
            #[cfg(feature = "deadpool")]
            Some(Inner::Brought(object)) => object,
            None => unreachable!("a session is emptied by its drop alone"),
        }
    }

    /// Whether this very connection leads through a pooler; unknown for one that was brought along.
    pub(crate) fn behind_pooler(&self) -> Option<bool> {
        match self.inner.as_ref() {
            Some(Inner::Own { session, .. }) => Some(session.behind_pooler),
            _ => None,
        }
    }

    /// From here on until [`finished`](Self::finished) the connection is not fit for anybody else.
    pub(crate) fn begin(&mut self) {
        self.state = State::Busy;
        self.begun = Instant::now();
    }

    /// Whether the operation was left after such a wait that the connection must be taken for a silent one. A renewal
    /// has a bound of its own, which ends before the backend's.
    fn was_silent(&self) -> bool {
        self.state == State::Broken || (self.state == State::Busy && self.begun.elapsed() >= SILENCE)
    }

    /// Every answer was received.
    pub(crate) fn finished(&mut self) {
        self.state = State::Clean;
    }

    /// It broke or fell silent. The idle ones beside it went the same way, most likely, and are not worth a timeout
    /// each.
    pub(crate) fn broke(&mut self) {
        self.state = State::Broken;
    }

    /// The statement under its name on this connection, prepared on first use.
    pub(crate) async fn prepare(&self, sql: &Sql, types: &[Type]) -> Result<Statement, tokio_postgres::Error> {
        match self.inner.as_ref() {
            Some(Inner::Own { session, .. }) => {
                if let Some(statement) = lock(&session.prepared).get(&(sql.name, sql.columns)) {
                    return Ok(statement.clone());
                }
                let statement = session.client.prepare_typed(&sql.text, types).await?;
                lock(&session.prepared).insert((sql.name, sql.columns), statement.clone());
                Ok(statement)
            }
            #[cfg(feature = "deadpool")]
            Some(Inner::Brought(object)) => object.prepare_typed_cached(&sql.text, types).await,
            None => unreachable!("a session is emptied by its drop alone"),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let was_silent = self.was_silent();
        match (self.inner.take(), self.state) {
            (Some(Inner::Own { session, home, _permit }), State::Clean) => lock(&home).push(session),
            (Some(Inner::Own { home, .. }), _) if was_silent => lock(&home).clear(),
            #[cfg(feature = "deadpool")]
            // Dropping the object returns it to its pool; taking it out first closes it.
            (Some(Inner::Brought(object)), State::Busy | State::Broken) => {
                drop(deadpool_postgres::Object::take(object));
            }
            _ => {}
        }
    }
}

/// Lets acquires of one key go one after another.
#[derive(Debug, Default)]
pub(crate) struct KeyTurns(Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<()>>>>);

/// The right to try one key.
pub(crate) struct KeyTurn<'a> {
    turns: &'a KeyTurns,
    key: Arc<str>,
    held: Option<OwnedMutexGuard<()>>,
}

impl KeyTurns {
    /// Waits for its turn, by `deadline`.
    pub(crate) async fn take(&self, key: &str, deadline: Instant) -> Result<KeyTurn<'_>> {
        let (key, queue) = {
            let mut queues = lock(&self.0);
            match queues.get_key_value(key) {
                Some((key, queue)) => (key.clone(), queue.clone()),
                None => {
                    let (key, queue): (Arc<str>, Arc<tokio::sync::Mutex<()>>) = (Arc::from(key), Arc::default());
                    queues.insert(key.clone(), queue.clone());
                    (key, queue)
                }
            }
        };
        // Made before the wait, so that a dropped or timed out wait leaves no entry behind.
        let mut turn = KeyTurn { turns: self, key, held: None };
        turn.held = Some(timeout_at(deadline, queue.lock_owned()).await.map_err(|_| error::all_busy())?);
        Ok(turn)
    }
}

impl Drop for KeyTurn<'_> {
    fn drop(&mut self) {
        let mut queues = lock(&self.turns.0);
        drop(self.held.take());
        if queues.get(&self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.key);
        }
    }
}

/// The share of the connections that acquires leave to release and extend.
pub(crate) fn acquire_slots(pool_size: usize) -> usize {
    pool_size.saturating_sub((pool_size / 4).max(1)).max(1)
}

/// When an operation that starts now must be over.
pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit
}

// Every change under these locks is one step, so a panic leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_key_passes_one_at_a_time_and_others_are_free() {
        let turns = KeyTurns::default();
        let first = turns.take("a", deadline(Duration::from_secs(1))).await.unwrap();
        assert!(turns.take("a", deadline(Duration::from_secs(1))).await.is_err());
        let other = turns.take("b", deadline(Duration::from_secs(1))).await.unwrap();
        drop(first);
        let second = turns.take("a", deadline(Duration::from_secs(1))).await.unwrap();
        drop((second, other));
        assert!(lock(&turns.0).is_empty());
    }

    #[test]
    fn acquires_never_take_every_connection_of_a_pool_of_two_or_more() {
        assert_eq!(acquire_slots(1), 1);
        for size in 2..100 {
            assert!(acquire_slots(size) < size);
        }
        assert_eq!(acquire_slots(16), 12);
    }
}
