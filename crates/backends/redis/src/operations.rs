//! How do the operations of a lock become calls to Redis?
//!
//! One file per operation, each around one script. Names are in [`names`](crate::names), replies in
//! [`reply`](crate::reply), and where a call goes in [`router`](crate::router).

mod acquire;
mod extend;
mod lookup;
pub(crate) mod purge;
mod release;
pub(crate) mod scan;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::Cmd;
use syncguard_core::inspect::Pace;
use syncguard_core::time::TOLERANCE_MS;
use syncguard_core::{LockId, Result, Ttl};

use crate::builder::WaitReplicas;
use crate::error::CallError;
use crate::listener::Listener;
use crate::names::Names;
use crate::own_locks::OwnLocks;
use crate::reply;
use crate::router::Router;
use crate::turns::Turns;

/// What all clones of a backend share.
pub(crate) struct Operations {
    pub(crate) router: Arc<Router>,
    pub(crate) names: Names,
    pub(crate) timeout: Duration,
    // Acquires that wait for replicas block their connection; releases and renewals must not queue behind them.
    pub(crate) careful: Option<(Router, WaitReplicas)>,
    pub(crate) fence_floor: bool,
    pub(crate) cleanup_in_is_locked: bool,
    /// Whether a look has started a removal that has not ended: one at a time, however many look.
    pub(crate) is_cleaning: AtomicBool,
    pub(crate) own_locks: OwnLocks,
    pub(crate) listener: Option<Listener>,
    /// What releases call this process: eight characters by chance, nothing else.
    pub(crate) listener_name: Arc<str>,
    pub(crate) turns: Arc<Turns>,
    /// Hears all releases, for those who watch. Apart, because a user may be forbidden this and not the other.
    pub(crate) overhearer: Option<Listener>,
    /// Shared by all listings, so that several together are no faster than one.
    pub(crate) pace: Pace,
    pub(crate) publish: AtomicBool,
}

impl Operations {
    /// The bound of an operation that sets a lease: an answer that comes later is of no use.
    fn bound(&self, ttl: Ttl) -> Duration {
        (ttl.duration() / 3).max(Duration::from_secs(1)).min(self.timeout)
    }

    /// How many tasks of this process wait to hear of this lock's release.
    fn waiters(&self, lock: &str) -> usize {
        self.listener.as_ref().map_or(0, |listener| listener.waiters(lock))
    }

    /// The storage name of an id's lock: remembered, or read from the index.
    pub(crate) async fn locate(&self, lock_id: &LockId) -> Result<Option<Located>> {
        let index = self.names.index(lock_id);
        if let Some(lock) = self.own_locks.find(lock_id) {
            return Ok(Some(Located { lock, index }));
        }
        let mut get = Cmd::new();
        get.arg("GET").arg(&index);
        let answer = self.router.command(&get, &index, self.timeout).await.map_err(CallError::into_lock_error)?;
        // An index may lead only to a lock of this prefix: never to a counter, an index or somebody else's key.
        let lock = reply::string(&answer)?.filter(|lock| self.names.is_lock(lock));
        Ok(lock.map(|lock| Located { lock: Arc::from(lock), index }))
    }
}

/// Where the lock of an id is.
pub(crate) struct Located {
    pub(crate) lock: Arc<str>,
    pub(crate) index: String,
}

/// How long the names live in Redis: as long as every backend calls the lock alive.
fn life(ttl: Ttl) -> String {
    (ttl.as_millis() + TOLERANCE_MS).to_string()
}

/// The stored JSON up to what only the server knows:
/// `{"lockId":…,"expiresAtMs":…,"acquiredAtMs":…,"key":…,"ttlMs":…,"label":…,"fence":…}`.
pub(crate) fn value_head(lock_id: &LockId) -> String {
    [r#"{"lockId":""#, lock_id.as_str(), r#"","expiresAtMs":"#].concat()
}
