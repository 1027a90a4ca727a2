//! How soon is a command that failed started again?
//!
//! After a second, and after twice as long each time, up to half a minute. A command that ran well for a while, or that
//! was stopped because its lock was lost, has not failed again: it begins anew.

use std::time::Duration;

/// At first and at most.
const DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A command that ran this long was healthy: its next failure is a first one.
const HEALTHY: Duration = Duration::from_secs(60);

/// The failures of a command so far.
#[derive(Debug, Default)]
pub(crate) struct Respawn {
    /// How many there were in a row.
    failures: u32,
}

impl Respawn {
    /// The pause before the next start; none after a loss, where waiting for the lock is pause enough.
    pub(crate) fn delay_after(&mut self, ran: Duration, lost: bool) -> Option<Duration> {
        if lost || ran >= HEALTHY {
            self.failures = 0;
        }
        if lost {
            return None;
        }
        let factor = 2_u32.saturating_pow(self.failures);
        self.failures = self.failures.saturating_add(1);
        Some(DELAY.0.saturating_mul(factor).min(DELAY.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_to_half_a_minute_and_resets_after_a_healthy_run_or_a_loss() {
        let second = Duration::from_secs(1);
        let mut respawn = Respawn::default();
        let mut delays = |ran: u32, lost, times: usize| -> Vec<Option<u64>> {
            (0..times).map(|_| respawn.delay_after(second * ran, lost).map(|delay| delay.as_secs())).collect()
        };

        assert_eq!(delays(0, false, 8), [1, 2, 4, 8, 16, 30, 30, 30].map(Some));
        assert_eq!(delays(59, false, 1), [Some(30)], "not long enough");
        assert_eq!(delays(60, false, 1), [Some(1)], "a healthy run");
        assert_eq!(delays(1, false, 2), [Some(2), Some(4)]);
        assert_eq!(delays(1, true, 1), [None], "a loss is no failure of the command");
        assert_eq!(delays(1, false, 1), [Some(1)]);
        assert_eq!(delays(0, false, 100).last(), Some(&Some(30)), "no overflow");
    }
}
