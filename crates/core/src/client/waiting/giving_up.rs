//! What is the caller told that waited in vain?
//!
//! The last thing that was learned. Either another holder was seen: that is contention, an `AcquisitionTimeout`. Or the
//! storage failed or was silent: then the error says so, because "somebody else is on it" would be a lie.

use std::time::Duration;

use crate::client::waiting::limits::PAST_THE_WALL;
use crate::retry::RetryPolicy;
use crate::sync::Instant;
use crate::time::Clock;
use crate::{BootTime, Contention, ErrorCode, Key, LockError};

/// What one effort to get a lock has seen so far.
pub(super) struct Effort {
    /// When the budget began, on the clock of timers.
    pub(super) started: Instant,
    /// The same moment on the clock of leases. The two differ after a suspend, and when a test has paused the timers.
    pub(super) started_boot: BootTime,
    /// Attempts so far, woken ones included. For people.
    attempts: u32,
    /// How long the last contended answer said the lock stays taken, and when that was.
    contention: Option<(Contention, Instant)>,
    /// The failure after it, if the last attempt failed.
    failure: Option<LockError>,
    /// Whether the last attempt was cut off by the end of the budget.
    is_cut_off: bool,
}

impl Effort {
    pub(super) fn new(started: Option<Instant>, clock: &dyn Clock) -> Self {
        let started = started.unwrap_or_else(Instant::now);
        Self { started, started_boot: clock.boot(), attempts: 0, contention: None, failure: None, is_cut_off: false }
    }

    /// The end of the budget, and of the attempt made at its end.
    pub(super) fn wall(&self, policy: &RetryPolicy) -> Option<Instant> {
        match policy.timeout {
            // One attempt, bounded by the backend alone: a wall of nothing would cut off every answer.
            Some(Duration::ZERO) | None => None,
            Some(timeout) => self.started.checked_add(timeout).map(|wall| wall + PAST_THE_WALL),
        }
    }

    pub(super) fn attempt(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }

    pub(super) fn contended(&mut self, contention: Contention) {
        self.contention = Some((contention, Instant::now()));
        self.failure = None;
    }

    pub(super) fn cut_off(&mut self) {
        self.is_cut_off = true;
    }

    pub(super) fn failed(&mut self, error: &LockError) {
        self.failure = Some(error.clone());
    }

    /// The budget is used. `known` is what the waiters of this process know of a holder, if any of them waits: whether
    /// they see one, and how long its lease lasts.
    pub(super) fn in_vain(&self, clock: &dyn Clock, key: &Key, known: Option<(bool, Option<Duration>)>) -> LockError {
        let (sees_a_holder, free_in) = known.unwrap_or((self.contention.is_some(), None));
        let error = match &self.failure {
            Some(failure) => failure.clone(),
            None if sees_a_holder => {
                let why = "held by another owner";
                self.timed_out(ErrorCode::AcquisitionTimeout, why, clock).with_free_in(free_in.or(self.free_in()))
            }
            None => self.timed_out(ErrorCode::NetworkTimeout, "the backend did not answer", clock),
        };
        let error = error.with_key(key);
        if self.is_cut_off { error.ambiguous() } else { error }
    }

    fn timed_out(&self, code: ErrorCode, why: &str, clock: &dyn Clock) -> LockError {
        let tried = match self.attempts {
            0 => "behind other waiters of this process".to_owned(),
            1 => "1 attempt".to_owned(),
            attempts => format!("{attempts} attempts"),
        };
        let waited = Duration::from_millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let hint = if self.timers_ran_ahead(clock) {
            "the runtime's time is paused (start_paused), so its timers fire before a real backend can answer; \
             use the memory backend or a runtime whose time runs"
        } else if code == ErrorCode::NetworkTimeout {
            "look whether the backend is up: syncguard doctor names the check that fails"
        } else {
            "wait longer with a larger timeout, or look who holds it with inspect"
        };
        LockError::new(code, format!("not acquired within {waited:?} ({tried}, {why})")).with_hint(hint)
    }

    /// How long the holder that was seen last may still keep the lock, for whoever wants to come back then.
    fn free_in(&self) -> Option<Duration> {
        let (contention, seen) = self.contention?;
        contention.free_in.map(|free_in| free_in.saturating_sub(seen.elapsed()))
    }

    /// Whether timers moved while the clock of leases stood still: a test has paused tokio's time.
    fn timers_ran_ahead(&self, clock: &dyn Clock) -> bool {
        let by_leases = clock.boot().since(self.started_boot);
        self.started.elapsed() > by_leases * 2 + Duration::from_millis(100)
    }
}
