//! When does the next attempt start?
//!
//! Pure arithmetic: no clock, no randomness of its own, so every line of the table in the guide is a test here.
//! The loop that sleeps is in `acquisition`.

use std::time::Duration;

use crate::{LockError, Result};

/// How the delay grows from one retry to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backoff {
    /// Doubles with every retry.
    #[default]
    Exponential,
    /// Stays the same.
    Fixed,
}

/// How much of a delay is left to chance, so that waiters do not march in step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Jitter {
    /// Half of the delay is random.
    #[default]
    Equal,
    /// All of it is random.
    Full,
    /// None of it is.
    None,
}

/// When to try again, and when to give up.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How many attempts may follow the first; `None` is without limit.
    pub max_retries: Option<u32>,
    /// The delay before the first retry.
    pub retry_delay: Duration,
    /// How the delay grows.
    pub backoff: Backoff,
    /// How much of it is random.
    pub jitter: Jitter,
    /// The longest delay, if any.
    pub max_delay: Option<Duration>,
    /// The whole budget, a wall; `None` waits for ever.
    pub timeout: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: Some(Self::DEFAULT_MAX_RETRIES),
            retry_delay: Duration::from_millis(100),
            backoff: Backoff::default(),
            jitter: Jitter::default(),
            max_delay: None,
            timeout: Some(Self::DEFAULT_TIMEOUT),
        }
    }
}

impl RetryPolicy {
    /// Ten retries.
    pub const DEFAULT_MAX_RETRIES: u32 = 10;
    /// Five seconds.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
    /// The longest delay of a policy that waits longer than the default: hints may be lost, and a waiter
    /// should not sleep through half a minute of a free lock.
    pub const PATIENT_MAX_DELAY: Duration = Duration::from_secs(5);

    /// Returns the delay before retry number `retry` (the first is 1), for a random number in `0.0..1.0`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use syncguard_core::retry::RetryPolicy;
    ///
    /// let policy = RetryPolicy::default();
    /// assert_eq!(policy.delay(1, 0.0), Duration::from_millis(50));
    /// assert_eq!(policy.delay(3, 0.5), Duration::from_millis(300));
    /// ```
    pub fn delay(&self, retry: u32, random: f64) -> Duration {
        let base = match self.backoff {
            Backoff::Exponential => {
                self.retry_delay.as_secs_f64() * 2_f64.powi(i32::try_from(retry.saturating_sub(1)).unwrap_or(i32::MAX))
            }
            Backoff::Fixed => self.retry_delay.as_secs_f64(),
        };
        let delay = match self.jitter {
            Jitter::Equal => base / 2.0 + random * (base / 2.0),
            Jitter::Full => random * base,
            Jitter::None => base,
        };
        // 0 × ∞ is not a number; a delay of nothing stays nothing.
        let delay = if self.retry_delay.is_zero() { 0.0 } else { delay };
        let delay = Duration::try_from_secs_f64(delay).unwrap_or(Duration::MAX);
        self.max_delay.map_or(delay, |longest| delay.min(longest))
    }

    /// Returns how long to sleep before the next attempt, or `None` when there is to be none.
    ///
    /// `attempts` have been made and `elapsed` of the budget is used. A sleep that would pass the wall ends at the
    /// wall, where one last attempt is made.
    pub fn sleep_after(&self, attempts: u32, elapsed: Duration, random: f64) -> Option<Duration> {
        if self.max_retries.is_some_and(|most| attempts > most) {
            return None;
        }
        let delay = self.delay(attempts, random);
        match self.timeout {
            None => Some(delay),
            Some(timeout) => {
                let left = timeout.saturating_sub(elapsed);
                (!left.is_zero()).then(|| delay.min(left))
            }
        }
    }

