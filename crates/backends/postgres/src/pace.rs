//! How many statements of one kind may be under way at once?
//!
//! As many as there are connections, as long as the server answers as fast as it can. Statements that take much longer
//! than the fastest one wait for each other inside the server, and more of them at once only wait longer: operations
//! that wait here instead go together, which costs the server far less. So the number falls by one with every slow
//! answer and rises by one with every so many fast ones in a row: among many that wait for each other some are fast by
//! chance. Far from the server the time is spent on the way, where statements do not wait for each other, however much their
//! times differ: nobody waits here.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The fastest answer of this time and of the one before it counts, so that a server that became slow is not measured by
/// what it once was.
const MEMORY: Duration = Duration::from_secs(10);

/// One statement alone leaves the server idle while its answer and the next question travel.
const LEAST: usize = 2;

/// So many fast answers in a row raise the number by one.
const CONVINCING: u32 = 32;

/// Where the fastest answer takes longer, the server's work is the lesser part of it.
const FAR: Duration = Duration::from_millis(5);

/// Longer than this was not the server's work but a wait for somebody's lock or for a connection.
pub(crate) const STUCK: Duration = Duration::from_millis(100);

/// What the lines of a runtime share: how many statements may be under way, and how many are.
pub(crate) struct Road {
    pace: Mutex<Pace>,
    pub(crate) under_way: AtomicUsize,
}

impl Road {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { pace: Mutex::new(Pace::new(most)), under_way: AtomicUsize::new(0) })
    }

    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Pace {
    limit: usize,
    most: usize,
    /// Fast answers since the last slow one, or since the number rose.
    in_a_row: u32,
    /// The fastest answer since `since`, and of the time before it.
    fastest: [Option<Duration>; 2],
    since: Instant,
}

impl Pace {
    pub(crate) fn new(most: usize) -> Self {
        Self { limit: most, most, in_a_row: 0, fastest: [None; 2], since: Instant::now() }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A statement for so many operations took so long.
    pub(crate) fn note(&mut self, took: Duration, operations: usize) {
        if took >= STUCK {
            return;
        }
        if self.since.elapsed() >= MEMORY {
            self.fastest = [None, self.fastest[0]];
            self.since = Instant::now();
        }
        self.fastest[0] = Some(self.fastest[0].map_or(took, |fastest| fastest.min(took)));
        let fastest = self.fastest.iter().flatten().min().copied().unwrap_or(took);
        if fastest >= FAR {
            self.limit = self.most;
        } else if took > slow(fastest, operations) {
            self.limit = (self.limit - 1).max(LEAST.min(self.most));
            self.in_a_row = 0;
            return;
        }
        self.in_a_row += 1;
        if self.in_a_row == CONVINCING {
            self.limit = (self.limit + 1).min(self.most);
            self.in_a_row = 0;
        }
    }
}

/// Longer than this is slow for a statement whose like the server answers in `fastest` at best: half as long again, and a
/// tenth for every further operation in it. With twice as long, eight tasks were held between going alone and going
/// together, and did less than with either.
fn slow(fastest: Duration, operations: usize) -> Duration {
    let further = u32::try_from(operations.saturating_sub(1)).unwrap_or(u32::MAX);
    fastest.saturating_mul(15_u32.saturating_add(further)) / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(100);
    const SLOW: Duration = Duration::from_micros(400);

    /// As many fast answers as raise the number by one.
    fn convince(pace: &mut Pace) {
        for _ in 0..CONVINCING {
            pace.note(FAST, 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_answers_lower_the_number_to_two_and_many_fast_ones_raise_it_again() {
        let mut pace = Pace::new(4);
        pace.note(FAST, 1);
        assert_eq!(pace.limit(), 4);
        for expected in [3, 2, 2] {
            pace.note(SLOW, 1);
            assert_eq!(pace.limit(), expected);
        }
        for expected in [3, 4, 4] {
            convince(&mut pace);
            assert_eq!(pace.limit(), expected);
        }
        let mut single = Pace::new(1);
        single.note(FAST, 1);
        single.note(SLOW, 1);
        assert_eq!(single.limit(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_are_fast_by_chance_raise_nothing() {
        let mut pace = Pace::new(4);
        for _ in 0..10 {
            for _ in 1..CONVINCING {
                pace.note(FAST, 1);
            }
            pace.note(SLOW, 1);
        }
        assert_eq!(pace.limit(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_statement_for_many_may_take_longer() {
        let mut pace = Pace::new(4);
        pace.note(FAST, 1);
        pace.note(SLOW, 64);
        assert_eq!(pace.limit(), 4);
        pace.note(SLOW, 8);
        assert_eq!(pace.limit(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn far_from_the_server_times_that_differ_say_nothing() {
        let mut pace = Pace::new(4);
        for took in [30, 50, 35, 60, 45].map(Duration::from_millis) {
            pace.note(took, 1);
            assert_eq!(pace.limit(), 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_lock_says_nothing_about_the_server() {
        let mut pace = Pace::new(4);
        pace.note(FAST, 1);
        pace.note(STUCK, 1);
        assert_eq!(pace.limit(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_became_slow_for_good_is_measured_anew() {
        let mut pace = Pace::new(4);
        pace.note(FAST, 1);
        pace.note(SLOW, 1);
        pace.note(SLOW, 1);
        assert_eq!(pace.limit(), 2);
        tokio::time::advance(MEMORY).await;
        pace.note(SLOW, 1);
        assert_eq!(pace.limit(), 2, "what it was a while ago counts");
        tokio::time::advance(MEMORY).await;
        for _ in 0..CONVINCING {
            pace.note(SLOW, 1);
        }
        assert_eq!(pace.limit(), 3, "what it was long ago does not");
    }
}
