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
}

impl Effort {
    pub(super) fn new(started: Option<Instant>, clock: &dyn Clock) -> Self {
        let started = started.unwrap_or_else(Instant::now);
        Self { started, started_boot: clock.boot(), attempts: 0, contention: None, failure: None }
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

    pub(super) fn failed(&mut self, error: &LockError) {
        self.failure = Some(error.clone());
    }

    /// The budget is used. `others_fail` when the storage fails the other waiters of this process, `free_in` is how long
    /// the lock stays taken by what they know.
    pub(super) fn in_vain(
        &self,
        clock: &dyn Clock,
        key: &Key,
        others_fail: bool,
        free_in: Option<Duration>,
    ) -> LockError {
        match &self.failure {
            Some(failure) => failure.clone(),
            None if others_fail => self.silence("it does not answer the other waiters of this process", clock, key),
            None => self.timed_out("held by another owner", clock, key).with_free_in(free_in.or(self.free_in())),
        }
    }

    /// The last attempt was cut off by the end of the budget.
    pub(super) fn cut_off(&self, clock: &dyn Clock, key: &Key) -> LockError {
        let error = match (&self.failure, self.contention) {
            (Some(failure), _) => failure.clone(),
            (None, Some(_)) => {
                let why = "held by another owner; the last attempt was not answered in time";
                self.timed_out(why, clock, key).with_free_in(self.free_in())
            }
            (None, None) => self.silence("it did not answer", clock, key),
        };
        error.ambiguous()
    }

    fn timed_out(&self, why: &str, clock: &dyn Clock, key: &Key) -> LockError {
        let tried = match self.attempts {
            0 => "behind other waiters of this process".to_owned(),
            1 => "1 attempt".to_owned(),
            attempts => format!("{attempts} attempts"),
        };
        let text = format!("not acquired within {:?} ({tried}, {why})", self.waited());
        let error = LockError::new(ErrorCode::AcquisitionTimeout, text);
        self.hinted(error, "wait longer with a larger timeout, or look who holds it with inspect", clock).with_key(key)
    }

    fn silence(&self, what: &str, clock: &dyn Clock, key: &Key) -> LockError {
        let text = format!("the backend was asked for {:?}, and {what}", self.waited());
        let error = LockError::new(ErrorCode::NetworkTimeout, text);
        self.hinted(error, "nobody is known to hold the lock: look whether the backend is up", clock).with_key(key)
    }

    fn hinted(&self, error: LockError, hint: &'static str, clock: &dyn Clock) -> LockError {
        if self.timers_ran_ahead(clock) {
            return error.with_hint(
                "the runtime's time is paused (start_paused), so its timers fire before a real backend can answer; \
                 use the memory backend or a runtime whose time runs",
            );
        }
        error.with_hint(hint)
    }

    fn waited(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
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
