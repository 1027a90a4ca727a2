//! Would the suite notice?
//!
//! An [`Impostor`] is a backend in memory with exactly one [`Flaw`]; without one it is correct and passes every case.
//! Each flaw names the case that must catch it, and a test runs them all: a suite that an impostor passes proves
//! nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncguard_core::time::{CLEANUP_GUARD_MS, Clock, TokioClock, free_in, is_live};
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Contention, ExtendOutcome, Extension, Fence, Key, Label, Lease, LockError, LockId,
    LockInfo, Lookup, ReleaseOutcome, Result, Timestamp, Ttl, WakeHub,
};

use crate::Break;

mod backend;
mod flaw;
mod harness;
mod inspect;

pub use flaw::Flaw;
pub use harness::ImpostorHarness;

/// A backend in memory that is wrong in one way, or in none.
#[derive(Clone)]
pub struct Impostor {
    flaw: Option<Flaw>,
    namespace: &'static str,
    cleans: bool,
    store: Arc<Mutex<Store>>,
    hub: WakeHub,
    line: Arc<Mutex<Break>>,
    /// How wrong the client's own clock is.
    clock_offset: i64,
    /// Taken across an await by the flaw that a dropped call leaves locked up.
    turn: Arc<tokio::sync::Semaphore>,
}

#[derive(Default)]
struct Store {
    places: HashMap<String, Place>,
    counters: HashMap<String, u64>,
    damaged: HashSet<String>,
    /// What a flaw leaves behind of locks that are over.
    leaked: usize,
    busy_until: Option<tokio::time::Instant>,
    /// Since when a key is listened to, where that takes a moment.
    heard_from: HashMap<String, tokio::time::Instant>,
}

enum Place {
    Lock(Stored),
    Foreign,
}

#[derive(Clone)]
struct Stored {
    key: Key,
    lock_id: LockId,
    fence: Fence,
    acquired_at: Timestamp,
    expires_at: Timestamp,
    label: Option<Label>,
    ttl: Ttl,
    is_asked_for: bool,
}

impl fmt::Debug for Impostor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Impostor({:?})", self.flaw)
    }
}

