//! Was there ever more than one holder?
//!
//! Two witnesses that know nothing of the backend. The [`Witness`] stands at the door while it happens: it sees who is
//! inside. The [`History`] is checked afterwards: sorted by fence, the holds of a key must follow one another without
//! overlap. Its clock is a counter of this process, so that two events never share a moment, even in paused time.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use syncguard_core::{Fence, Key};

/// From just after a lock was granted to just before it was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What was held.
    pub key: Key,
    /// The fence that came with it.
    pub fence: Fence,
    /// The moment after acquire had answered.
    pub from: u64,
    /// The moment before release was asked.
    pub until: u64,
}

/// Why a history cannot be that of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// One fence was given twice.
    Repeated(Hold, Hold),
    /// The later fence was held before the earlier one was given back: an overlap, or the wrong order.
    OutOfOrder(Hold, Hold),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, first, second) = match self {
            Self::Repeated(first, second) => ("one fence was given twice", first, second),
            Self::OutOfOrder(first, second) => ("two holds overlap or are in the wrong order", first, second),
        };
        write!(f, "{what}: {first:?}, {second:?}")
    }
}

/// All holds of a run. Cheap to clone; clones write into the same history.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    moment: AtomicU64,
    holds: Mutex<Vec<Hold>>,
}

impl History {
    /// A moment that nobody else has.
    pub fn now(&self) -> u64 {
        self.0.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Adds a hold.
    pub fn add(&self, hold: Hold) {
        self.holds().push(hold);
    }

    /// How many holds there were.
    pub fn len(&self) -> usize {
        self.holds().len()
    }

    /// Whether nothing was ever held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the whole history in n log n.
    ///
    /// # Errors
    /// The first pair of holds that no lock allows.
    pub fn check(&self) -> Result<(), Violation> {
        let mut holds = self.holds().clone();
        holds.sort_by(|a, b| (&a.key, a.fence, a.from).cmp(&(&b.key, b.fence, b.from)));
        for pair in holds.windows(2) {
            let [first, second] = pair else { continue };
            if first.key != second.key {
                continue;
            }
            if first.fence == second.fence {
                return Err(Violation::Repeated(first.clone(), second.clone()));
            }
            if first.until >= second.from {
                return Err(Violation::OutOfOrder(first.clone(), second.clone()));
            }
        }
        Ok(())
    }

    // Every change is one push.
    fn holds(&self) -> std::sync::MutexGuard<'_, Vec<Hold>> {
        self.0.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One door per key: enters once, or says who is inside.
#[derive(Debug, Default)]
pub struct Witness {
    occupied: AtomicBool,
    highest: AtomicU64,
}

impl Witness {
    /// Goes in with a fence.
    ///
    /// # Panics
    /// When somebody is inside, or was inside with this fence or a later one.
    pub fn enter(&self, fence: Fence) {
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "two holders at once, the second with {fence:?}");
        let highest = self.highest.fetch_max(fence.get(), Ordering::SeqCst);
        assert!(highest < fence.get(), "{fence:?} came in after {highest}");
    }

    /// Goes out.
    pub fn leave(&self) {
        self.occupied.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(fence: u64, from: u64, until: u64) -> Hold {
        Hold { key: Key::new("k").unwrap(), fence: Fence::new(fence).unwrap(), from, until }
    }

    fn history(holds: &[Hold]) -> History {
        let history = History::default();
        for hold in holds {
            history.add(hold.clone());
        }
        history
    }

    #[test]
    fn holds_that_follow_one_another_are_accepted_in_any_order_of_writing() {
        assert_eq!(history(&[hold(3, 6, 7), hold(1, 0, 1), hold(2, 2, 5)]).check(), Ok(()));
    }

    #[test]
    fn swapping_two_fences_is_rejected() {
        let swapped = history(&[hold(1, 0, 1), hold(3, 2, 5), hold(2, 6, 7)]);
        assert!(matches!(swapped.check(), Err(Violation::OutOfOrder(..))));
    }

    #[test]
    fn overlapping_holds_are_rejected() {
        assert!(matches!(history(&[hold(1, 0, 4), hold(2, 3, 5)]).check(), Err(Violation::OutOfOrder(..))));
    }

    #[test]
    fn a_fence_given_twice_is_rejected() {
        assert!(matches!(history(&[hold(1, 0, 1), hold(1, 3, 5)]).check(), Err(Violation::Repeated(..))));
    }

    #[test]
    fn holds_of_different_keys_may_overlap() {
        let other = Hold { key: Key::new("other").unwrap(), ..hold(1, 0, 9) };
        assert_eq!(history(&[hold(1, 0, 4), other]).check(), Ok(()));
    }

    #[test]
    #[should_panic(expected = "two holders at once")]
    fn the_witness_sees_a_second_holder() {
        let witness = Witness::default();
        witness.enter(Fence::new(1).unwrap());
        witness.enter(Fence::new(2).unwrap());
    }

    #[test]
    #[should_panic(expected = "came in after 2")]
    fn the_witness_sees_a_stale_fence() {
        let witness = Witness::default();
        witness.enter(Fence::new(2).unwrap());
        witness.leave();
        witness.enter(Fence::new(1).unwrap());
    }
}
