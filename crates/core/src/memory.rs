//! What does a lock look like with no storage at all?
//!
//! One map behind a mutex, on tokio's clock, so that tests pass time instead of sleeping. It is the reference of the
//! contract and a backend for tests and single-process programs; other processes do not see it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::time::{CLEANUP_GUARD_MS, Clock, TokioClock, free_in, is_live};
use crate::wake::{WakeHint, WakeHub};
use crate::{
    AbsentReason, AcquireOutcome, AcquireRequest, Capabilities, Contention, ExtendOutcome, Extension, Fence,
    HealthReport, HealthStatus, Key, Label, Lease, LockBackend, LockError, LockId, LockInfo, Lookup, ReleaseOutcome,
    Result, TimeAuthority, Timestamp, Ttl,
};

/// Locks in this process's memory. Clones share their locks.
#[derive(Clone)]
pub struct MemoryBackend {
    shared: Arc<Shared>,
    cleanup_in_is_locked: bool,
}

struct Shared {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    hub: WakeHub,
}

#[derive(Default)]
struct State {
    locks: HashMap<Key, Stored>,
    owners: HashMap<LockId, Key>,
    // Never shrinks: a counter outlives every lock.
    counters: HashMap<Key, u64>,
}

#[derive(Clone)]
struct Stored {
    lock_id: LockId,
    fence: Fence,
    acquired_at: Timestamp,
    expires_at: Timestamp,
    label: Option<Label>,
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBackend({} locks)", self.state().locks.len())
    }
}

impl MemoryBackend {
    /// An empty backend on tokio's clock, which tests can pause.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(TokioClock))
    }

    /// An empty backend whose server time and whose guards' local time come from `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { state: Mutex::default(), clock, hub: WakeHub::default() };
        Self { shared: Arc::new(shared), cleanup_in_is_locked: false }
    }

    /// The same locks, but `is_locked` also removes the key's lock if it has been dead for a while.
    #[must_use]
    pub fn cleaning_up(&self) -> Self {
        Self { shared: self.shared.clone(), cleanup_in_is_locked: true }
    }

    /// Sets a key's fence counter, as a bad restore would. For tests of the limits.
    pub fn set_counter(&self, key: &Key, value: u64) {
        self.state().counters.insert(key.clone(), value);
    }

    /// The key's fence counter.
    pub fn counter(&self, key: &Key) -> Option<u64> {
        self.state().counters.get(key).copied()
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.wall()
    }

    // Each change below is complete before the guard can be dropped by a panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn acquire(&mut self, request: AcquireRequest<'_>, now: Timestamp) -> Result<AcquireOutcome> {
        if let Some(held) = self.locks.get(request.key) {
            if is_live(held.expires_at, now) {
                return Ok(answer_held(held, request.lock_id, now));
            }
            let dead = held.lock_id.clone();
            self.owners.remove(&dead);
        }
        let counter = self.counters.get(request.key).copied().unwrap_or(0);
        let fence = Fence::new(counter.saturating_add(1)).map_err(|error| error.with_key(request.key))?;
        self.counters.insert(request.key.clone(), fence.get());
        self.owners.insert(request.lock_id.clone(), request.key.clone());
        let expires_at = now.plus(request.ttl);
        let stored = Stored {
            lock_id: request.lock_id.clone(),
            fence,
            acquired_at: now,
            expires_at,
            label: request.label.cloned(),
        };
        self.locks.insert(request.key.clone(), stored);
        Ok(AcquireOutcome::Acquired(Lease::new(fence, expires_at).observed_at(now)))
    }

    /// The key that this id owns, if its lease is alive.
    fn owned(&self, lock_id: &LockId, now: Timestamp) -> Result<&Key, AbsentReason> {
        let key = self.owners.get(lock_id).ok_or(AbsentReason::NotFound)?;
        let held = self.locks.get(key).filter(|held| held.lock_id == *lock_id).ok_or(AbsentReason::NotFound)?;
        if is_live(held.expires_at, now) { Ok(key) } else { Err(AbsentReason::Expired) }
    }

    fn purge(&mut self, now: Timestamp, only: Option<&Key>) -> u64 {
        let before = self.locks.len();
        let owners = &mut self.owners;
        self.locks.retain(|key, held| {
            let chosen = only.is_none_or(|only| only == key);
            let dead = now.as_millis().saturating_sub(held.expires_at.as_millis()) > CLEANUP_GUARD_MS;
            if chosen && dead {
                owners.remove(&held.lock_id);
            }
            !(chosen && dead)
        });
        u64::try_from(before - self.locks.len()).unwrap_or(u64::MAX)
    }
}

fn answer_held(held: &Stored, asking: &LockId, now: Timestamp) -> AcquireOutcome {
    if held.lock_id == *asking {
        return AcquireOutcome::Acquired(Lease::new(held.fence, held.expires_at).observed_at(now));
    }
    AcquireOutcome::Contended(Contention::free_in(free_in(held.expires_at, now)))
}

impl LockBackend for MemoryBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.state().acquire(request, self.now())
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let key = {
            let mut state = self.state();
            let key = match state.owned(lock_id, self.now()) {
                Ok(key) => key.clone(),
                Err(reason) => return Ok(ReleaseOutcome::Absent(Some(reason))),
            };
            state.locks.remove(&key);
            state.owners.remove(lock_id);
            key
        };
        self.shared.hub.wake(key.as_str());
        Ok(ReleaseOutcome::Released)
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let mut state = self.state();
        let now = self.now();
        let key = match state.owned(lock_id, now) {
            Ok(key) => key.clone(),
            Err(reason) => return Ok(ExtendOutcome::Absent(Some(reason))),
        };
        let expires_at = now.plus(ttl);
        let held = state.locks.get_mut(&key).ok_or_else(|| LockError::internal("an owned lock is not stored"))?;
        held.expires_at = expires_at;
        Ok(ExtendOutcome::Extended(Extension::new(expires_at)))
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let mut state = self.state();
        let now = self.now();
        let locked = state.locks.get(key).is_some_and(|held| is_live(held.expires_at, now));
        if self.cleanup_in_is_locked && !locked {
            state.purge(now, Some(key));
        }
        Ok(locked)
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let state = self.state();
        let now = self.now();
        let key = match query {
            Lookup::Key(key) => key,
            Lookup::LockId(lock_id) => match state.owned(lock_id, now) {
                Ok(key) => key,
                Err(_) => return Ok(None),
            },
        };
        let live = state.locks.get(key).filter(|held| is_live(held.expires_at, now));
        Ok(live.map(|held| {
            LockInfo::new(key.clone(), held.lock_id.clone(), held.fence, held.acquired_at, held.expires_at, now)
                .with_label(held.label.clone())
        }))
    }

    async fn purge_expired(&self) -> Result<u64> {
        Ok(self.state().purge(self.now(), None))
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.shared.hub.subscribe(key.as_str())
    }

    async fn health(&self) -> HealthReport {
        let mut report = HealthReport::default();
        report
            .push(HealthStatus::Warn, "storage", "this process's memory")
            .hint("other processes do not see these locks; use sqlite: or a server");
        report
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.clock.clone()
    }
}
