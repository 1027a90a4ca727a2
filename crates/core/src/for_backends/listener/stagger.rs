//! How long does this process hold a hint back, so that not all processes act on one release?
//!
//! A release is heard by every process that waits. If all of them try at once, one wins and the others have paid for
//! nothing. Two ways to hold back, for two kinds of storage: where the number of listeners can be asked, [`among`]
//! gives each a turn; where it cannot, a [`Window`] learns it from attempts that were lost to others. A process that is
//! alone never holds back.

use std::sync::atomic::{AtomicU64, Ordering};
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

/// Returns how long to hold a hint back when this many processes listen.
///
/// A few processes, chosen by chance, act at once; the others hold the hint back for a while and drop it when the next
/// release comes first. So a thousand processes cost a release a handful of attempts, and if none of the handful was
/// there to act, somebody still does after a moment.
pub fn among(listeners: u64) -> Duration {
    // Without randomness everybody acts at once, which is only slower.
    turn(listeners, getrandom::u32().unwrap_or(0))
}

/// `chance` is uniform in its whole range.
fn turn(listeners: u64, chance: u32) -> Duration {
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

const FIRST_MICROS: u64 = 4_000;
const LONGEST_MICROS: u64 = 120_000;
/// Beyond two round trips, holding back costs more time than losing does.
const ROUND_TRIPS: u32 = 2;

/// A window over which the hints of unknown rivals are spread: each lost attempt doubles it, each undisputed win halves
/// it.
#[derive(Debug, Default)]
pub struct Window(AtomicU64);

impl Window {
    /// An attempt was lost to another process: there are rivals.
    pub fn lost(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
            Some(window.saturating_mul(2).clamp(FIRST_MICROS, LONGEST_MICROS))
        });
    }

    /// An attempt won without a rival.
    pub fn won(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
            Some(if window / 2 < FIRST_MICROS { 0 } else { window / 2 })
        });
    }

    /// A random moment of the window, and never more than two round trips; zero while nobody is in the way.
    pub fn hold_back(&self, round_trip: Duration) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            window => Duration::from_micros(window).min(round_trip * ROUND_TRIPS).mul_f64(random_fraction()),
        }
    }
}

/// Uniform in 0..=1.
fn random_fraction() -> f64 {
    // Without randomness every pause is the longest one: slower, never wrong.
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_listeners_act_at_once() {
        for listeners in 0..=FEW {
            assert_eq!(turn(listeners, u32::MAX), Duration::ZERO);
        }
    }

    #[test]
    fn of_a_thousand_listeners_about_four_act_at_once_and_all_within_a_second() {
        let all: Vec<Duration> = (0..1000).map(|n| turn(1000, n * (u32::MAX / 1000))).collect();
        let soon = all.iter().filter(|delay| **delay < REST).count();
        assert!((3..=6).contains(&soon), "{soon}");
        assert!(all.iter().all(|delay| *delay <= LONGEST));
        let in_one_ms = all.iter().filter(|delay| **delay == all[500]).count();
        assert!(in_one_ms <= 3, "{in_one_ms} act in the same millisecond");
    }

    #[test]
    fn losing_widens_the_window_to_a_bound_and_winning_closes_it() {
        const FAR: Duration = Duration::from_secs(1);
        let window = Window::default();
        assert!(window.hold_back(FAR).is_zero());
        window.won();
        assert!(window.hold_back(FAR).is_zero());
        for _ in 0..20 {
            window.lost();
        }
        let held: Vec<_> = (0..200).map(|_| window.hold_back(FAR)).collect();
        assert!(held.iter().all(|time| *time <= Duration::from_micros(LONGEST_MICROS)));
        assert!(held.iter().any(|time| *time > Duration::from_micros(LONGEST_MICROS / 2)));
        assert!((0..200).all(|_| window.hold_back(Duration::from_millis(3)) <= Duration::from_millis(6)));
        for _ in 0..20 {
            window.won();
        }
        assert!(window.hold_back(FAR).is_zero());
    }
}
