//! What do all requests, guards and background tasks of one locker share?
//!
//! The backend and the clock, the calls to the backend with what every call needs (the names an error is about, the
//! measure of how long it took), and the voice in which loss, waiting and holding are told. Backends do none of this
//! themselves.

use std::sync::Arc;
use std::time::Duration;

use crate::client::release::background::Background;
use crate::client::waiting::place::Rooms;
use crate::events::trace;
use crate::telemetry::{LockEvent, Operation, Reason};
use crate::time::Clock;
use crate::{
    AnyBackend, BootTime, ErrorCode, ExtendOutcome, Key, LockBackend, LockError, LockId, LockInfo, LockOptions, Lookup,
    LossReason, ReleaseOutcome, Result, Ttl,
};

/// What every request, guard and background task of one locker shares.
pub(crate) struct Shared {
    pub(crate) backend: AnyBackend,
    pub(crate) clock: Arc<dyn Clock>,
    /// Who waits for which key.
    pub(crate) rooms: Rooms,
    /// Releases and clean-up that nobody awaits any more.
    pub(crate) background: Background,
    /// What requests begin with.
    pub(crate) defaults: LockOptions,
    /// The backend's one word, for metrics: asked once, because the answer never changes.
    name: Arc<str>,
}

impl Shared {
    pub(crate) fn new(backend: AnyBackend, clock: Arc<dyn Clock>, defaults: LockOptions) -> Self {
        let name: Arc<str> = Arc::from(backend.capabilities().backend.as_ref());
        trace::describe_metrics(&name);
        let (rooms, background) = (Rooms::default(), Background::default());
        Self { backend, clock, rooms, background, defaults, name }
    }

    pub(crate) async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let measure = self.measure(Operation::Release);
        let outcome = self.backend.release(lock_id).await;
        measure.end(outcome.as_ref().map(|outcome| outcome.is_released()));
        outcome.map_err(|error| error.with_lock_id(lock_id))
    }

    pub(crate) async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let measure = self.measure(Operation::Extend);
        let outcome = self.backend.extend(lock_id, ttl).await;
        measure.end(outcome.as_ref().map(|outcome| outcome.is_extended()));
        outcome.map_err(|error| error.with_lock_id(lock_id))
    }

    pub(crate) async fn is_locked(&self, key: &Key) -> Result<bool> {
        let measure = self.measure(Operation::IsLocked);
        let outcome = self.backend.is_locked(key).await;
        measure.end(outcome.as_ref().map(|_| true));
        outcome.map_err(|error| error.with_key(key))
    }

    pub(crate) async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let measure = self.measure(Operation::Lookup);
        let outcome = self.backend.lookup(query).await;
        measure.end(outcome.as_ref().map(|_| true));
        outcome.map_err(|error| match query {
            Lookup::Key(key) => error.with_key(key),
            Lookup::LockId(lock_id) => error.with_lock_id(lock_id),
        })
    }

    /// Starts the measure of one call to the backend. Dropped before its end, the call counts as abandoned.
    pub(crate) fn measure(&self, operation: Operation) -> Measure {
        let clock = self.clock.clone();
        Measure { name: self.name.clone(), started: clock.boot(), clock, operation, outcome: "abandoned" }
    }

    /// A lock that was held is not any more, and nobody released it.
    pub(crate) fn tell_loss(&self, key: &Key, lock_id: &LockId, reason: LossReason, held_for: Duration) {
        trace::lost(&self.name, key, lock_id, reason, held_for);
        let event = LockEvent::new(Operation::Hold, held_for)
            .named(Some(key), Some(lock_id))
            .with_reason(Some(Reason::Lost(reason)));
        self.backend.observe(&event);
    }

    /// A lock was given back, or left to its lease.
    pub(crate) fn tell_hold(&self, held_for: Duration) {
        trace::held(&self.name, held_for);
    }

    /// An effort to get a lock has ended.
    pub(crate) fn tell_wait<T>(&self, key: &Key, since: BootTime, result: &Result<T>) {
        let waited = self.clock.boot().since(since);
        let code = result.as_ref().err().map(LockError::code);
        trace::waited(&self.name, waited, code.map_or("ok", ErrorCode::as_label));
        if let Some(code @ (ErrorCode::AcquisitionTimeout | ErrorCode::Aborted)) = code {
            let event =
                LockEvent::new(Operation::Wait, waited).named(Some(key), None).with_reason(Some(Reason::Error(code)));
            self.backend.observe(&event);
        }
    }
}

/// The measure of one call to the backend: recorded when it is dropped.
pub(crate) struct Measure {
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    started: BootTime,
    operation: Operation,
    outcome: &'static str,
}

impl Measure {
    /// The call was answered: done, not done, or failed.
    pub(crate) fn end(mut self, outcome: Result<bool, &LockError>) {
        self.outcome = match outcome {
            Ok(true) => "ok",
            Ok(false) if self.operation == Operation::Acquire => "locked",
            Ok(false) => "absent",
            Err(error) => error.code().as_label(),
        };
    }
}

impl Drop for Measure {
    fn drop(&mut self) {
        trace::operation(&self.name, self.operation, self.outcome, self.clock.boot().since(self.started));
    }
}
