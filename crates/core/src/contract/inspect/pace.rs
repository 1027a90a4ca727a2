//! How fast may a listing go?
//!
//! A step keeps a server, or a core of this machine, from everything else for about a millisecond. So the steps of this
//! process together take one part in twenty-five of the time, by how long they took: where others wait, that counts the
//! waiting too. What has not been used for a while may be used at once, so that a short listing is not held up.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// One part in so many is for listings.
const SHARE: u32 = 25;

/// How much may be used at once.
const BURST: Duration = Duration::from_millis(50);

/// Paces the steps of listings so that they take one part in twenty-five of the time. For backends: one for all listings
/// of a backend.
// Holds when all steps so far are paid for.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Waits until the next step may begin.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn wait(&self) {
        let paid = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begin) = paid.and_then(|paid| paid.checked_sub(BURST * SHARE)) {
            sleep_until(begin).await;
        }
    }

    /// Counts a step that took so long.
    pub fn took(&self, time: Duration) {
        let now = Instant::now();
        let mut paid = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *paid = Some(paid.map_or(now, |paid| paid.max(now)) + time * SHARE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_short_listing_is_not_held_up_and_a_long_one_takes_its_share() {
        let (pace, step) = (Pace::default(), Duration::from_millis(1));
        let steps = async |count: u32| {
            let start = Instant::now();
            for _ in 0..count {
                pace.wait().await;
                tokio::time::advance(step).await;
                pace.took(step);
            }
            start.elapsed()
        };
        // The first fifty find the pace unused.
        assert!(steps(50).await < Duration::from_millis(100));
        let long = steps(1000).await;
        assert!((Duration::from_secs(24)..Duration::from_secs(26)).contains(&long), "{long:?}");
        // After a rest the next is quick again.
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(steps(40).await < Duration::from_millis(100));
    }
}
