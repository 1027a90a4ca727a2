//! How is a lock got, by somebody who may be cut off at any moment?
//!
//! One rule covers lost replies, timeouts and dropped futures. The lock id is made *before* the server hears of it; an
//! attempt whose outcome is unknown is repeated with the same id, and the backend owns up if it had acted. The guard's
//! deadline then counts from the **first** send. Whoever leaves with an unknown outcome hands the id to the `clean_up`.
//!
//! When to ask is decided in `room`; here it is done.

use std::sync::Arc;

use crate::client::cancellation::cancellable;
use crate::client::holding::belief::Granted;
use crate::client::holding::handle::NewHold;
use crate::client::plan::Plan;
use crate::client::release::clean_up;
use crate::client::release::in_flight::InFlight;
use crate::client::shared::Shared;
use crate::client::waiting::giving_up::Effort;
use crate::client::waiting::place::Place;
use crate::client::waiting::room::{Event, Step};
use crate::contract::erased::OwnedRequest;
use crate::events::trace;
use crate::sync::{Handle, Instant, timeout_at};
use crate::{
    AcquireOutcome, BootTime, Contention, ErrorCode, Guard, Lease, LockBackend, LockError, LockHandle, LockId, Locker,
    Result,
};

/// Tries once, without a wall of its own: the backend bounds each call.
pub(crate) async fn once(locker: &Locker, plan: &Plan) -> Result<Result<Guard, Contention>> {
    let mut acquisition = Acquisition::new(&locker.0, plan);
    let tried = cancellable(plan, async { Ok(acquisition.attempt(None).await) }).await?;
    match tried {
        Tried::Acquired(guard) => Ok(Ok(guard)),
        Tried::Contended(contention) => Ok(Err(contention)),
        Tried::Failed(error) => Err(error),
        Tried::CutOff => Err(LockError::internal("a single try has no end of its budget")),
    }
}

/// Tries until it has the lock or the budget is used.
pub(crate) async fn until_acquired(locker: &Locker, plan: &Plan) -> Result<Guard> {
    let mut acquisition = Acquisition::new(&locker.0, plan);
    let since = acquisition.effort.started_boot;
    let result = cancellable(plan, acquisition.drive()).await;
    locker.0.tell_wait(&plan.key, since, &result);
    result
}

enum Tried {
    Acquired(Guard),
    Contended(Contention),
    Failed(LockError),
    /// By the end of the budget.
    CutOff,
}

/// One caller's effort for one key.
struct Acquisition<'a> {
    shared: &'a Arc<Shared>,
    plan: &'a Plan,
    /// Made before the server hears of it, so that a lost reply can be owned up to. Changed only by
    /// [`change_id`](Self::change_id).
    lock_id: LockId,
    /// When the first request left whose outcome nobody knows. While it is `Some`, this id may own the lock, so
    /// whoever drops this value must hand the id to the clean-up. Cleared only by an answer that settles it.
    unknown_since: Option<BootTime>,
    effort: Effort,
    /// Where clean-up runs if this effort is dropped outside of a runtime.
    runtime: Option<Handle>,
}

impl<'a> Acquisition<'a> {
    fn new(shared: &'a Arc<Shared>, plan: &'a Plan) -> Self {
        Self {
            lock_id: shared.backend.new_lock_id(&plan.key),
            shared,
            plan,
            unknown_since: None,
            effort: Effort::new(plan.started, &*shared.clock),
            runtime: Handle::try_current().ok(),
        }
    }

