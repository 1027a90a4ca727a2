//! How does the suite run on the reference backend?
//!
//! Memory holds typed values, so nothing foreign can get into it. [`Foreign`] lends it places that hold something else,
//! in order that the reference leaves no case out.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::time::Clock;
use syncguard_core::wake::WakeHint;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, HealthReport, Inspector, Key, LockBackend, LockError,
    LockId, LockInfo, Lookup, MemoryBackend, ReleaseOutcome, Result, Ttl,
};

use crate::{Budget, Harness, Poison, Unsupported};

/// The harness of [`MemoryBackend`]: the suite proves itself on it, and yours can be as short.
#[derive(Debug, Default)]
pub struct MemoryHarness {
    backend: Foreign,
    elsewhere: Foreign,
}

impl MemoryHarness {
    /// Two empty memories.
    pub fn start() -> Self {
        Self::default()
    }
}

impl Harness for MemoryHarness {
    type Backend = Foreign;

    async fn backend(&self) -> Foreign {
        self.backend.clone()
    }

    async fn elsewhere(&self) -> Foreign {
        self.elsewhere.clone()
    }

    async fn cleaning(&self) -> Result<Foreign, Unsupported> {
        Ok(Foreign { memory: self.backend.memory.cleaning_up(), ..self.backend.clone() })
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        self.backend.memory.set_counter(key, value);
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        Ok(self.backend.memory.counter(key))
    }

    async fn damage_counter(&self, key: &Key) -> Result<(), Unsupported> {
        self.backend.damaged.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        Ok(())
    }

    async fn poison(&self, key: &Key, _: Poison) -> Result<(), Unsupported> {
        self.backend.places.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone());
        Ok(())
    }

    // The storage is this process: it cannot restart without the case.
    async fn restart(&self) -> Result<(), Unsupported> {
        Ok(())
    }

    fn budget(&self) -> Budget {
        Budget { contended_cycles: 100_000, ..Budget::default() }
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(100)
    }
}

/// A [`MemoryBackend`] some of whose places hold something that is no lock.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    memory: MemoryBackend,
    places: Arc<Mutex<HashSet<Key>>>,
    damaged: Arc<Mutex<HashSet<Key>>>,
}

impl Foreign {
    fn look(&self, key: &Key) -> Result<()> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.contains(key) {
            return Err(LockError::internal("the stored value is not a lock").with_key(key));
        }
        Ok(())
    }
}

impl LockBackend for Foreign {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.look(request.key)?;
        if self.damaged.lock().unwrap_or_else(PoisonError::into_inner).contains(request.key) {
            return Err(LockError::internal("the stored counter is not a number").with_key(request.key));
        }
        self.memory.acquire(request).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.memory.release(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.memory.extend(lock_id, ttl).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.look(key)?;
        self.memory.is_locked(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        if let Lookup::Key(key) = query {
            self.look(key)?;
        }
        self.memory.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.memory.purge_expired().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.memory.subscribe(key).await
    }

    async fn health(&self) -> HealthReport {
        self.memory.health().await
    }

    fn inspector(&self) -> Option<Inspector> {
        self.memory.inspector()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }
}
