//! Who asks, when many tasks of one process wait for one key?
//!
//! The one that came first. What the storage answers to one of them holds for all, so ten thousand waiters need one of
//! them at the storage. They stand in a queue: the first hears of releases, looks when the holder's lease ends, and
//! retries by its schedule. The others sleep; when a retry of theirs is due, what was learned last stands for the
//! answer, as long as it is young.
//!
//! Nobody depends on the first: it may be a future that nobody polls, or its request may hang. Whoever finds that
//! nothing was learned lately calls it, and if it does not move, passes it over and asks itself.
//!
//! [`Queue`] decides, and knows neither clock nor I/O; [`Place`] is what one waiter has of it.

#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::sync::{Instant, Mutex, MutexGuard, Notify};
use crate::time::TOLERANCE;
use crate::{Contention, Key, Ttl};

/// For how long an answer stands for the retries of others. A crowd that no hint reaches asks this often, whatever its
/// size.
const YOUNG: Duration = Duration::from_millis(100);

/// How long the first may take to move, and its request to be answered, before the others go on without.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many in a row may follow one hint and learn nothing. After them the storage is in trouble, and the schedule
/// rules.
const FOLLOWERS: u32 = 3;

/// How many may ask at once at the end of their time while the storage does not answer, to learn why.
const LAST_WORDS: usize = 16;

/// The queues of one locker.
pub(crate) struct Queues {
    /// How many want a key of each slot at the moment. Whoever is alone in its slot needs no queue, and an acquire
    /// that meets nobody pays for no table. Two keys in one slot cost each other a look into the table, nothing else.
    wanted: [AtomicU32; SLOTS],
    /// How many came so far. Who came first stands first, also when it joins the queue late.
    arrivals: AtomicU64,
    keys: Mutex<HashMap<Key, Queue>>,
}

const SLOTS: usize = 64;

impl Default for Queues {
    fn default() -> Self {
        Self { wanted: [const { AtomicU32::new(0) }; SLOTS], arrivals: AtomicU64::new(0), keys: Mutex::default() }
    }
}

impl Queues {
    // A panic while the table was locked leaves a queue in which somebody may be missing; the others go on.
    fn keys(&self) -> MutexGuard<'_, HashMap<Key, Queue>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slot(key: &Key) -> usize {
    let bytes = key.as_str().as_bytes();
    // Keys of one program often begin alike, and differ in the last bytes.
    bytes.iter().rev().take(4).fold(bytes.len(), |mixed, byte| mixed * 31 + usize::from(*byte)) % SLOTS
}

/// One waiter's part in the queue of its key, given up when it is dropped.
pub(crate) struct Place<'a> {
    queues: &'a Queues,
    key: &'a Key,
    slot: usize,
    number: u64,
    /// Rung when this waiter is to look at its turn. `None` until it has joined the queue.
    bell: Option<Arc<Notify>>,
    /// Whether the queue counts a request of this waiter as under way.
    is_asking: bool,
}

impl<'a> Place<'a> {
    /// Joins the queue if anybody else wants the key now. Whoever is alone asks first, and joins when it must wait.
    pub(crate) fn new(queues: &'a Queues, key: &'a Key) -> Self {
        let slot = slot(key);
        let is_alone = queues.wanted[slot].fetch_add(1, Ordering::Relaxed) == 0;
        let number = queues.arrivals.fetch_add(1, Ordering::Relaxed);
        let mut place = Self { queues, key, slot, number, bell: None, is_asking: false };
        if !is_alone {
            place.join(|_| ());
        }
        place
    }

    /// Whether a retry that is due now is to be made. `slept` is what this waiter waited for it; `is_last` when none
    /// follows it.
    pub(crate) fn may_ask(&self, slept: Duration, is_last: impl FnOnce() -> bool) -> bool {
        self.with(|queue| queue.retry(self.number, Instant::now(), slept, is_last())).unwrap_or(true)
    }

