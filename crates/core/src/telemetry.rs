//! Who is told what the locks do?
//!
//! [`Telemetry`] wraps a backend and tells a sink of every operation, failing ones and those of guards included, with its outcome
//! and its duration. Names are hashes; raw ones come only where a predicate says so, and never for names that look like
//! secrets. The sink runs on a thread of its own behind a bounded queue: a slow one loses events, a panicking one loses that event,
//! and no lock operation ever waits for either.
//!
//! With the feature `tracing` each operation is also an event of target `syncguard`; with `metrics` it is counted and
//! timed under `syncguard_operation_seconds`. Keys never become labels.

mod deny;
mod event;
mod pipe;

use std::sync::Arc;
use std::time::Duration;

pub use deny::is_sensitive;
pub use event::{LockEvent, Operation, Reason};
use pipe::Pipe;

use crate::time::{BootTime, Clock};
use crate::{
    AbsentReason, AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, HealthReport, Key, LockBackend,
    LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, Ttl, WakeHint,
};

/// A backend that tells a sink of every operation.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
/// use syncguard_core::telemetry::Telemetry;
/// use syncguard_core::{Locker, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let log = seen.clone();
/// let backend = Telemetry::new(MemoryBackend::new(), move |event| log.lock().unwrap().push(event.operation));
/// let telemetry = backend.handle();
///
/// Locker::new(backend).lock("k").run(async |_| ()).await?;
///
/// assert!(telemetry.flush(Duration::from_secs(1)));
/// assert_eq!(seen.lock().unwrap().len(), 2); // acquire, release
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Telemetry<B> {
    backend: B,
    clock: Arc<dyn Clock>,
    pipe: Arc<Pipe>,
}

/// The sink's side of a [`Telemetry`], which outlives its move into a locker.
#[derive(Clone, Debug)]
pub struct TelemetryHandle(Arc<Pipe>);

impl<B: LockBackend> Telemetry<B> {
    /// Tells `sink` of every operation, with hashes in the place of names.
    pub fn new(backend: B, sink: impl FnMut(&LockEvent) + Send + 'static) -> Self {
        Self::with_names(backend, |_| false, sink)
    }

    /// Tells `sink` raw names as well, for the events that `reveal` allows and names that do not look like secrets.
    pub fn with_names(
        backend: B,
        reveal: impl FnMut(&LockEvent) -> bool + Send + 'static,
        sink: impl FnMut(&LockEvent) + Send + 'static,
    ) -> Self {
        let clock = backend.clock();
        Self { backend, clock, pipe: Arc::new(Pipe::start(reveal, sink)) }
    }

    /// For flushing and for the count of lost events.
    pub fn handle(&self) -> TelemetryHandle {
        TelemetryHandle(self.pipe.clone())
    }

    fn tell(
        &self,
        operation: Operation,
        names: Names<'_>,
        started: BootTime,
        reason: Result<Option<Reason>, &LockError>,
    ) {
        let reason = reason.unwrap_or_else(|error| Some(Reason::Error(error.code())));
        let event = LockEvent {
            operation,
            key_hash: names.key.map(Key::hash),
            lock_id_hash: names.lock_id.map(LockId::hash),
            reason,
            elapsed: self.clock.boot().since(started),
            key: names.key.map(|key| key.as_str().to_owned()),
            lock_id: names.lock_id.map(|id| id.as_str().to_owned()),
        };
        event.emit(&self.backend.capabilities().backend);
        self.pipe.send(event);
    }
}

impl TelemetryHandle {
    /// Waits until the sink has seen every event sent so far. `false` when it did not in time.
    pub fn flush(&self, patience: Duration) -> bool {
        self.0.flush(patience)
    }

    /// How many events a slow sink has lost.
    pub fn lost_events(&self) -> u64 {
        self.0.lost()
    }
}

#[derive(Clone, Copy, Default)]
struct Names<'a> {
    key: Option<&'a Key>,
    lock_id: Option<&'a LockId>,
}

fn absent(reason: Option<AbsentReason>) -> Reason {
    match reason {
        Some(AbsentReason::Expired) => Reason::Expired,
        Some(AbsentReason::NotFound) | None => Reason::NotFound,
    }
}

impl<B: LockBackend> LockBackend for Telemetry<B> {
    type Fence = B::Fence;

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome<B::Fence>> {
        let started = self.clock.boot();
        let outcome = self.backend.acquire(request).await;
        let reason = outcome.as_ref().map(|outcome| match outcome {
            AcquireOutcome::Acquired(_) => None,
            AcquireOutcome::Contended(_) => Some(Reason::Locked),
        });
        let names = Names { key: Some(request.key), lock_id: Some(request.lock_id) };
        self.tell(Operation::Acquire, names, started, reason);
        outcome
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let started = self.clock.boot();
        let outcome = self.backend.release(lock_id).await;
        let reason = outcome.as_ref().map(|outcome| match outcome {
            ReleaseOutcome::Released => None,
            ReleaseOutcome::Absent(reason) => Some(absent(*reason)),
        });
        let names = Names { key: None, lock_id: Some(lock_id) };
        self.tell(Operation::Release, names, started, reason);
        outcome
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let started = self.clock.boot();
        let outcome = self.backend.extend(lock_id, ttl).await;
        let reason = outcome.as_ref().map(|outcome| match outcome {
            ExtendOutcome::Extended { .. } => None,
            ExtendOutcome::Absent(reason) => Some(absent(*reason)),
        });
        let names = Names { key: None, lock_id: Some(lock_id) };
        self.tell(Operation::Extend, names, started, reason);
        outcome
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let started = self.clock.boot();
        let outcome = self.backend.is_locked(key).await;
        let reason = outcome.as_ref().map(|_| None);
        self.tell(Operation::IsLocked, Names { key: Some(key), lock_id: None }, started, reason);
        outcome
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo<B::Fence>>> {
        let started = self.clock.boot();
        let outcome = self.backend.lookup(query).await;
        let names = match query {
            Lookup::Key(key) => Names { key: Some(key), lock_id: None },
            Lookup::LockId(lock_id) => Names { key: None, lock_id: Some(lock_id) },
        };
        let reason = outcome.as_ref().map(|info| info.is_none().then_some(Reason::NotFound));
        self.tell(Operation::Lookup, names, started, reason);
        outcome
    }

    async fn purge_expired(&self) -> Result<u64> {
        let started = self.clock.boot();
        let outcome = self.backend.purge_expired().await;
        let reason = outcome.as_ref().map(|_| None);
        self.tell(Operation::Purge, Names::default(), started, reason);
        outcome
    }

    async fn wake(&self, key: &Key) -> WakeHint {
        self.backend.wake(key).await
    }

    async fn health(&self) -> HealthReport {
        self.backend.health().await
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.backend.new_lock_id(key)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}
