//! How wrong is this machine's clock?
//!
//! Firestore has no clock to ask, so each client's own decides when a lease is over, and clients whose clocks differ by
//! more than the tolerance disagree about who holds a lock. Every answer carries the server's time: with the local time
//! before and after the call it gives the offset for free, ± half the round trip.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::{BootTime, Clock, HealthReport, HealthStatus, LockError, Timestamp};

/// What a clock may be off before it deserves a warning.
pub(crate) const WARN_MS: i64 = 200;
/// What a clock may be off before it endangers exclusion.
pub(crate) const BLOCK_MS: i64 = 500;
/// What a well-kept clock is off at most.
const TARGET_MS: i64 = 100;

/// Both clocks and half the round trip are cut to whole milliseconds.
pub(crate) const GRANULARITY_MS: i64 = 3;
/// For how long a good measurement stands against worse ones. Clocks drift, and somebody may set them.
const FRESH: Duration = Duration::from_secs(60);
/// How often a bad clock is mentioned.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How far the server's clock is ahead of this machine's (negative: behind), as seen by one round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockOffset {
    /// Server minus local, in milliseconds.
    pub millis: i64,
    /// The truth is within ± this: half the round trip, and the granularity of the clocks.
    pub error_millis: i64,
}

impl ClockOffset {
    /// Whether the clock is off by at least so much even in the best case.
    pub(crate) fn is_at_least(self, limit: i64) -> bool {
        self.millis.saturating_abs().saturating_sub(self.error_millis) >= limit
    }

    /// Whether the clock could be off by so much.
    fn may_be(self, limit: i64) -> bool {
        self.millis.saturating_abs().saturating_add(self.error_millis) >= limit
    }

    fn overlaps(self, other: Self) -> bool {
        self.millis.saturating_sub(other.millis).saturating_abs() <= self.error_millis + other.error_millis
    }

    /// The line of the health report: the ladder 100, 200, 500 ms with its error bar.
    pub(crate) fn report(self, report: &mut HealthReport) {
        let seen = format!("the server's clock is {self} ahead of this machine's");
        if self.is_at_least(BLOCK_MS) {
            report.push(HealthStatus::Fail, "clock", seen).hint(SET_THE_CLOCK);
        } else if self.may_be(BLOCK_MS) {
            report
                .push(HealthStatus::Warn, "clock", format!("{seen}: inconclusive about the limit of 500 ms"))
                .hint("the round trip is too long to tell; look from nearer, or check `chronyc tracking`");
        } else if self.is_at_least(WARN_MS) {
            report.push(HealthStatus::Warn, "clock", seen).hint(SET_THE_CLOCK);
        } else if self.may_be(WARN_MS) {
            report.push(HealthStatus::Info, "clock", format!("{seen}: inconclusive about the warning at 200 ms"));
        } else if self.is_at_least(TARGET_MS) {
            report.push(HealthStatus::Pass, "clock", format!("{seen}; the target is 100 ms"));
        } else {
            report.push(HealthStatus::Pass, "clock", seen);
        }
    }
}

const SET_THE_CLOCK: &str =
    "firestore locks live by the clients' clocks: run an NTP client (chrony) on every machine, `chronyc makestep` now";

impl fmt::Display for ClockOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms (± {} ms)", self.millis, self.error_millis)
    }
}

/// The best recent measurement.
#[derive(Debug, Default)]
pub(crate) struct Skew(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    best: Option<(ClockOffset, BootTime)>,
    warned: Option<BootTime>,
}

/// The local clocks as they stood when a call left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    wall: Timestamp,
    boot: BootTime,
}

impl Sent {
    pub(crate) fn now(clock: &dyn Clock) -> Self {
        Self { wall: clock.wall(), boot: clock.boot() }
    }
}

impl Skew {
    /// Takes in the server's time from an answer that has just arrived.
    pub(crate) fn observe(&self, sent: Sent, server: &prost_types::Timestamp, clock: &dyn Clock) -> ClockOffset {
        let arrived = clock.boot();
        let half = millis(arrived.since(sent.boot)) / 2;
        let server = server.seconds.saturating_mul(1000).saturating_add(i64::from(server.nanos / 1_000_000));
        let local = sent.wall.as_millis().saturating_add(half);
        let offset = ClockOffset { millis: server.saturating_sub(local), error_millis: half + GRANULARITY_MS };
        let mut state = self.state();
        let stands = state.best.is_some_and(|(best, at)| {
            best.error_millis < offset.error_millis && arrived.since(at) < FRESH && best.overlaps(offset)
        });
        if !stands {
            state.best = Some((offset, arrived));
        }
        let silent = state.warned.is_some_and(|at| arrived.since(at) < WARN_EVERY);
        if offset.is_at_least(WARN_MS) && !silent {
            state.warned = Some(arrived);
            tracing::warn!(target: "syncguard", offset_ms = offset.millis, error_ms = offset.error_millis, "this machine's clock differs from firestore's; locks are at risk at 500 ms");
        }
        offset
    }

    pub(crate) fn best(&self) -> Option<ClockOffset> {
        self.state().best.map(|(offset, _)| offset)
    }

    /// Refuses when the clock is off by so much that another client may disagree about a lease.
    pub(crate) fn require_sane(&self) -> Result<(), LockError> {
        match self.best() {
            Some(offset) if offset.is_at_least(BLOCK_MS) => {
                Err(LockError::internal(format!("this machine's clock is off: the server's is {offset} ahead"))
                    .with_hint(SET_THE_CLOCK))
            }
            _ => Ok(()),
        }
    }

    // Each change is one assignment.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(millis: i64, error_millis: i64) -> (HealthStatus, bool) {
        let mut report = HealthReport::default();
        ClockOffset { millis, error_millis }.report(&mut report);
        (report.checks[0].status, report.checks[0].detail.contains("inconclusive"))
    }

    #[test]
    fn the_ladder_is_applied_with_its_error_bar() {
        for (offset, error, expected) in [
            (0, 5, (HealthStatus::Pass, false)),
            (150, 5, (HealthStatus::Pass, false)),
            (198, 5, (HealthStatus::Info, true)),
            (205, 5, (HealthStatus::Warn, false)),
            (-300, 5, (HealthStatus::Warn, false)),
            (498, 5, (HealthStatus::Warn, true)),
            (504, 5, (HealthStatus::Warn, true)),
            (505, 5, (HealthStatus::Fail, false)),
            (-7_000, 50, (HealthStatus::Fail, false)),
            (0, 900, (HealthStatus::Warn, true)),
        ] {
            assert_eq!(status(offset, error), expected, "{offset} ± {error}");
        }
    }
}