    /// Looks whether it is this waiter's turn.
    pub(crate) fn turn(&self) -> Turn {
        self.with(|queue| queue.turn(self.number)).unwrap_or_default()
    }

    /// Resolves when the turn may have changed.
    pub(crate) async fn called(&self) {
        match &self.bell {
            Some(bell) => bell.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Lets the first look: a release may have gone unheard.
    pub(crate) fn call_first(&self) {
        self.with(|queue| queue.call(Instant::now(), true));
    }

    /// A request leaves.
    pub(crate) fn ask(&mut self) {
        self.is_asking = self.with(|queue| queue.ask(Instant::now())).is_some();
    }

    /// Somebody else holds the lock.
    pub(crate) fn contended(&mut self, contention: Contention) {
        self.answered(|queue, now| queue.contended(now, contention.free_in));
    }

    /// The request failed.
    pub(crate) fn failed(&mut self) {
        self.answered(Queue::failed);
    }

    /// The request that a hint had led to failed: lets the next one look in its stead.
    pub(crate) fn step_back(&self) {
        self.with(|queue| queue.step_back(self.number, Instant::now()));
    }

    /// This waiter has the lock, and waits no longer.
    pub(crate) fn acquired(&mut self, ttl: Ttl) {
        if self.bell.is_some() {
            let was_asking = std::mem::take(&mut self.is_asking);
            self.leave(|queue, number, now| {
                queue.asking -= usize::from(was_asking);
                queue.acquired(number, now, ttl.duration() + TOLERANCE);
            });
        }
    }

    /// How long the lock stays taken if nobody renews its lease, by what the queue knows.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let free_at = self.with(|queue| queue.free_at)??;
        Some(free_at.saturating_duration_since(Instant::now()))
    }

    fn answered(&mut self, learn: impl FnOnce(&mut Queue, Instant)) {
        let was_asking = std::mem::take(&mut self.is_asking);
        self.join(|queue| {
            queue.asking -= usize::from(was_asking);
            learn(queue, Instant::now());
        });
    }

    fn join(&mut self, then: impl FnOnce(&mut Queue)) {
        let mut keys = self.queues.keys();
        let queue = keys.entry(self.key.clone()).or_default();
        if self.bell.is_none() {
            self.bell = Some(queue.join(self.number));
        }
        then(queue);
    }

    fn leave(&mut self, then: impl FnOnce(&mut Queue, u64, Instant)) {
        self.bell = None;
        let mut keys = self.queues.keys();
        let Some(queue) = keys.get_mut(self.key) else { return };
        then(queue, self.number, Instant::now());
        if queue.seats.is_empty() {
            keys.remove(self.key);
        }
    }

    /// `None` while this waiter stands in no queue.
    fn with<T>(&self, then: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        self.bell.as_ref()?;
        self.queues.keys().get_mut(self.key).map(then)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.bell.is_some() {
            let was_asking = self.is_asking;
            self.leave(|queue, number, now| {
                queue.asking -= usize::from(was_asking);
                // What it had asked, and why, nobody knows any more.
                queue.look |= was_asking;
                queue.remove(number, now);
            });
        }
        self.queues.wanted[self.slot].fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a waiter is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Whether this waiter is the one that hears and asks.
    pub(crate) is_first: bool,
    /// Whether it is to ask at once.
    pub(crate) look: bool,
    /// When the holder's lease can be taken over, if that is known and this waiter's to watch.
    pub(crate) free_at: Option<Instant>,
}

impl Default for Turn {
    /// The turn of one that stands in no queue.
    fn default() -> Self {
        Self { is_first: true, look: false, free_at: None }
    }
}

/// The waiters for one key.
#[derive(Default)]
struct Queue {
    /// By the order in which they came.
    seats: BTreeMap<u64, Seat>,
    /// Requests under way of those in the queue.
    asking: usize,
    /// When the last request left or was answered.
    asked: Option<Instant>,
    /// When the first was called. `None` once it has moved.
    called: Option<Instant>,
    /// Whether the first is to ask when it moves. Kept until somebody does: a hint that is dropped here is lost.
    look: bool,
    /// Requests in a row that failed.
    failures: u32,
    free_at: Option<Instant>,
}

struct Seat {
    bell: Arc<Notify>,
    /// Whether it did not move when it was called, or steps back. Undone when it moves: it keeps its place.
    is_passed: bool,
}

impl Queue {
    fn join(&mut self, number: u64) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        self.seats.insert(number, Seat { bell: bell.clone(), is_passed: false });
        bell
    }

    fn first(&self) -> Option<u64> {
        let waiting = self.seats.iter().find(|(_, seat)| !seat.is_passed);
        waiting.or(self.seats.first_key_value()).map(|(number, _)| *number)
    }

    /// This waiter moves. Whether it is the first.
    fn moved(&mut self, number: u64) -> bool {
        if let Some(seat) = self.seats.get_mut(&number) {
            seat.is_passed = false;
        }
        let is_first = self.first() == Some(number);
        if is_first {
            self.called = None;
        }
        is_first
    }

    fn turn(&mut self, number: u64) -> Turn {
        let is_first = self.moved(number);
        let look = is_first && std::mem::take(&mut self.look);
        Turn { is_first, look, free_at: self.free_at.filter(|_| is_first) }
    }

    fn retry(&mut self, number: u64, now: Instant, slept: Duration, is_last: bool) -> bool {
        if self.moved(number) {
            self.look = false;
            return true;
        }
        if is_last && self.failures > 0 {
            return self.asking < LAST_WORDS;
        }
        // A last pause is as short as the rest of the time, which says nothing about how often this waiter would ask.
        if self.knows(now, if is_last { YOUNG } else { slept }) {
            return false;
        }
        match self.called {
            _ if is_last => true,
            None => {
                self.call(now, true);
                false
            }
            Some(since) if now.saturating_duration_since(since) < PATIENCE => false,
            Some(_) => {
                self.pass_over(self.first());
                self.call(now, true);
                true
            }
        }
    }

    /// Whether somebody asked so lately that another need not.
    fn knows(&self, now: Instant, slept: Duration) -> bool {
        let within = if self.asking > 0 { PATIENCE } else { slept.min(YOUNG) };
        self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < within)
    }