impl Impostor {
    fn new(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            namespace: "here",
            cleans: false,
            store: Arc::default(),
            hub: WakeHub::default(),
            line: Arc::new(Mutex::new(Break::Mended)),
            clock_offset: 0,
            turn: Arc::new(tokio::sync::Semaphore::new(1)),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The storage's clock.
    fn now(&self) -> Timestamp {
        let offset = if self.has(Flaw::AsksTheClientsClock) { self.clock_offset } else { 0 };
        Timestamp::from_millis(TokioClock.wall().as_millis() + offset)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, key: &Key) -> String {
        let name = key.as_str();
        let name = match self.flaw {
            Some(Flaw::TrimsKeys) => name.trim().to_owned(),
            Some(Flaw::FoldsCase) => name.to_lowercase(),
            Some(Flaw::CutsLongKeys) => name.chars().take(500).collect(),
            _ => name.to_owned(),
        };
        if self.is_shared(&name) { name } else { format!("{}:{name}", self.namespace) }
    }

    fn is_shared(&self, name: &str) -> bool {
        self.has(Flaw::SharesNamespaces) || (self.has(Flaw::HashesWithoutTheNamespace) && name.len() > 400)
    }

    fn is_mine(&self, place: &str) -> bool {
        self.is_shared(place) || place.starts_with(&format!("{}:", self.namespace))
    }

    fn live(&self, expires_at: Timestamp, now: Timestamp) -> bool {
        match self.flaw {
            Some(Flaw::NeverExpires) => true,
            Some(Flaw::NoTolerance) => expires_at > now,
            _ => is_live(expires_at, now),
        }
    }

    fn expiry(&self, now: Timestamp, ttl: Ttl) -> Timestamp {
        now.plus(if self.has(Flaw::IgnoresTtl) { Ttl::DEFAULT } else { ttl })
    }

    /// The place of the live lock of an id.
    fn owned(&self, store: &Store, lock_id: &LockId, now: Timestamp, any: bool) -> Option<String> {
        let mut places = store.places.iter().filter(|(place, _)| self.is_mine(place));
        let found = places.find(|(_, held)| match held {
            Place::Lock(held) => (any || held.lock_id == *lock_id) && self.live(held.expires_at, now),
            Place::Foreign => false,
        });
        found.map(|(place, _)| place.clone())
    }

    fn foreign(&self, key: &Key) -> LockError {
        let message = if self.has(Flaw::LeaksRawNames) {
            format!("the value of {} is not a lock", key.as_str())
        } else {
            "the stored value is not a lock".to_owned()
        };
        LockError::internal(message).with_key(key)
    }

    fn next_fence(&self, store: &mut Store, key: &Key) -> Result<Fence> {
        let place = self.place(key);
        if store.damaged.contains(&place) {
            if !self.has(Flaw::TakesADamagedCounterForZero) {
                return Err(LockError::internal("the stored counter is not a number").with_key(key));
            }
            store.counters.remove(&place);
        }
        let counter = store.counters.get(&place).copied().unwrap_or(0);
        let next = if self.has(Flaw::ReusesAFence) { counter.max(1) } else { counter.saturating_add(1) };
        let next = if self.has(Flaw::NoFenceLimit) { next.min(Fence::MAX.get()) } else { next };
        let fence = Fence::new(next).map_err(|error| {
            if self.has(Flaw::LeaksRawNames) {
                return LockError::internal(format!("the counter of {} is at its limit", key.as_str()));
            }
            error.with_key(key)
        })?;
        store.counters.insert(place, fence.get());
        Ok(fence)
    }

    fn grant(&self, store: &mut Store, request: AcquireRequest<'_>, now: Timestamp) -> Result<AcquireOutcome> {
        let place = self.place(request.key);
        let mut stored = Stored {
            key: request.key.clone(),
            lock_id: request.lock_id.clone(),
            fence: Fence::FIRST,
            acquired_at: now,
            expires_at: self.expiry(now, request.ttl),
            label: request.label.cloned().or_else(|| self.former_label(store, &place)),
            ttl: request.ttl,
            is_asked_for: false,
        };
        if self.has(Flaw::LimitLeavesALock) {
            store.places.insert(place.clone(), Place::Lock(stored.clone()));
        }
        stored.fence = self.next_fence(store, request.key)?;
        if let Some(counted) = request.key.as_str().strip_prefix("fence:").filter(|_| self.has(Flaw::CountersAmongKeys))
        {
            store.counters.remove(&format!("{}:{counted}", self.namespace));
        }
        let lease = Lease::new(stored.fence, stored.expires_at).observed_at(now);
        let former = store.places.insert(place, Place::Lock(stored));
        store.leaked += usize::from(former.is_some() && self.has(Flaw::LeaksIndexes));
        Ok(AcquireOutcome::Acquired(lease))
    }

    /// The answer to an acquire of a place where something is; `None` when it is free.
    fn answer_held(
        &self,
        store: &mut Store,
        request: AcquireRequest<'_>,
        now: Timestamp,
    ) -> Result<Option<AcquireOutcome>> {
        let held = match store.places.get(&self.place(request.key)) {
            None => return Ok(None),
            Some(Place::Foreign) if self.has(Flaw::TakesForeignForFree) => return Ok(None),
            Some(Place::Foreign) => return Err(self.foreign(request.key)),
            Some(Place::Lock(held)) => held.clone(),
        };
        if !self.live(held.expires_at, now) {
            return Ok(None);
        }
        if held.lock_id == *request.lock_id && !self.has(Flaw::NotIdempotent) {
            if self.has(Flaw::AcquiresTwice) {
                return Ok(None);
            }
            let expires_at = if self.has(Flaw::OwningUpExtends) { now.plus(request.ttl) } else { held.expires_at };
            let observed = if self.has(Flaw::OwnsUpAsIfNew) { held.acquired_at } else { now };
            return Ok(Some(AcquireOutcome::Acquired(Lease::new(held.fence, expires_at).observed_at(observed))));
        }
        if self.has(Flaw::ContentionTakesAFence) {
            self.next_fence(store, request.key)?;
        }
        let lie = std::time::Duration::from_secs(if self.has(Flaw::LiesAboutTheWait) { 5 } else { 0 });
        let wait = free_in(held.expires_at, now) + lie;
        Ok(Some(AcquireOutcome::Contended(Contention::free_in(wait))))
    }

    fn dead(&self, now: Timestamp, only: Option<&str>) -> Vec<String> {
        let store = self.store();
        let guard = if self.has(Flaw::CleanupWithoutGuard) { 0 } else { CLEANUP_GUARD_MS };
        store
            .places
            .iter()
            .filter(|(place, _)| self.is_mine(place) && only.is_none_or(|only| only == *place))
            .filter(|(_, held)| match held {
                Place::Lock(_) if self.has(Flaw::CleanupRemovesTheLiving) => true,
                Place::Lock(held) => now.as_millis() - held.expires_at.as_millis() > guard,
                Place::Foreign => false,
            })
            .map(|(place, _)| place.clone())
            .collect()
    }

    fn remove(&self, dead: &[String]) -> u64 {
        let mut store = self.store();
        for place in dead {
            store.places.remove(place);
            if self.has(Flaw::CleanupRemovesTheCounter) {
                store.counters.remove(place);
            }
        }
        u64::try_from(dead.len()).unwrap_or(u64::MAX)
    }
}

/// What the storage does when a call has reached it.
impl Impostor {
    async fn acquire_there(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        if self.has(Flaw::DiesWhenDropped) {
            let turn = self.turn.acquire().await.map_err(|_| LockError::internal("closed"))?;
            turn.forget();
            tokio::task::yield_now().await;
            self.turn.add_permits(1);
        }
        // A network makes every call wait once; a flaw may look before it and act after it.
        let looked = self.has(Flaw::ChecksThenActs).then(|| self.answer_held(&mut self.store(), request, self.now()));
        tokio::task::yield_now().await;
        let mut store = self.store();
        let now = self.now();
        let held = match looked {
            Some(looked) => looked?,
            None => self.answer_held(&mut store, request, now)?,
        };
        match held {
            Some(answer) => Ok(answer),
            None => self.grant(&mut store, request, now),
        }
    }

