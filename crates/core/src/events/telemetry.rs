//! Who is told what the locks do?
//!
//! [`Telemetry`] wraps a backend and tells a sink of every operation, failing ones and those of guards included, with
//! its outcome and its duration. Names are hashes; raw ones come only where a predicate says so, and never for names
//! that look like secrets. The sink runs on a thread of its own behind a bounded queue: a slow one loses events, a
//! panicking one loses that event, and no lock operation ever waits for either.
//!
//! With the feature `tracing` each operation is also an event of target `syncguard`. Metrics need no wrapper: with the
//! feature `metrics` every [`Locker`](crate::Locker) records `syncguard_operation_seconds`, `syncguard_wait_seconds`,
//! `syncguard_hold_seconds` and `syncguard_lost_total` by itself. Keys never become labels.

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
    AbsentReason, AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, HealthReport, Inspector, Key,
    LockBackend, LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, Ttl, WakeHint,
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

    /// Returns the handle for flushing and for the count of lost events.
    pub fn handle(&self) -> TelemetryHandle {
        TelemetryHandle(self.pipe.clone())
    }

    fn tell<'a>(&'a self, operation: Operation, names: Names<'a>) -> Telling<'a, B> {
        let started = self.clock.boot();
        Telling { telemetry: self, operation, names, started, reason: Some(Reason::Abandoned) }
    }
}

impl TelemetryHandle {
    /// Waits until the sink has seen every event sent so far. `false` when it did not in time.
    pub fn flush(&self, patience: Duration) -> bool {
        self.0.flush(patience)
    }

    /// Returns how many events a slow sink has lost.
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
        Some(AbsentReason::NotFound) => Reason::NotFound,
        None => Reason::Absent,
    }
}

/// A call that is under way. Dropped without its end, it is told as abandoned: a client's own timeout must not be
/// invisible.
struct Telling<'a, B: LockBackend> {
    telemetry: &'a Telemetry<B>,
    operation: Operation,
    names: Names<'a>,
    started: BootTime,
    reason: Option<Reason>,
}

impl<B: LockBackend> Telling<'_, B> {
    fn end(mut self, reason: Result<Option<Reason>, &LockError>) {
        self.reason = reason.unwrap_or_else(|error| Some(Reason::Error(error.code())));
    }
}

impl<B: LockBackend> Drop for Telling<'_, B> {
    fn drop(&mut self) {
        let elapsed = self.telemetry.clock.boot().since(self.started);
        let event =
            LockEvent::new(self.operation, elapsed).named(self.names.key, self.names.lock_id).with_reason(self.reason);
        event.emit(&self.telemetry.backend.capabilities().backend);
        self.telemetry.pipe.send(event);
    }
}

impl<B: LockBackend> LockBackend for Telemetry<B> {
    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let names = Names { key: Some(request.key), lock_id: Some(request.lock_id) };
        let telling = self.tell(Operation::Acquire, names);
        let outcome = self.backend.acquire(request).await;
        telling.end(outcome.as_ref().map(|outcome| match outcome {
            AcquireOutcome::Acquired(_) => None,
            AcquireOutcome::Contended(_) => Some(Reason::Locked),
        }));
        outcome
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let telling = self.tell(Operation::Release, Names { key: None, lock_id: Some(lock_id) });
        let outcome = self.backend.release(lock_id).await;
        telling.end(outcome.as_ref().map(|outcome| match outcome {
            ReleaseOutcome::Released => None,
            ReleaseOutcome::Absent(reason) => Some(absent(*reason)),
        }));
        outcome
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let telling = self.tell(Operation::Extend, Names { key: None, lock_id: Some(lock_id) });
        let outcome = self.backend.extend(lock_id, ttl).await;
        telling.end(outcome.as_ref().map(|outcome| match outcome {
            ExtendOutcome::Extended(_) => None,
            ExtendOutcome::Absent(reason) => Some(absent(*reason)),
        }));
        outcome
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let telling = self.tell(Operation::IsLocked, Names { key: Some(key), lock_id: None });
        let outcome = self.backend.is_locked(key).await;
        telling.end(outcome.as_ref().map(|_| None));
        outcome
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let names = match query {
            Lookup::Key(key) => Names { key: Some(key), lock_id: None },
            Lookup::LockId(lock_id) => Names { key: None, lock_id: Some(lock_id) },
        };
        let telling = self.tell(Operation::Lookup, names);
        let outcome = self.backend.lookup(query).await;
        // That nothing is there is an answer, not a failure.
        telling.end(outcome.as_ref().map(|_| None));
        outcome
    }

    async fn purge_expired(&self) -> Result<u64> {
        let telling = self.tell(Operation::Purge, Names::default());
        let outcome = self.backend.purge_expired().await;
        telling.end(outcome.as_ref().map(|_| None));
        outcome
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.backend.subscribe(key).await
    }

    async fn health(&self) -> HealthReport {
        self.backend.health().await
    }

    fn inspector(&self) -> Option<Inspector> {
        self.backend.inspector()
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.backend.new_lock_id(key)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn observe(&self, event: &LockEvent) {
        event.emit(&self.backend.capabilities().backend);
        self.pipe.send(event.clone());
        self.backend.observe(event);
    }
}
