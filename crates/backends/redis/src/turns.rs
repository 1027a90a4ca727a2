//! Whose turn is it, as far as this process knows?
//!
//! A release gives the turn to one of the processes that stand in line. The one that was told and then finds the lock
//! taken stands in front again, and the one that told stands back for a moment, so that asking again at once does not
//! win against whoever waits. Notes last for a moment; losing one costs a place in the line and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long everybody else leaves a lock to the one whose turn it is. It has heard the same message, so it need only
/// send its request meanwhile. If it hangs, this is what it costs.
pub(crate) const GRACE: Duration = Duration::from_millis(10);

/// A process that was told asks within this, or has other things to do.
const ASKS_WITHIN: Duration = Duration::from_secs(1);

/// Notes of locks that nobody asks for any more must not pile up.
const MANY: usize = 1_000;

/// Whose turn it is, by the name of the lock.
#[derive(Default)]
pub(crate) struct Turns(Mutex<HashMap<Arc<str>, (Turn, Instant)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This process was told so.
    Ours,
    /// This process told another, and leaves the lock to it for a moment.
    Theirs,
}

impl Turns {
    pub(crate) fn ours(&self, lock: &Arc<str>) {
        self.note(lock, Turn::Ours, ASKS_WITHIN);
    }

    pub(crate) fn theirs(&self, lock: &Arc<str>) {
        self.note(lock, Turn::Theirs, GRACE);
    }

    /// Somebody else has had the lock since: there is nobody to stand back for.
    pub(crate) fn is_over(&self, lock: &str) {
        let mut turns = self.turns();
        if matches!(turns.get(lock), Some((Turn::Theirs, _))) {
            turns.remove(lock);
        }
    }

    fn note(&self, lock: &Arc<str>, turn: Turn, lasts: Duration) {
        let now = Instant::now();
        let mut turns = self.turns();
        if turns.len() >= MANY {
            turns.retain(|_, (_, ends)| *ends > now);
        }
        turns.insert(lock.clone(), (turn, now + lasts));
    }

    /// Whether the lock is left to the one whose turn it is.
    pub(crate) fn is_theirs(&self, lock: &str) -> bool {
        self.turns().get(lock).is_some_and(|(turn, ends)| *turn == Turn::Theirs && *ends > Instant::now())
    }

    /// Whether it is our turn. Said once: this request answers it.
    pub(crate) fn take_ours(&self, lock: &str) -> bool {
        let mut turns = self.turns();
        let is_ours = turns.get(lock).is_some_and(|(turn, _)| *turn == Turn::Ours);
        is_ours && turns.remove(lock).is_some_and(|(_, ends)| ends > Instant::now())
    }

    // Every change is one step: a panic elsewhere leaves the map right.
    fn turns(&self) -> MutexGuard<'_, HashMap<Arc<str>, (Turn, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_ours_once_and_theirs_for_a_moment() {
        let (turns, lock) = (Turns::default(), Arc::from("app:k"));
        turns.ours(&lock);
        assert!(!turns.take_ours("app:other") && !turns.is_theirs(&lock));
        assert_eq!((turns.take_ours(&lock), turns.take_ours(&lock)), (true, false));

        turns.theirs(&lock);
        tokio::time::advance(GRACE / 2).await;
        assert!(turns.is_theirs(&lock));
        tokio::time::advance(GRACE).await;
        assert!(!turns.is_theirs(&lock));
        turns.theirs(&lock);
        turns.is_over(&lock);
        assert!(!turns.is_theirs(&lock));
    }

    #[tokio::test(start_paused = true)]
    async fn notes_that_nobody_asks_for_do_not_pile_up() {
        let turns = Turns::default();
        for number in 0..10 * MANY {
            turns.theirs(&Arc::from(number.to_string()));
            tokio::time::advance(GRACE / 100).await;
        }
        assert!(turns.turns().len() <= MANY);
    }
}
