//! A storage of your own, in the four operations and the look that the contract asks for.
//!
//! A map behind a mutex stands for your database; each operation is one atomic step of it. `docs/write-a-backend.md`
//! explains the rules, and `syncguard-conformance` proves them. `cargo run -p syncguard --example own_backend`

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use syncguard::time::{Clock, SystemClock, free_in, is_live};
use syncguard::{
    AcquireOutcome, AcquireRequest, Capabilities, Contention, ExtendOutcome, Extension, Fence, Key, Lease, LockBackend,
    LockError, LockId, LockInfo, Locker, Lookup, ReleaseOutcome, Result, TimeAuthority, Timestamp, Ttl,
};

/// Locks in a map.
#[derive(Default)]
pub(crate) struct MapBackend {
    rows: Mutex<HashMap<Key, Row>>,
}

/// A row outlives its lock: the counter in it must never be lost.
struct Row {
    counter: u64,
    held: Option<Held>,
}

#[derive(Clone)]
struct Held {
    lock_id: LockId,
    acquired_at: Timestamp,
    expires_at: Timestamp,
}

impl MapBackend {
    fn rows(&self) -> MutexGuard<'_, HashMap<Key, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the live lock of this id, if there is one.
    fn change<T>(&self, lock_id: &LockId, change: impl FnOnce(&mut Row, Timestamp) -> T) -> Option<T> {
        let now = SystemClock.wall();
        let mut rows = self.rows();
        let row = rows.values_mut().find(|row| {
            row.held.as_ref().is_some_and(|held| held.lock_id == *lock_id && is_live(held.expires_at, now))
        })?;
        Some(change(row, now))
    }
}

impl LockBackend for MapBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("map", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let now = SystemClock.wall();
        let mut rows = self.rows();
        let row = rows.entry(request.key.clone()).or_insert(Row { counter: 0, held: None });
        if let Some(held) = row.held.as_ref().filter(|held| is_live(held.expires_at, now)) {
            // The same id again means that our first answer was lost: own up to it.
            return Ok(if held.lock_id == *request.lock_id {
                AcquireOutcome::Acquired(Lease::new(Fence::new(row.counter)?, held.expires_at).observed_at(now))
            } else {
                AcquireOutcome::Contended(Contention::free_in(free_in(held.expires_at, now)))
            });
        }
        // Checked before anything is written: a fence past its limit must not leave a lock behind.
        let fence = Fence::new(row.counter.saturating_add(1))?;
        let expires_at = now.plus(request.ttl);
        row.counter = fence.get();
        row.held = Some(Held { lock_id: request.lock_id.clone(), acquired_at: now, expires_at });
        Ok(AcquireOutcome::Acquired(Lease::new(fence, expires_at).observed_at(now)))
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let released = self.change(lock_id, |row, _| row.held = None);
        Ok(released.map_or(ReleaseOutcome::Absent(None), |()| ReleaseOutcome::Released))
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let extended = self.change(lock_id, |row, now| {
            let expires_at = now.plus(ttl);
            if let Some(held) = &mut row.held {
                held.expires_at = expires_at;
            }
            expires_at
        });
        Ok(extended
            .map_or(ExtendOutcome::Absent(None), |expires_at| ExtendOutcome::Extended(Extension::new(expires_at))))
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        Ok(self.lookup(Lookup::Key(key)).await?.is_some())
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let now = SystemClock.wall();
        let rows = self.rows();
        let found = rows.iter().find_map(|(key, row)| {
            let held = row.held.as_ref().filter(|held| is_live(held.expires_at, now))?;
            let meant = match query {
                Lookup::Key(wanted) => wanted == key,
                Lookup::LockId(wanted) => *wanted == held.lock_id,
            };
            meant.then_some((key, row.counter, held))
        });
        let Some((key, counter, held)) = found else { return Ok(None) };
        let fence = Fence::new(counter)?;
        Ok(Some(LockInfo::new(key.clone(), held.lock_id.clone(), fence, held.acquired_at, held.expires_at, now)))
    }

    async fn purge_expired(&self) -> Result<u64> {
        // The rows hold the counters; there is nothing to purge that a row would give back.
        Ok(0)
    }
}

/// Everything of the client works on it: waiting, renewal, loss, `run`.
pub(crate) async fn story() -> Result<(Fence, bool), LockError> {
    let locker = Locker::new(MapBackend::default());
    let first = locker.lock("mine").acquire().await?;
    let contended = locker.lock("mine").try_acquire().await?.is_none();
    first.release().await?;
    let fence = locker.lock("mine").run(async |lock| lock.fence()).await?;
    Ok((fence, contended))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let (fence, contended) = story().await?;
    println!("on a storage of my own: fence {fence}, contended while held: {contended}");
    Ok(())
}
