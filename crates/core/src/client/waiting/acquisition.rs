//! How is a lock got, by somebody who may be cut off at any moment?
//!
//! One rule covers lost replies, timeouts and dropped futures. The lock id is made *before* the server hears of it; an
//! attempt whose outcome is unknown is repeated with the same id, and the backend owns up if it had acted. The guard's
//! deadline then counts from the **first** send. Whoever leaves with an unknown outcome hands the id to the `clean_up`.
//!
//! Waiting follows the schedule of `retry`. A wake hint, or the known end of the holder's lease, leads to an extra
//! attempt that consumes no retry and does not move the schedule. Among the waiters of one process the `queue` decides
//! who asks.

use std::sync::Arc;
use std::time::Duration;

use crate::client::cancellation::cancellable;
use crate::client::holding::belief::Granted;
use crate::client::holding::handle::NewHold;
use crate::client::plan::Plan;
use crate::client::release::clean_up;
use crate::client::release::in_flight::InFlight;
use crate::client::shared::Shared;
use crate::client::waiting::queue::{Place, Turn};
use crate::contract::erased::OwnedRequest;
use crate::events::trace;
use crate::seeded::{self, SeededBug};
use crate::sync::{Handle, Instant, sleep_until, timeout_at};
use crate::{
    AcquireOutcome, BootTime, Contention, ErrorCode, Guard, Lease, LockBackend, LockError, LockHandle, LockId, Locker,
    Result, WakeHint,
};

/// How far past the wall the attempt made *at* the wall may reach.
const GRACE: Duration = Duration::from_millis(50);

/// Waiters that learn of the same expiry try within this window instead of all at once.
const EXPIRY_SPREAD: Duration = Duration::from_millis(30);

/// How long an answer stands for the retries of a waiter that will hear of the release. Hints may be lost, so it asks
/// again after this; whoever does not hear, or meets a holder that tells nobody, keeps to its schedule.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// Tries once, without a wall of its own: the backend bounds each call.
pub(crate) async fn once(locker: &Locker, plan: &Plan) -> Result<Result<Guard, Contention>> {
    let mut acquisition = Acquisition::new(&locker.0, plan);
    let tried = cancellable(plan, async { Ok(acquisition.attempt(None).await) }).await?;
    match tried {
        Tried::Acquired(guard) => Ok(Ok(guard)),
        Tried::Contended(contention) => Ok(Err(contention)),
        Tried::Failed(error) => Err(error),
    }
}

/// Tries until it has the lock or the budget is used.
pub(crate) async fn until_acquired(locker: &Locker, plan: &Plan) -> Result<Guard> {
    let mut acquisition = Acquisition::new(&locker.0, plan);
    // Whoever does not wait stands in nobody's way.
    if plan.policy.is_patient() {
        acquisition.place = Some(Place::new(&locker.0.queues, &plan.key));
    }
    let since = acquisition.started_boot;
    let result = cancellable(plan, acquisition.drive()).await;
    locker.0.tell_wait(&plan.key, since, &result);
    result
}

