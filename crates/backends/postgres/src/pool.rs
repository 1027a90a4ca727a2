//! Who may use a connection?
//!
//! Connections are handed out to one task at a time, for one round trip; all acquires together leave some to release and
//! extend. Another one is opened when none comes back within a moment, so that a process that waits for one lock has one:
//! it asks on the connection that it listens on. A server that has no room for another is waited for.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::Result;
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::connect::Target;
use crate::error;
use crate::introduce::Purpose;
use crate::session::{Connection, Lent, Session};

/// What another runtime has had for longer is taken back: it most likely does not run any more.
const TOO_LONG: Duration = Duration::from_secs(1);

/// How long who needs a connection waits for one that is in use, before it opens another. Not where so many needed one within
/// the last [`WINDOW`].
const MOMENT: Duration = Duration::from_millis(20);
const MANY: u32 = 4;
const WINDOW: Duration = Duration::from_millis(100);

/// How long who found the server full waits before it tries again, at first and at most.
const FIRST_TRY: Duration = Duration::from_millis(100);
const LAST_TRY: Duration = Duration::from_secs(2);

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
    home: Arc<Home>,
}

/// Where connections come back to.
pub(crate) struct Home {
    /// Connections that nobody uses. Together with those in use never more than the pool's size.
    idle: Mutex<Vec<Connection>>,
    /// The one that somebody listens on.
    listening: Mutex<Option<Listening>>,
    /// Rings when one of them may be free.
    free: Notify,
    /// Since when who needed a connection while others were in use is counted, and how many did.
    missed: Mutex<(Instant, u32)>,
    /// One per connection that may be in use.
    permits: Arc<Semaphore>,
    /// On which runtime each connection is used, and since when.
    loans: Mutex<BTreeMap<u64, (runtime::Id, Instant)>>,
    next: AtomicU64,
}

/// A connection that somebody listens on, and who asks on it now.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) connection: Arc<Connection>,
    /// Whether somebody of this process waits for a release. One that is made on this very connection would not notice.
    pub(crate) is_waited: Arc<AtomicBool>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Listening {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection: Arc::new(connection), is_waited: Arc::default(), turn: Arc::default() }
    }
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// One statement.
    Statement,
    /// One that finds out whether somebody waits.
    Release,
    /// Several that belong together.
    Transaction,
}

/// The right to use one connection. Given back when dropped.
pub(crate) struct Loan {
    /// `None` once it has ended.
    number: Option<u64>,
    home: Arc<Home>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Loan {
    fn new(home: &Arc<Home>, permit: OwnedSemaphorePermit) -> Self {
        let number = home.next.fetch_add(1, Ordering::Relaxed);
        lock(&home.loans).insert(number, (Handle::current().id(), Instant::now()));
        Self { number: Some(number), home: home.clone(), permit: Some(permit) }
    }

    /// Whether the right was still this one's.
    fn end(&mut self) -> bool {
        let Some(number) = self.number.take() else { return false };
        let is_ours = lock(&self.home.loans).remove(&number).is_some();
        if !is_ours && let Some(permit) = self.permit.take() {
            permit.forget();
        }
        is_ours
    }

    pub(crate) fn give_back(mut self, connection: Connection) {
        let is_ours = self.end();
        lock(&self.home.idle).extend(is_ours.then_some(connection));
    }

    /// The connections beside a silent one are as silent.
    pub(crate) fn give_up_idle(self) {
        lock(&self.home.idle).clear();
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.end();
        drop(self.permit.take());
        self.home.free.notify_one();
    }
}

impl Pool {
    pub(crate) fn own(target: Target, size: usize) -> Self {
        let home = Home {
            idle: Mutex::default(),
            listening: Mutex::default(),
            free: Notify::new(),
            missed: Mutex::new((Instant::now(), 0)),
            permits: Arc::new(Semaphore::new(size)),
            loans: Mutex::default(),
            next: AtomicU64::new(0),
        };
        Self::Own(Box::new(OwnPool { target, size, home: Arc::new(home) }))
    }

    /// A connection for one operation, by `deadline`.
    pub(crate) async fn get(&self, purpose: Use, deadline: Instant) -> Result<Session> {
        match self {
            Self::Own(pool) => pool.get(purpose, deadline).await,
            #[cfg(feature = "deadpool")]
            Self::Brought(pool) => match timeout_at(deadline, pool.get()).await {
                Ok(Ok(object)) => Ok(Session::new(Lent::Brought(object))),
                Ok(Err(error)) => Err(error::from_pool(&error)),
                Err(_) => Err(error::all_busy()),
            },
        }
    }

    /// A connection to listen on, on which others may ask once it [listens](Self::listens). `None` for a pool that was
    /// brought along.
    pub(crate) async fn to_listen_on(&self) -> Option<Result<Connection>> {
        match self {
            Self::Own(pool) => Some(pool.to_listen_on().await),
            #[cfg(feature = "deadpool")]
            Self::Brought(_) => None,
        }
    }

