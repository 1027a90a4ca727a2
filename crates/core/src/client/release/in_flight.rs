//! What becomes of a request whose caller leaves before the answer?
//!
//! It goes on in the background, and whatever it gets is given back: the server may have acted, and nobody else knows
//! the id.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::client::release::clean_up;
use crate::client::shared::{Measure, Shared};
use crate::contract::erased::{OwnedRequest, PendingAcquire};
use crate::sync::Handle;
use crate::telemetry::Operation;
use crate::{AcquireOutcome, BootTime, LockId, Result};

/// An acquire on the wire. Dropped before its answer it goes on in the background, and what it got is given back.
pub(crate) struct InFlight {
    call: Option<PendingAcquire>,
    measure: Option<Measure>,
    shared: Arc<Shared>,
    runtime: Option<Handle>,
    lock_id: LockId,
    lease_end: BootTime,
    /// Whether an earlier request under this id has an unknown outcome. Then no answer to this one settles the id.
    was_unknown: bool,
}

impl InFlight {
    /// Sends the request. `sent` is when the first request under this id left whose outcome is unknown, or now.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        runtime: Option<&Handle>,
        request: OwnedRequest,
        sent: BootTime,
        was_unknown: bool,
    ) -> Self {
        Self {
            lock_id: request.lock_id.clone(),
            lease_end: sent + request.ttl.duration(),
            call: Some(shared.backend.acquire_owned(request)),
            measure: Some(shared.measure(Operation::Acquire)),
            shared: shared.clone(),
            runtime: runtime.cloned(),
            was_unknown,
        }
    }
}

impl Future for InFlight {
    type Output = Result<AcquireOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let call = self.call.as_mut().expect("an answered call is not polled again");
        let outcome = std::task::ready!(call.as_mut().poll(context));
        self.call = None;
        if let Some(measure) = self.measure.take() {
            measure.end(outcome.as_ref().map(|outcome| matches!(outcome, AcquireOutcome::Acquired(_))));
        }
        Poll::Ready(outcome)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            let abandoned = clean_up::Abandoned {
                call,
                lock_id: self.lock_id.clone(),
                lease_end: self.lease_end,
                was_unknown: self.was_unknown,
            };
            clean_up::finish_and_undo(&self.shared, self.runtime.as_ref(), abandoned);
        }
    }
}