    fn call(&mut self, now: Instant, look: bool) {
        self.look |= look;
        if let Some(first) = self.first() {
            self.called.get_or_insert(now);
            self.seats[&first].bell.notify_one();
        }
    }

    fn pass_over(&mut self, number: Option<u64>) {
        if let Some(seat) = number.and_then(|number| self.seats.get_mut(&number)) {
            seat.is_passed = true;
            self.called = None;
        }
    }

    fn step_back(&mut self, number: u64, now: Instant) {
        if self.failures <= FOLLOWERS && self.seats.len() > 1 {
            self.pass_over(Some(number));
            self.call(now, true);
        }
    }

    fn ask(&mut self, now: Instant) {
        self.asking += 1;
        self.asked = Some(now);
    }

    fn contended(&mut self, now: Instant, free_in: Option<Duration>) {
        self.asked = Some(now);
        self.failures = 0;
        self.free_at = free_in.and_then(|free_in| now.checked_add(free_in));
    }

    fn failed(&mut self, now: Instant) {
        self.asked = Some(now);
        self.failures = self.failures.saturating_add(1);
        self.free_at = None;
    }

    fn acquired(&mut self, number: u64, now: Instant, free_in: Duration) {
        self.contended(now, Some(free_in));
        // Whatever was to be looked for is in our own hands now, and its release will be heard.
        self.look = false;
        self.remove(number, now);
    }

    fn remove(&mut self, number: u64, now: Instant) {
        let was_first = self.first() == Some(number);
        self.seats.remove(&number);
        if was_first {
            self.called = None;
            self.call(now, false);
        }
    }
}