enum Tried {
    Acquired(Guard),
    Contended(Contention),
    Failed(LockError),
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
    /// When the budget began, on the clock of timers.
    started: Instant,
    /// The same moment on the clock of leases. The two differ after a suspend, and when a test has paused the timers.
    started_boot: BootTime,
    /// Attempts so far, woken ones included. For people.
    attempts: u32,
    /// The registration for hints; never resolves before [`subscribe`](Self::subscribe) has succeeded.
    hint: WakeHint,
    subscribed: bool,
    /// Among the waiters of this process. `None` for an effort that does not wait.
    place: Option<Place<'a>>,
    /// How long the last contended answer said the lock stays taken, and when that was.
    last_contention: Option<(Contention, Instant)>,
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
            started: plan.started.unwrap_or_else(Instant::now),
            started_boot: shared.clock.boot(),
            attempts: 0,
            hint: WakeHint::never(),
            subscribed: false,
            place: None,
            last_contention: None,
            runtime: Handle::try_current().ok(),
        }
    }

    async fn drive(&mut self) -> Result<Guard> {
        let wall = self.wall();
        let (mut scheduled, mut sleep) = (0, Duration::MAX);
        loop {
            scheduled += 1;
            let mut tried = Tried::Contended(Contention::new());
            if self.must_ask(scheduled, sleep) {
                tried = match self.attempt(wall).await {
                    Tried::Acquired(guard) => return Ok(guard),
                    Tried::Failed(error) if !error.is_transient() => return Err(error),
                    tried => tried,
                };
            }
            sleep = match self.plan.policy.sleep_after(scheduled, self.started.elapsed(), random_fraction()) {
                Some(sleep) => sleep,
                None => return Err(self.give_up(tried)),
            };
            if let Some(guard) = self.wait(after(sleep), wall).await? {
                return Ok(guard);
            }
        }
    }

    /// Whether a scheduled attempt is to be made: not if the release will be heard, and not if what another waiter of this
    /// process has just learned is the answer.
    fn must_ask(&self, scheduled: u32, slept: Duration) -> bool {
        let is_last = || self.plan.policy.sleep_after(scheduled, self.started.elapsed(), 0.0).is_none();
        if self.will_hear() && !is_last() {
            return false;
        }
        self.place.as_ref().is_none_or(|place| place.may_ask(slept, is_last))
    }

    /// Whether a release since the last answer would have been heard here.
    fn will_hear(&self) -> bool {
        let told = |(contention, at): &(Contention, Instant)| contention.is_told_of && at.elapsed() < ASK_AFTER;
        self.hint.hears() && self.last_contention.as_ref().is_some_and(told)
    }

    /// Sleeps until the scheduled retry, trying in between whenever the lock may have become free.
    async fn wait(&mut self, until: Instant, wall: Option<Instant>) -> Result<Option<Guard>> {
        let mut look = self.subscribe(until).await;
        while self.may_be_free(until, std::mem::take(&mut look)).await {
            match self.attempt(wall).await {
                Tried::Acquired(guard) => return Ok(Some(guard)),
                Tried::Failed(error) if !error.is_transient() => return Err(error),
                Tried::Failed(_) => self.let_another_look(until).await,
                Tried::Contended(_) => {}
            }
            if Instant::now() >= until {
                break;
            }
        }
        Ok(None)
    }

    /// Waits for a reason to try before the scheduled retry. `false` when there was none until then. `look` asks for a
    /// look at once.
    async fn may_be_free(&self, until: Instant, mut look: bool) -> bool {
        let Some(place) = &self.place else { return false };
        loop {
            let turn = place.turn();
            if look && !turn.is_first {
                place.call_first();
                look = false;
            }
            if look || turn.look {
                return true;
            }
            let expiry = expected_expiry(turn).filter(|expiry| *expiry < until);
            tokio::select! {
                () = sleep_until(until) => return false,
                () = place.called() => {}
                () = self.hint.woken(), if turn.is_first => return true,
                () = sleep_until(expiry.unwrap_or(until)), if expiry.is_some() => return true,
            }
        }
    }

    /// This waiter learned nothing: another one of the process looks, and this one leaves the storage alone until its
    /// scheduled retry, or until the others want it to look.
    async fn let_another_look(&self, until: Instant) {
        self.hint.pass_on();
        let Some(place) = &self.place else { return };
        place.step_back();
        tokio::select! {
            () = sleep_until(until) => {}
            () = place.called() => {}
        }
    }

    /// Registers for hints once. A release between the failed attempt and the registration would go unnoticed, so the
    /// answer says whether to look again right away: the first waiter of a process does, for all of them.
    async fn subscribe(&mut self, until: Instant) -> bool {
        if self.subscribed {
            return false;
        }
        match timeout_at(until, self.shared.backend.subscribe(&self.plan.key)).await {
            Ok(hint) => {
                self.subscribed = true;
                self.hint = hint;
                self.hint.is_first()
            }
            Err(_) => false,
        }
    }

    /// The end of the budget, and of the attempt made at its end.
    fn wall(&self) -> Option<Instant> {
        match self.plan.policy.timeout {
            // One attempt, bounded by the backend alone: a wall of nothing would cut off every answer.
            Some(Duration::ZERO) | None => None,
            Some(timeout) => self.started.checked_add(timeout).map(|wall| wall + GRACE),
        }
    }

    async fn attempt(&mut self, wall: Option<Instant>) -> Tried {
        self.attempts = self.attempts.saturating_add(1);
        self.leave_a_hopeless_id();
        if let Some(place) = &mut self.place {
            place.ask();
        }
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
        let tried = match outcome {
            Some(outcome) => self.judge(outcome, sent),
            None => {
                // Dropping the call gave it, and the id with what was unknown of it before, to the background.
                self.unknown_since = None;
                Tried::Failed(self.cut_off())
            }
        };
        if let Some(place) = &mut self.place {
            match &tried {
                Tried::Acquired(_) => place.acquired(self.plan.ttl),
                Tried::Contended(contention) => place.contended(*contention),
                Tried::Failed(_) => place.failed(),
            }
        }
        tried
    }

    fn judge(&mut self, outcome: Result<AcquireOutcome>, sent: BootTime) -> Tried {
        match outcome {
            Ok(AcquireOutcome::Acquired(lease)) => self.granted(lease, sent),
            Ok(AcquireOutcome::Contended(contention)) => {
                // Certain now, but an earlier request under this id may still be on its way.
                if self.unknown_since.is_some() {
                    self.change_id();
                }
                self.last_contention = Some((contention, Instant::now()));
                Tried::Contended(contention)
            }
            Err(error) => {
                if seeded::has(SeededBug::NewIdOnRetry) {
                    self.lock_id = self.shared.backend.new_lock_id(&self.plan.key);
                } else if error.is_ambiguous() {
                    self.unknown_since = Some(sent);
                }
                Tried::Failed(error.with_key(&self.plan.key).with_lock_id(&self.lock_id))
            }
        }
    }

    fn granted(&mut self, lease: Lease, sent: BootTime) -> Tried {
        let received = self.shared.clock.boot();
        let granted = Granted { sent, ttl: self.plan.ttl, expires_at: lease.expires_at, left: lease.left() };
        let granted = seeded::granted(granted, received, &*self.shared.clock);
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

    fn give_up(&self, last: Tried) -> LockError {
        match last {
            Tried::Failed(error) => error,
            Tried::Contended(_) | Tried::Acquired(_) => self.timed_out("held by another owner"),
        }
    }

    fn cut_off(&self) -> LockError {
        self.timed_out("the backend did not answer the last one").ambiguous()
    }

    fn timed_out(&self, why: &str) -> LockError {
        let waited = Duration::from_millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let tried = match self.attempts {
            0 => "behind other waiters of this process".to_owned(),
            1 => "1 attempt".to_owned(),
            attempts => format!("{attempts} attempts"),
        };
        let error =
            LockError::new(ErrorCode::AcquisitionTimeout, format!("not acquired within {waited:?} ({tried}, {why})"));
        let error = if self.timers_ran_ahead() {
            error.with_hint(
                "the runtime's time is paused (start_paused), so its timers fire before a real backend can answer; \
                 use the memory backend or a runtime whose time runs",
            )
        } else {
            error.with_hint("wait longer with a larger timeout, or look who holds it with inspect")
        };
        error.with_key(&self.plan.key).with_free_in(self.free_in())
    }

    /// How long the holder that was seen last may still keep the lock, for whoever wants to come back then.
    fn free_in(&self) -> Option<Duration> {
        if let Some(free_in) = self.place.as_ref().and_then(Place::free_in) {
            return Some(free_in);
        }
        let (contention, seen) = self.last_contention?;
        contention.free_in.map(|free_in| free_in.saturating_sub(seen.elapsed()))
    }

    /// Whether timers moved while the clock of leases stood still: a test has paused tokio's time.
    fn timers_ran_ahead(&self) -> bool {
        let by_leases = self.shared.clock.boot().since(self.started_boot);
        self.started.elapsed() > by_leases * 2 + Duration::from_millis(100)
    }
}

/// The moment after this sleep. One that no clock can show lies far enough away to stand for it.
fn after(sleep: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(sleep).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365))
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        self.reap();
    }
}

/// When the holder's lease can be taken over, spread so that not every process asks in the same millisecond.
fn expected_expiry(turn: Turn) -> Option<Instant> {
    let spread = Duration::from_millis(1) + EXPIRY_SPREAD.mul_f64(random_fraction());
    turn.free_at?.checked_add(spread)
}

/// A number in `0.0..1.0`. Not for secrets.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness the schedule loses its jitter and nothing else.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}
