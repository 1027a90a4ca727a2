//! How long does this process hold a hint back, so that not all processes act on one release?
//!
//! A release is heard by every process that waits. If all of them try at once, one wins and the others have paid for
//! nothing. A [`Window`] learns how many they are from attempts that were lost to others. A process that is alone never
//! holds back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
