//! When does a waiter ask next?
//!
//! The waiters for one key in one process share a room. What the storage answers to one of them holds for all, so ten
//! thousand waiters need one of them at the storage: the one that came first. It hears of releases, looks when the
//! holder's lease ends, and retries by its schedule. The others sleep; when a retry of theirs is due, what was learned
//! last stands for the answer, as long as it is young.
//!
//! Nobody depends on the first: it may be a future that nobody polls, or its request may hang. Whoever finds that
//! nothing was learned lately calls it, and if it does not move, passes it over and asks itself.
//!
//! [`Room::on`] is the whole machine: an event and a time go in, a step comes out. It knows neither clock nor I/O nor
//! chance, so its table of tests and the simulated population run it as it is. `place` connects it to tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::client::waiting::limits::{
    ANSWER_STANDS, ANSWER_STANDS_WHEN_ANNOUNCED, EXPIRY_FLOOR, EXPIRY_SPREAD, FOLLOWERS, LAST_ASKERS, PATIENCE,
};
use crate::retry::RetryPolicy;
use crate::sync::{Instant, Notify};
use crate::{Contention, Ttl, time};

/// What happened to a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// It came, its time is up, or its bell rang.
    Moved,
    /// The storage hinted that the lock may be free, or a release may have gone unheard.
    MayBeFree,
    /// It registered for hints: whether releases are heard from now on, and whether one may have gone unheard before.
    Subscribed { hears: bool, look: bool },
    /// Its request was answered: somebody else holds the lock.
    Contended(Contention),
    /// Its request failed, and may be repeated.
    Failed,
    /// Its request was cut off by the end of its budget.
    CutOff,
}

/// What a waiter does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a request. The room counts it as under way from now on.
    Ask,
    /// Nothing before this moment, unless the bell rings.
    Sleep(Instant),
    /// The same, and listen for hints: this waiter is the one of its process that does.
    Listen(Instant),
    /// The budget is used.
    GiveUp,
}

/// What the room must know of one waiter. Owned by the waiter.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// By which it stands in the room: the order in which the waiters of the process came.
    pub(super) number: u64,
    policy: RetryPolicy,
    /// When its budget began.
    started: Instant,
    /// Attempts by the schedule so far. Hints and ends of leases lead to further ones, which the schedule ignores.
    attempts: u32,
    /// When the next of them is due.
    due: Instant,
    /// The pause before it.
    pause: Duration,
    /// Whether the request under way is one of the schedule.
    is_scheduled: bool,
    /// Whether a request of this waiter is under way, which the room counts.
    pub(super) is_asking: bool,
    /// Whether it would hear of a release.
    hears: bool,
}

impl Waiter {
    /// Makes a waiter whose first attempt is due at once.
    pub(crate) fn new(number: u64, policy: RetryPolicy, started: Instant, now: Instant) -> Self {
        Self {
            number,
            policy,
            started,
            attempts: 0,
            due: now,
            pause: Duration::MAX,
            is_scheduled: false,
            is_asking: false,
            hears: false,
        }
    }

    /// Whether no attempt can follow the one that is due.
    fn is_at_its_last(&self, now: Instant) -> bool {
        self.policy.sleep_after(self.attempts, now.saturating_duration_since(self.started), 0.0).is_none()
    }

    /// Sets when the next attempt of the schedule is due. `false` when there is none.
    fn plan_next(&mut self, now: Instant, chance: f64) -> bool {
        let used = now.saturating_duration_since(self.started);
        let Some(pause) = self.policy.sleep_after(self.attempts, used, chance) else { return false };
        self.pause = pause;
        self.due = after(now, pause);
        true
    }

    /// Whether the request under way is one of the schedule.
    pub(super) fn is_scheduled(&self) -> bool {
        self.is_scheduled
    }

    /// The first step of one that is alone: it needs no room to know that it asks.
    pub(super) fn begin_alone(&mut self) -> Step {
        self.attempts = 1;
        self.is_scheduled = true;
        Step::Ask
    }
}

/// The waiters for one key in one process.
#[derive(Default)]
pub(crate) struct Room {
    /// By the order in which they came.
    seats: BTreeMap<u64, Seat>,
    /// Requests under way of those in the room.
    asking: usize,
    /// When the last request left or was answered.
    asked: Option<Instant>,
    /// When the first was called. `None` once it has moved.
    called: Option<Instant>,
    /// Whether the first is to ask when it moves. Kept until somebody does: a hint that is dropped here is lost.
    look: bool,
    /// Requests in a row that failed.
    failures: u32,
    /// Whether the last answer was that somebody holds the lock.
    is_held: bool,
    /// When the first request left that nothing was heard after.
    unanswered: Option<Instant>,
    /// When the holder's lease can be taken over, as the last answer said.
    free_at: Option<Instant>,
    /// When the first looks for it. `None` once it has.
    look_at: Option<Instant>,
    /// How many answers in a row said that the lease ends now.
    short_leases: u32,
    /// Whether the holder announces its release, as the last answer said.
    is_announced: bool,
}

