//! What does a lock look like with no storage at all?
//!
//! One map behind a mutex, on tokio's clock, so that tests pass time instead of sleeping. It is the reference of the
//! contract and a backend for tests and single-process programs; other processes do not see it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard};
use crate::time::{CLEANUP_GUARD_MS, Clock, TokioClock, free_in, is_live};
use crate::wake::{WakeHint, WakeHub};
use crate::{
    AbsentReason, AcquireOutcome, AcquireRequest, AskOutcome, Capabilities, Contention, Counts, Cursor, ExtendOutcome,
    Extension, Fence, HealthReport, HealthStatus, Inspect, Inspector, Key, Label, Lease, ListRequest, LockBackend,
    LockError, LockId, LockInfo, Lookup, Page, ReleaseOutcome, Result, TimeAuthority, Timestamp, Ttl,
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
    /// The hub of those who watch all locks; they must not take a hint away from a waiter.
    changes: WakeHub,
}

/// The one topic of who watches all locks.
const ANY_KEY: &str = "";

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
    ttl: Ttl,
    is_asked_for: bool,
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
    /// Makes an empty backend on tokio's clock, which tests can pause.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(TokioClock))
    }

    /// Makes an empty backend whose server time and whose guards' local time come from `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { state: Mutex::default(), clock, hub: WakeHub::default(), changes: WakeHub::default() };
        Self { shared: Arc::new(shared), cleanup_in_is_locked: false }
    }

    /// Returns a backend with the same locks whose `is_locked` also removes the key's lock if it has been dead for a
    /// while.
    #[must_use]
    pub fn cleaning_up(&self) -> Self {
        Self { shared: self.shared.clone(), cleanup_in_is_locked: true }
    }

    /// Sets a key's fence counter, as a bad restore would. For tests of the limits.
    pub fn set_counter(&self, key: &Key, value: u64) {
        self.state().counters.insert(key.clone(), value);
    }

    /// Returns the key's fence counter.
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
        let fence = Fence::new(counter.saturating_add(1))?;
        self.counters.insert(request.key.clone(), fence.get());
        self.owners.insert(request.lock_id.clone(), request.key.clone());
        let expires_at = now.plus(request.ttl);
        let stored = Stored {
            lock_id: request.lock_id.clone(),
            fence,
            acquired_at: now,
            expires_at,
            label: request.label.cloned(),
            ttl: request.ttl,
            is_asked_for: false,
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

impl Stored {
    fn info(&self, key: &Key, now: Timestamp) -> LockInfo {
        LockInfo::new(key.clone(), self.lock_id.clone(), self.fence, self.acquired_at, self.expires_at, now)
            .with_label(self.label.clone())
            .with_ttl(Some(self.ttl))
            .with_asked_for(self.is_asked_for)
    }
}

fn answer_held(held: &Stored, asking: &LockId, now: Timestamp) -> AcquireOutcome {
    if held.lock_id == *asking {
        return AcquireOutcome::Acquired(Lease::new(held.fence, held.expires_at).observed_at(now));
    }
    AcquireOutcome::Contended(Contention::free_in(free_in(held.expires_at, now)))
}

impl LockBackend for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let outcome = self.state().acquire(request, self.now());
        self.shared.changes.wake(ANY_KEY);
        outcome
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
        self.shared.changes.wake(ANY_KEY);
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
        held.ttl = ttl;
        Ok(ExtendOutcome::Extended(Extension::new(expires_at).asked_for(held.is_asked_for)))
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
        Ok(live.map(|held| held.info(key, now)))
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

    fn inspector(&self) -> Option<Inspector> {
        Some(Inspector::new(self.clone()))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.shared.clock.clone()
    }
}

impl Inspect for MemoryBackend {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        let now = self.now();
        let state = self.state();
        let after = request.cursor.map(Cursor::as_str);
        let mut found: Vec<&Key> = state
            .locks
            .iter()
            .filter(|(key, held)| {
                let wanted = key.as_str().starts_with(request.prefix) && after.is_none_or(|after| key.as_str() > after);
                wanted && is_live(held.expires_at, now)
            })
            .map(|(key, _)| key)
            .collect();
        found.sort_unstable_by_key(|key| key.as_str());
        let size = usize::try_from(request.page_size).unwrap_or(usize::MAX).max(1);
        let next = if found.len() > size { found.get(size - 1).map(|key| Cursor::new(key.as_str())) } else { None };
        let locks = found.into_iter().take(size).filter_map(|key| Some(state.locks.get(key)?.info(key, now)));
        Ok(Page::new(locks.collect(), next))
    }

    async fn count(&self) -> Result<Counts> {
        let now = self.now();
        let state = self.state();
        let live = state.locks.values().filter(|held| is_live(held.expires_at, now)).count();
        let counted = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Ok(Counts::new(counted(live), counted(state.counters.len())))
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        let mut state = self.state();
        let Ok(key) = state.owned(lock_id, self.now()).cloned() else { return Ok(AskOutcome::Absent) };
        let held = state.locks.get_mut(&key).ok_or_else(|| LockError::internal("an owned lock is not stored"))?;
        held.is_asked_for = true;
        Ok(AskOutcome::Asked)
    }

    async fn changes(&self) -> WakeHint {
        self.shared.changes.subscribe(ANY_KEY)
    }
}
