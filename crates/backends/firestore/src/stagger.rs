//! How long should a woken waiter hold back for others?
//!
//! A release wakes one waiter in *every* process. If they all try at once, one wins and the rest have paid for a read and a lost
//! write. Nobody knows how many processes there are, but a lost write tells that there were others: each one doubles the
//! window over which wake-ups are spread, each undisputed win halves it. A lone waiter never waits. A waiter that
//! still holds back when the next holder's lock appears does not try at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FIRST_MICROS: u64 = 4_000;
const LONGEST_MICROS: u64 = 120_000;
/// Beyond two round trips, holding back costs more time than losing does.
const ROUND_TRIPS: u32 = 2;

/// The present window.
#[derive(Debug, Default)]
pub(crate) struct Stagger(AtomicU64);

impl Stagger {
    pub(crate) fn lost(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
            Some(window.saturating_mul(2).clamp(FIRST_MICROS, LONGEST_MICROS))
        });
    }

    pub(crate) fn won(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
            Some(if window / 2 < FIRST_MICROS { 0 } else { window / 2 })
        });
    }

    /// A random moment of the window; zero while nobody is in the way.
    pub(crate) fn hold_back(&self, round_trip: Duration) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            window => Duration::from_micros(window).min(round_trip * ROUND_TRIPS).mul_f64(random_fraction()),
        }
    }
}

/// Uniform in 0..=1.
pub(crate) fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness every pause is the longest one: slower, never wrong.
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_widens_the_window_to_a_bound_and_winning_closes_it() {
        const FAR: Duration = Duration::from_secs(1);
        let stagger = Stagger::default();
        assert!(stagger.hold_back(FAR).is_zero());
        stagger.won();
        assert!(stagger.hold_back(FAR).is_zero());
        for _ in 0..20 {
            stagger.lost();
        }
        let held: Vec<_> = (0..200).map(|_| stagger.hold_back(FAR)).collect();
        assert!(held.iter().all(|time| *time <= Duration::from_micros(LONGEST_MICROS)));
        assert!(held.iter().any(|time| *time > Duration::from_micros(LONGEST_MICROS / 2)));
        assert!((0..200).all(|_| stagger.hold_back(Duration::from_millis(3)) <= Duration::from_millis(6)));
        for _ in 0..20 {
            stagger.won();
        }
        assert!(stagger.hold_back(FAR).is_zero());
    }
}