struct Seat {
    bell: Arc<Notify>,
    /// Whether it did not move when it was called, or stepped back. Undone when it moves: it keeps its place.
    is_passed: bool,
}

impl Room {
    /// A waiter comes in. It is to move when its bell rings.
    pub(crate) fn enter(&mut self, waiter: &Waiter) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        self.seats.insert(waiter.number, Seat { bell: bell.clone(), is_passed: false });
        // A request that left before there was a room is counted from here on.
        self.asking += usize::from(waiter.is_asking);
        bell
    }

    /// Decides what a waiter does. `chance` is random in `0.0..1.0`.
    pub(crate) fn on(&mut self, waiter: &mut Waiter, event: Event, now: Instant, chance: f64) -> Step {
        match event {
            Event::Moved => {}
            Event::Subscribed { hears, look } => {
                waiter.hears = hears;
                if look {
                    self.may_be_free(waiter.number, now);
                }
            }
            Event::MayBeFree => self.may_be_free(waiter.number, now),
            Event::Contended(contention) => {
                self.settle(waiter, now);
                self.learn(contention, now, chance);
                if std::mem::take(&mut waiter.is_scheduled) && !waiter.plan_next(now, chance) {
                    return Step::GiveUp;
                }
            }
            Event::CutOff => {
                self.settle(waiter, now);
                return Step::GiveUp;
            }
            Event::Failed => {
                self.settle(waiter, now);
                self.failures = self.failures.saturating_add(1);
                (self.is_held, self.unanswered) = (false, None);
                (self.free_at, self.look_at) = (None, None);
                if !std::mem::take(&mut waiter.is_scheduled) {
                    return self.step_back(waiter, now);
                }
                if !waiter.plan_next(now, chance) {
                    return Step::GiveUp;
                }
            }
        }
        self.step(waiter, now, chance)
    }

    /// The waiter has the lock for this long, and leaves.
    pub(crate) fn acquired(&mut self, waiter: &mut Waiter, ttl: Ttl, now: Instant) {
        self.settle(waiter, now);
        self.learn(Contention::free_in(ttl.duration() + time::TOLERANCE), now, 0.0);
        // Whatever was to be looked for is in our own hands now, and its release will be heard.
        self.look = false;
        self.remove(waiter.number, now);
    }

    /// The waiter gives up, or nobody awaits it any more. Whether a hint goes with it that nobody here can follow.
    pub(crate) fn leave(&mut self, waiter: &mut Waiter, now: Instant) -> bool {
        if std::mem::take(&mut waiter.is_asking) {
            self.asking -= 1;
            self.unanswered = self.unanswered.filter(|_| self.asking > 0);
            // What it had asked, and why, nobody knows any more.
            self.look = true;
        }
        self.remove(waiter.number, now);
        self.look && self.is_empty()
    }

    /// Whether nobody is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// When the holder's lease can be taken over if nobody renews it, as far as anybody here knows.
    pub(crate) fn free_at(&self) -> Option<Instant> {
        self.free_at
    }

    /// Whether the last answer to anybody here was that somebody holds the lock, and the storage is not silent since.
    pub(crate) fn sees_a_holder(&self, now: Instant) -> bool {
        let is_silent = self.unanswered.is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE);
        self.is_held && !is_silent
    }

    /// What the waiter does now that nothing is unknown of its last request.
    fn step(&mut self, waiter: &mut Waiter, now: Instant, chance: f64) -> Step {
        let is_first = self.moved(waiter.number);
        if is_first && std::mem::take(&mut self.look) {
            return self.ask(waiter, now);
        }
        if is_first && self.look_at.is_some_and(|at| at <= now) {
            return self.ask(waiter, now);
        }
        while waiter.due <= now {
            waiter.attempts = waiter.attempts.saturating_add(1);
            if self.may_ask(waiter, is_first, now) {
                waiter.is_scheduled = true;
                return self.ask(waiter, now);
            }
            // What another one learned stands for its answer.
            if !waiter.plan_next(now, chance) {
                return Step::GiveUp;
            }
            if waiter.pause.is_zero() {
                // Whoever retries without a pause gives the others a moment to learn something.
                break;
            }
        }
        if is_first {
            Step::Listen(self.look_at.map_or(waiter.due, |at| at.min(waiter.due)))
        } else {
            Step::Sleep(waiter.due)
        }
    }

    /// Whether the attempt that is due by the schedule is made.
    fn may_ask(&mut self, waiter: &Waiter, is_first: bool, now: Instant) -> bool {
        let is_last = waiter.is_at_its_last(now);
        if is_first {
            return is_last || !self.will_be_announced(waiter, now);
        }
        if is_last && self.failures > 0 {
            return self.asking < LAST_ASKERS;
        }
        if self.knows(waiter, is_last, now) {
            return false;
        }
        match self.called {
            _ if is_last => true,
            None => {
                self.call(now, true);
                false
            }
            Some(since) if now.saturating_duration_since(since) < PATIENCE => false,
            Some(_) => {
                self.pass_over(self.first());
                self.call(now, true);
                true
            }
        }
    }

    /// Whether a release since the last answer would have been heard here.
    fn will_be_announced(&self, waiter: &Waiter, now: Instant) -> bool {
        waiter.hears && self.is_announced && self.asked_within(ANSWER_STANDS_WHEN_ANNOUNCED, now)
    }

    /// Whether somebody asked so lately that another need not.
    fn knows(&self, waiter: &Waiter, is_last: bool, now: Instant) -> bool {
        if self.asking > 0 {
            return self.asked_within(PATIENCE, now);
        }
        // A last pause is as short as the rest of the time, which says nothing about how often this waiter would ask.
        let pause = if is_last { ANSWER_STANDS } else { waiter.pause.min(ANSWER_STANDS) };
        self.asked_within(pause, now) || !is_last && self.will_be_announced(waiter, now)
    }

    fn asked_within(&self, time: Duration, now: Instant) -> bool {
        self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < time)
    }

    fn ask(&mut self, waiter: &mut Waiter, now: Instant) -> Step {
        self.look = false;
        self.look_at = None;
        self.asking += 1;
        self.asked = Some(now);
        self.unanswered.get_or_insert(now);
        waiter.is_asking = true;
        Step::Ask
    }

    /// The request of this waiter was answered, or has failed.
    fn settle(&mut self, waiter: &mut Waiter, now: Instant) {
        self.asking -= usize::from(std::mem::take(&mut waiter.is_asking));
        self.asked = Some(now);
    }

    fn learn(&mut self, contention: Contention, now: Instant, chance: f64) {
        self.failures = 0;
        (self.is_held, self.unanswered) = (true, None);
        self.is_announced = contention.announces_release;
        self.free_at = contention.free_in.and_then(|free_in| now.checked_add(free_in));
        self.look_at = contention.free_in.and_then(|free_in| {
            let floor = EXPIRY_FLOOR.saturating_mul(1 << self.short_leases.min(16));
            self.short_leases = if free_in < floor { self.short_leases + 1 } else { 0 };
            let spread = Duration::from_millis(1) + EXPIRY_SPREAD.mul_f64(chance);
            now.checked_add(free_in.max(floor))?.checked_add(spread)
        });
    }

    fn may_be_free(&mut self, number: u64, now: Instant) {
        self.look = true;
        if self.first() != Some(number) {
            self.call(now, true);
        }
    }

    /// The request that a hint had led to failed: the next one looks, and this one leaves the storage alone until its
    /// schedule, or until the others want it to look.
    fn step_back(&mut self, waiter: &Waiter, now: Instant) -> Step {
        if self.failures <= FOLLOWERS && self.seats.len() > 1 {
            self.pass_over(Some(waiter.number));
            self.call(now, true);
        }
        Step::Sleep(waiter.due)
    }

    fn first(&self) -> Option<u64> {
        let waiting = self.seats.iter().find(|(_, seat)| !seat.is_passed);
        waiting.or(self.seats.first_key_value()).map(|(number, _)| *number)
    }

    /// This waiter moves. Whether it is the first.
    fn moved(&mut self, number: u64) -> bool {
        if let Some(seat) = self.seats.get_mut(&number) {
            seat.is_passed = false;
        }
        let is_first = self.first() == Some(number);
        if is_first {
            self.called = None;
        }
        is_first
    }

    fn call(&mut self, now: Instant, look: bool) {
        self.look |= look;
        if let Some(first) = self.first() {
            self.called.get_or_insert(now);
            self.seats[&first].bell.notify_one();
        }
    }

    fn pass_over(&mut self, number: Option<u64>) {
        if let Some(seat) = number.and_then(|number| self.seats.get_mut(&number)) {
            seat.is_passed = true;
            self.called = None;
        }
    }

    fn remove(&mut self, number: u64, now: Instant) {
        let was_first = self.first() == Some(number);
        self.seats.remove(&number);
        if was_first {
            self.called = None;
            self.call(now, false);
        }
    }
}

/// The moment after this pause. One that no clock can show lies far enough away to stand for it.
fn after(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365))
}

#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
mod population;
#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
mod tests;