    async fn release_there(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        tokio::task::yield_now().await;
        let mut store = self.store();
        let any = self.has(Flaw::ReleasesAStrangersLock);
        let Some(place) = self.owned(&store, lock_id, self.now(), any) else {
            let twice = self.has(Flaw::ReleasesTwice);
            return Ok(if twice { ReleaseOutcome::Released } else { ReleaseOutcome::Absent(None) });
        };
        store.places.remove(&place);
        if self.has(Flaw::FreesAllLocksOfAnId) {
            store.places.retain(|_, held| !matches!(held, Place::Lock(held) if held.lock_id == *lock_id));
        }
        if self.has(Flaw::ResetsTheFenceOnRelease) {
            store.counters.remove(&place);
        }
        let is_heard = store.heard_from.get(&place).is_none_or(|from| *from <= tokio::time::Instant::now());
        if !self.has(Flaw::ForgetsItsWaiters) && is_heard {
            self.hub.wake(&place);
            self.hub.wake(inspect::EVERY_PLACE);
        }
        Ok(ReleaseOutcome::Released)
    }

    async fn extend_there(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        if self.has(Flaw::GrantsTwiceAtTheEnd) {
            let alive = self.owned(&self.store(), lock_id, self.now(), false).is_some();
            tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            if alive {
                return Ok(ExtendOutcome::Extended(Extension::new(self.now().plus(ttl))));
            }
        }
        let asked_at = self.now();
        self.not_busy().await;
        let mut store = self.store();
        let now = if self.has(Flaw::ReadsTheClockTooEarly) { asked_at } else { self.now() };
        let seen = if self.has(Flaw::ExtendsTheDead) { Timestamp::from_millis(0) } else { now };
        let mut owned = self.owned(&store, lock_id, seen, self.has(Flaw::ExtendsForAStranger));
        if owned.is_none() && self.has(Flaw::ExtendCreates) {
            let key = Key::new("k")?;
            let place = self.place(&key);
            let made = Stored {
                key,
                lock_id: lock_id.clone(),
                fence: Fence::FIRST,
                acquired_at: now,
                expires_at: now,
                label: None,
                ttl,
                is_asked_for: false,
            };
            store.places.insert(place.clone(), Place::Lock(made));
            owned = Some(place);
        }
        let Some(place) = owned else { return Ok(ExtendOutcome::Absent(None)) };
        let Some(Place::Lock(held)) = store.places.get_mut(&place) else { return Ok(ExtendOutcome::Absent(None)) };
        let replaced = self.expiry(now, ttl);
        let expires_at = match self.flaw {
            Some(Flaw::ExtendAdds) => held.expires_at.plus(ttl),
            Some(Flaw::ExtendNeverShortens) => held.expires_at.max(replaced),
            _ => replaced,
        };
        held.expires_at = expires_at;
        held.ttl = ttl;
        let asked = held.is_asked_for && !self.has(Flaw::TellsNobodyThatItWasAsked);
        let key = held.key.clone();
        if self.has(Flaw::ExtendTakesAFence) {
            self.next_fence(&mut store, &key)?;
        }
        Ok(ExtendOutcome::Extended(Extension::new(expires_at).asked_for(asked)))
    }

    async fn is_locked_there(&self, key: &Key) -> Result<bool> {
        tokio::task::yield_now().await;
        let place = self.place(key);
        let now = self.now();
        let locked = match self.store().places.get(&place) {
            Some(Place::Lock(held)) if self.has(Flaw::NoToleranceInIsLocked) => held.expires_at > now,
            Some(Place::Lock(held)) => self.live(held.expires_at, now),
            Some(Place::Foreign) => !self.has(Flaw::TakesForeignForFree),
            None => false,
        };
        if !locked && (self.cleans || self.has(Flaw::AlwaysCleansUp)) {
            self.remove(&self.dead(now, Some(&place)));
        }
        Ok(locked)
    }

    async fn lookup_there(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        tokio::task::yield_now().await;
        let mut store = self.store();
        let now = self.now();
        let seen = if self.has(Flaw::LookupShowsTheDead) { Timestamp::from_millis(0) } else { now };
        let place = match query {
            Lookup::Key(key) => Some(self.place(key)),
            Lookup::LockId(lock_id) => self.owned(&store, lock_id, seen, false),
        };
        let held = match place.and_then(|place| store.places.get_mut(&place)) {
            Some(Place::Lock(held)) if self.live(held.expires_at, seen) => held,
            Some(Place::Foreign) => match query {
                Lookup::Key(key) => return Err(self.foreign(key)),
                Lookup::LockId(_) => return Ok(None),
            },
            _ => return Ok(None),
        };
        if self.has(Flaw::LookupExtends) {
            held.expires_at = Timestamp::from_millis(held.expires_at.as_millis() + 1_000);
        }
        Ok(Some(held.info(now)))
    }
}
