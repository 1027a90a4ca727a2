//! Where is the lock of this id?
//!
//! A script must declare the lock's name, and release knows only the id. For the locks of this process the name is
//! remembered here; for an id that came from elsewhere the index in Redis is read first, at the price of one round
//! trip. Either way the script verifies the index, so what is remembered is a hint and never a proof.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncguard_core::time::{Clock, SystemClock, TOLERANCE};
use syncguard_core::{BootTime, LockId, Ttl};

/// Locks of this process by id.
#[derive(Default)]
pub(crate) struct OwnLocks(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    locks: HashMap<LockId, Entry>,
    /// The size at which the next sweep is due: locks that nobody released must not pile up.
    sweep_at: usize,
}

struct Entry {
    lock: Arc<str>,
    forget_at: BootTime,
}

impl OwnLocks {
    pub(crate) fn remember(&self, lock_id: &LockId, lock: &str, ttl: Ttl) {
        let now = SystemClock.boot();
        let mut inner = self.inner();
        if inner.locks.len() >= inner.sweep_at {
            inner.locks.retain(|_, entry| entry.forget_at > now);
            inner.sweep_at = (inner.locks.len() * 2).max(1024);
        }
        let entry = Entry { lock: Arc::from(lock), forget_at: forget_at(now, ttl) };
        inner.locks.insert(lock_id.clone(), entry);
    }

    /// The lock was renewed.
    pub(crate) fn renew(&self, lock_id: &LockId, ttl: Ttl) {
        if let Some(entry) = self.inner().locks.get_mut(lock_id) {
            entry.forget_at = forget_at(SystemClock.boot(), ttl);
        }
    }

    /// The lock's name.
    pub(crate) fn find(&self, lock_id: &LockId) -> Option<Arc<str>> {
        self.inner().locks.get(lock_id).map(|entry| entry.lock.clone())
    }

    pub(crate) fn forget(&self, lock_id: &LockId) {
        self.inner().locks.remove(lock_id);
    }

    // Every change is one step: a panic elsewhere leaves the map right.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget_at(now: BootTime, ttl: Ttl) -> BootTime {
    now + ttl.duration() + TOLERANCE
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_nobody_released_do_not_pile_up() {
        let own = OwnLocks::default();
        // Dead as soon as they are written, were it not for the tolerance; so count what a sweep may keep.
        let long = Ttl::from_millis(60_000).unwrap();
        let kept = LockId::random();
        own.remember(&kept, "app:kept", long);
        for _ in 0..10_000 {
            let id = LockId::random();
            own.remember(&id, "app:leaked", long);
            own.inner().locks.get_mut(&id).unwrap().forget_at = BootTime::from_start(std::time::Duration::ZERO);
        }
        assert!(own.inner().locks.len() <= 2048, "{}", own.inner().locks.len());
        assert_eq!(own.find(&kept), Some(Arc::from("app:kept")));
        own.forget(&kept);
        assert_eq!(own.find(&kept), None);
    }
}