    /// Does what the room decides, until it has the lock or nothing is left to do.
    async fn drive(&mut self) -> Result<Guard> {
        let (shared, plan, wall) = (self.shared, self.plan, self.effort.wall(&self.plan.policy));
        let (mut place, mut step) = Place::new(&shared.rooms, &plan.key, &plan.policy, self.effort.started);
        loop {
            step = match step {
                Step::Ask => match self.attempt(wall).await {
                    Tried::Acquired(guard) => {
                        place.acquired(plan.ttl);
                        return Ok(guard);
                    }
                    Tried::Contended(contention) => place.on(Event::Contended(contention)),
                    Tried::CutOff => place.on(Event::CutOff),
                    Tried::Failed(error) if !error.is_transient() => return Err(error),
                    Tried::Failed(error) => {
                        self.effort.failed(&error);
                        place.on(Event::Failed)
                    }
                },
                Step::Sleep(until) | Step::Listen(until) if !place.is_subscribed() => {
                    match timeout_at(until, shared.backend.subscribe(&plan.key)).await {
                        Ok(hint) => place.subscribed(hint),
                        Err(_) => place.on(Event::Moved),
                    }
                }
                Step::Sleep(until) | Step::Listen(until) => {
                    let event = place.wait(until, matches!(step, Step::Listen(_))).await;
                    place.on(event)
                }
                Step::GiveUp => {
                    let known = place.what_is_known();
                    return Err(self.effort.in_vain(&*shared.clock, &plan.key, known));
                }
            };
        }
    }

    async fn attempt(&mut self, wall: Option<Instant>) -> Tried {
        self.effort.attempt();
        self.leave_a_hopeless_id();
        let sent = self.unknown_since.unwrap_or_else(|| self.shared.clock.boot());
        let request = OwnedRequest {
            key: self.plan.key.clone(),
            lock_id: self.lock_id.clone(),
            ttl: self.plan.ttl,
            label: self.plan.label.clone(),
        };
        let call = InFlight::start(self.shared, self.runtime.as_ref(), request, sent, self.unknown_since.is_some());
        let outcome = match wall {
            None => Some(call.await),
            Some(wall) => timeout_at(wall, call).await.ok(),
        };
        match outcome {
            Some(outcome) => self.judge(outcome, sent),
            None => {
                // Dropping the call gave it, and the id with what was unknown of it before, to the background.
                self.unknown_since = None;
                self.effort.cut_off();
                Tried::CutOff
            }
        }
    }

    fn judge(&mut self, outcome: Result<AcquireOutcome>, sent: BootTime) -> Tried {
        match outcome {
            Ok(AcquireOutcome::Acquired(lease)) => self.granted(lease, sent),
            Ok(AcquireOutcome::Contended(contention)) => {
                // Certain now, but an earlier request under this id may still be on its way.
                if self.unknown_since.is_some() {
                    self.change_id();
                }
                self.effort.contended(contention);
                Tried::Contended(contention)
            }
            Err(error) => {
                if error.is_ambiguous() {
                    self.unknown_since = Some(sent);
                }
                Tried::Failed(error.with_key(&self.plan.key).with_lock_id(&self.lock_id))
            }
        }
    }

    fn granted(&mut self, lease: Lease, sent: BootTime) -> Tried {
        let received = self.shared.clock.boot();
        let granted = Granted { sent, ttl: self.plan.ttl, expires_at: lease.expires_at, left: lease.left() };
        if received >= granted.deadline() {
            self.unknown_since = Some(sent);
            self.change_id();
            let late =
                LockError::new(ErrorCode::NetworkTimeout, "the lock was granted after its lease had already ended")
                    .with_hint("the ttl is shorter than a round trip to the backend");
            return Tried::Failed(late.with_key(&self.plan.key));
        }
        trace::fence_near_limit(lease.fence, &self.plan.key);
        self.unknown_since = None;
        Tried::Acquired(Guard::new(LockHandle::new(NewHold {
            shared: self.shared.clone(),
            key: self.plan.key.clone(),
            lock_id: self.lock_id.clone(),
            fence: lease.fence,
            granted,
            max_hold: self.plan.max_hold,
            on_release_error: self.plan.on_release_error.clone(),
        })))
    }

    /// An unknown outcome can be owned up to only while its lease could still be alive.
    fn leave_a_hopeless_id(&mut self) {
        if self.unknown_since.is_some_and(|sent| self.shared.clock.boot() >= sent + self.plan.ttl.duration()) {
            self.change_id();
        }
    }

    fn change_id(&mut self) {
        self.reap();
        self.lock_id = self.shared.backend.new_lock_id(&self.plan.key);
    }

    fn reap(&mut self) {
        if let Some(sent) = self.unknown_since.take() {
            clean_up::reap(self.shared, self.runtime.as_ref(), self.lock_id.clone(), sent + self.plan.ttl.duration());
        }
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        self.reap();
    }
}
