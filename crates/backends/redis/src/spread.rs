//! When does this process act on a release that many processes heard?
//!
//! Whoever subscribes asks how many listen. A few processes, chosen by chance, act at once; the others hold
//! the hint back for a while and drop it when the next release comes first. So a thousand processes cost a release a handful of
//! attempts, and if none of the handful was there to act, somebody still does after a moment.

use std::time::Duration;

/// How many processes should act at once.
const FEW: u64 = 4;
/// The few do not meet in the same instant either.
const FIRST: Duration = Duration::from_micros(500);
/// When the others begin to act.
const REST: Duration = Duration::from_millis(50);
/// How far apart the others are.
const APART: Duration = Duration::from_millis(1);
/// However many there are, nobody holds a hint back for longer.
const LONGEST: Duration = Duration::from_millis(1000);

/// How long to hold a hint back. `chance` is uniform in its whole range.
pub(crate) fn delay(listeners: u64, chance: u32) -> Duration {
    if listeners <= FEW {
        return Duration::ZERO;
    }
    let place = u64::from(chance) * listeners.min(1_000_000) / (u64::from(u32::MAX) + 1);
    if place < FEW {
        return FIRST * u32::try_from(place).unwrap_or(0);
    }
    let step = u32::try_from(place - FEW).unwrap_or(u32::MAX);
    (REST + APART * step.min(1000)).min(LONGEST)
}

/// Uniform over all values. Without randomness everybody acts at once, which is only slower.
pub(crate) fn random() -> u32 {
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_listeners_act_at_once() {
        for listeners in 0..=FEW {
            assert_eq!(delay(listeners, u32::MAX), Duration::ZERO);
        }
    }

    #[test]
    fn of_a_thousand_listeners_about_four_act_at_once_and_all_within_a_second() {
        let all: Vec<Duration> = (0..1000).map(|n| delay(1000, n * (u32::MAX / 1000))).collect();
        let soon = all.iter().filter(|delay| **delay < REST).count();
        assert!((3..=6).contains(&soon), "{soon}");
        assert!(all.iter().all(|delay| *delay <= LONGEST));
        let in_one_ms = all.iter().filter(|delay| **delay == all[500]).count();
        assert!(in_one_ms <= 3, "{in_one_ms} act in the same millisecond");
    }
}