    /// Whether anything may follow the first attempt.
    pub(crate) fn is_patient(&self) -> bool {
        self.max_retries != Some(0) && self.timeout != Some(Duration::ZERO)
    }

    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a policy that would spin for ever without a pause.
    pub(crate) fn validate(&self) -> Result<()> {
        let endless = self.max_retries.is_none();
        if endless && (self.retry_delay.is_zero() || self.max_delay.is_some_and(|most| most.is_zero())) {
            return Err(LockError::invalid("retries without limit need a delay above zero")
                .with_hint("set retry_delay to 10 ms or more, or limit max_retries"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DELAY: Duration = Duration::from_millis(100);

    fn policy(backoff: Backoff, jitter: Jitter) -> RetryPolicy {
        RetryPolicy { backoff, jitter, retry_delay: DELAY, ..RetryPolicy::default() }
    }

    /// The formulas of the interface specification, in milliseconds, written out once more.
    fn specified(backoff: Backoff, jitter: Jitter, attempt: u32, random: f64) -> f64 {
        let base = match backoff {
            Backoff::Exponential => 100.0 * 2_f64.powf(f64::from(attempt) - 1.0),
            Backoff::Fixed => 100.0,
        };
        match jitter {
            Jitter::Equal => base / 2.0 + random * (base / 2.0),
            Jitter::Full => random * base,
            Jitter::None => base,
        }
    }

    #[test]
    fn the_retry_table_equals_the_specified_formulas_for_all_six_combinations() {
        let mut lines = 0;
        for backoff in [Backoff::Exponential, Backoff::Fixed] {
            for jitter in [Jitter::Equal, Jitter::Full, Jitter::None] {
                for attempt in 1..=10 {
                    for random in [0.0, 0.25, 0.5, 0.75, 0.999] {
                        let expected = specified(backoff, jitter, attempt, random);
                        let delay = policy(backoff, jitter).delay(attempt, random).as_secs_f64() * 1000.0;
                        assert!(
                            (delay - expected).abs() < 1e-6,
                            "{backoff:?} {jitter:?} {attempt}: {delay} {expected}"
                        );
                        lines += 1;
                    }
                }
            }
        }
        println!("retry table: {lines} lines equal the formulas");
        assert_eq!(lines, 300);
    }

    #[test]
    fn the_first_retries_without_jitter_are_written_out() {
        let policy = policy(Backoff::Exponential, Jitter::None);
        let table: Vec<_> = (1..=6).map(|retry| policy.delay(retry, 0.7).as_millis()).collect();
        assert_eq!(table, [100, 200, 400, 800, 1600, 3200]);
    }

    #[test]
    fn max_retries_counts_retries_and_zero_means_one_attempt() {
        let once = RetryPolicy { max_retries: Some(0), ..RetryPolicy::default() };
        assert_eq!(once.sleep_after(1, Duration::ZERO, 0.5), None);
        let thrice = RetryPolicy { max_retries: Some(2), ..RetryPolicy::default() };
        assert!(thrice.sleep_after(2, Duration::ZERO, 0.5).is_some());
        assert_eq!(thrice.sleep_after(3, Duration::ZERO, 0.5), None);
    }

    #[test]
    fn a_sleep_ends_at_the_wall_and_nothing_follows_it() {
        let policy = policy(Backoff::Exponential, Jitter::None);
        let almost = Duration::from_millis(4_900);
        assert_eq!(policy.sleep_after(5, almost, 0.0), Some(Duration::from_millis(100)));
        assert_eq!(policy.sleep_after(6, Duration::from_secs(5), 0.0), None);
    }

    #[test]
    fn a_delay_of_zero_retries_and_absurd_numbers_do_not_overflow() {
        let eager = RetryPolicy { retry_delay: Duration::ZERO, ..RetryPolicy::default() };
        assert_eq!(eager.sleep_after(1, Duration::ZERO, 0.9), Some(Duration::ZERO));
        let absurd =
            RetryPolicy { retry_delay: Duration::from_secs(3600), max_retries: None, ..RetryPolicy::default() };
        for attempt in [200, 100_000, u32::MAX] {
            assert_eq!(absurd.sleep_after(attempt, Duration::ZERO, 0.5), Some(Duration::from_secs(5)));
        }
        assert_eq!(eager.delay(u32::MAX, 0.0), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn no_sleep_passes_the_wall(attempts in 1_u32..500, elapsed in 0_u64..6_000, random in 0.0_f64..1.0) {
            let policy = RetryPolicy { max_retries: None, ..RetryPolicy::default() };
            let elapsed = Duration::from_millis(elapsed);
            if let Some(sleep) = policy.sleep_after(attempts, elapsed, random) {
                prop_assert!(elapsed + sleep <= RetryPolicy::DEFAULT_TIMEOUT);
            }
        }
    }
}