    /// From here on others may ask on it, or not any more.
    pub(crate) fn listens(&self, listening: Option<Listening>) {
        match self {
            Self::Own(pool) => *lock(&pool.home.listening) = listening,
            #[cfg(feature = "deadpool")]
            Self::Brought(_) => {}
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
    async fn get(&self, purpose: Use, deadline: Instant) -> Result<Session> {
        let loan = loop {
            let turn = deadline.min(Instant::now() + TOO_LONG);
            match timeout_at(turn, self.home.permits.clone().acquire_owned()).await {
                Ok(permit) => break Loan::new(&self.home, permit.map_err(|_| error::all_busy())?),
                Err(_) if Instant::now() >= deadline => return Err(error::all_busy()),
                Err(_) => self.home.reclaim(),
            }
        };
        let (mut pause, mut look) = (FIRST_TRY, None);
        loop {
            if let Some(connection) = self.home.pop_idle() {
                return Ok(Session::new(Lent::Own(connection, loan)));
            }
            if let Some((connection, turn)) = self.shared(purpose) {
                return Ok(Session::new(Lent::Listening(connection, turn, loan)));
            }
            let soon = || if self.home.comes_back_soon() { MOMENT } else { Duration::ZERO };
            let until = deadline.min(*look.get_or_insert_with(|| Instant::now() + soon()));
            if Instant::now() < until {
                drop(timeout_at(until, self.home.free.notified()).await);
                continue;
            }
            match timeout_at(deadline, Connection::open(&self.target, Purpose::Locks)).await {
                Ok(Ok(connection)) => return Ok(Session::new(Lent::Own(connection, loan))),
                Ok(Err(error)) if error::is_full(&error) && Instant::now() + pause < deadline => {
                    look = Some(Instant::now() + pause.mul_f64(random_share()));
                    pause = LAST_TRY.min(pause * 2);
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(error::no_answer_to_connect()),
            }
        }
    }

    /// The connection that somebody listens on, if it is fit for this and nobody asks on it.
    fn shared(&self, purpose: Use) -> Option<(Arc<Connection>, OwnedMutexGuard<()>)> {
        let listening = lock(&self.home.listening).clone()?;
        let is_fit = match purpose {
            Use::Statement => true,
            Use::Release => !listening.is_waited.load(Ordering::Acquire),
            Use::Transaction => false,
        };
        let is_free = is_fit && !self.target.seen.pooler() && listening.connection.is_usable_here();
        let turn = listening.turn.try_lock_owned().ok().filter(|_| is_free)?;
        Some((listening.connection, turn))
    }

    /// A connection to listen on, out of the pool if it has one to spare.
    async fn to_listen_on(&self) -> Result<Connection> {
        match self.home.pop_idle() {
            Some(connection) => Ok(connection),
            None => Connection::open(&self.target, Purpose::Locks).await,
        }
    }
}

impl Home {
    /// An idle connection of this runtime that is not known to be closed.
    fn pop_idle(&self) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        idle.retain(|connection| !connection.client.is_closed());
        if let Some(own) = idle.iter().rposition(Connection::is_usable_here) {
            return Some(idle.remove(own));
        }
        // The connection that will be made takes the place of one that waits for another runtime.
        if idle.len() > self.permits.available_permits() {
            idle.remove(0);
        }
        None
    }

    /// Whether a connection of this runtime is in use that may come back in a moment, and this happens seldom.
    fn comes_back_soon(&self) -> bool {
        let here = Handle::current().id();
        let in_use = lock(&self.loans).values().filter(|(runtime, _)| *runtime == here).count();
        if in_use < 2 && lock(&self.listening).is_none() {
            return false;
        }
        let mut missed = lock(&self.missed);
        if missed.0.elapsed() > WINDOW {
            *missed = (Instant::now(), 0);
        }
        missed.1 += 1;
        missed.1 <= MANY
    }

    /// Takes back what another runtime has had for too long. If it runs after all, its connection is closed when it comes
    /// back.
    fn reclaim(&self) {
        let here = Handle::current().id();
        let mut loans = lock(&self.loans);
        let before = loans.len();
        loans.retain(|_, (runtime, since)| *runtime == here || since.elapsed() < TOO_LONG);
        self.permits.add_permits(before - loans.len());
    }
}

/// The share of the connections that acquires leave to release and extend.
pub(crate) fn acquire_slots(pool_size: usize) -> usize {
    pool_size.saturating_sub((pool_size / 4).max(1)).max(1)
}

/// Between a half and one, so that those who found the server full do not come again together.
fn random_share() -> f64 {
    let random = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(0);
    0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0
}

/// When an operation that starts now must be over.
pub(crate) fn deadline(limit: Duration) -> Instant {
    Instant::now() + limit
}

// Every change under these locks is one step, so a panic leaves nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquires_never_take_every_connection_of_a_pool_of_two_or_more() {
        assert_eq!(acquire_slots(1), 1);
        for size in 2..100 {
            assert!(acquire_slots(size) < size);
        }
        assert_eq!(acquire_slots(16), 12);
    }
}
