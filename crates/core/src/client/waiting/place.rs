//! How do tasks share a room?
//!
//! A [`Place`] is what one waiter has of it: it brings the time and a random number, rings bells, keeps the registration
//! for hints, and leaves when it is dropped. All that is decided is decided in `room`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::client::waiting::room::{Event, Room, Step, Waiter};
use crate::retry::RetryPolicy;
use crate::sync::{Instant, Mutex, MutexGuard, Notify, sleep_until};
use crate::{Key, Ttl, WakeHint};

/// The rooms of one locker.
pub(crate) struct Rooms {
    /// How many want a key of each slot at the moment. Whoever is alone in its slot needs no room, and an acquire that
    /// meets nobody pays for no table. Two keys in one slot cost each other a look into the table, nothing else.
    wanted: [AtomicU32; SLOTS],
    /// How many came so far. Who came first stands first, also when it enters the room late.
    arrivals: AtomicU64,
    keys: Mutex<HashMap<Key, Room>>,
}

const SLOTS: usize = 64;

impl Default for Rooms {
    fn default() -> Self {
        Self { wanted: [const { AtomicU32::new(0) }; SLOTS], arrivals: AtomicU64::new(0), keys: Mutex::default() }
    }
}

impl Rooms {
    // A panic while the table was locked leaves a room in which somebody may be missing; the others go on.
    fn keys(&self) -> MutexGuard<'_, HashMap<Key, Room>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn slot(key: &Key) -> usize {
    let bytes = key.as_str().as_bytes();
    // Keys of one program often begin alike, and differ in the last bytes.
    bytes.iter().rev().take(4).fold(bytes.len(), |mixed, byte| mixed * 31 + usize::from(*byte)) % SLOTS
}

/// One waiter's part in the room of its key, given up when it is dropped.
pub(crate) struct Place<'a> {
    rooms: &'a Rooms,
    key: &'a Key,
    slot: usize,
    waiter: Waiter,
    /// Whether it waits at all: whoever tries once stands in nobody's way.
    is_patient: bool,
    /// Rung when this waiter is to move. `None` until it has entered the room.
    bell: Option<Arc<Notify>>,
    /// The registration for hints; `None` before it was asked for.
    hint: Option<WakeHint>,
}

impl<'a> Place<'a> {
    /// Comes, and takes the first step. Whoever is alone asks, and enters the room when it must wait.
    pub(crate) fn new(rooms: &'a Rooms, key: &'a Key, policy: &RetryPolicy, started: Instant) -> (Self, Step) {
        let slot = slot(key);
        let is_alone = rooms.wanted[slot].fetch_add(1, Ordering::Relaxed) == 0;
        let number = rooms.arrivals.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter::new(number, policy.clone(), started, Instant::now());
        let mut place = Self { rooms, key, slot, waiter, is_patient: policy.is_patient(), bell: None, hint: None };
        let asks = is_alone || !place.is_patient;
        let step = if asks { place.waiter.begin_alone() } else { place.on(Event::Moved) };
        (place, step)
    }

    /// Tells what happened, and learns what to do next.
    pub(crate) fn on(&mut self, event: Event) -> Step {
        if !self.is_patient {
            return Step::GiveUp;
        }
        if matches!(event, Event::Failed) && !self.waiter.is_scheduled() {
            // A hint led to it, and nobody knows what it was for: another locker of this process may follow it.
            self.pass_on();
        }
        let mut keys = self.rooms.keys();
        let room = keys.entry(self.key.clone()).or_default();
        if self.bell.is_none() {
            self.bell = Some(room.enter(&self.waiter));
        }
        room.on(&mut self.waiter, event, Instant::now(), random_fraction())
    }

    /// This waiter has the lock, and waits no longer.
    pub(crate) fn acquired(&mut self, ttl: Ttl) {
        self.go(|room, waiter| room.acquired(waiter, ttl, Instant::now()));
    }

    /// Waits until a step of [`Step::Sleep`] or [`Step::Listen`] is over.
    pub(crate) async fn wait(&self, until: Instant, listens: bool) -> Event {
        let (bell, hint) = (self.bell.as_ref(), self.hint.as_ref().filter(|_| listens));
        tokio::select! {
            () = sleep_until(until) => Event::Moved,
            () = rung(bell) => Event::Moved,
            () = woken(hint) => Event::MayBeFree,
        }
    }

    /// Keeps the registration for hints.
    pub(crate) fn subscribed(&mut self, hint: WakeHint) -> Step {
        // A release before the first registration of the process was heard by nobody.
        let event = Event::Subscribed { hears: hint.hears(), look: hint.is_first() };
        self.hint = Some(hint);
        self.on(event)
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.hint.is_some()
    }

    /// What is known in the room of a holder: whether one is seen, and how long its lease lasts if nobody renews it.
    /// `None` outside of a room.
    pub(crate) fn what_is_known(&self) -> Option<(bool, Option<Duration>)> {
        self.bell.as_ref()?;
        let (keys, now) = (self.rooms.keys(), Instant::now());
        let room = keys.get(self.key)?;
        Some((room.sees_a_holder(now), room.free_at().map(|at| at.saturating_duration_since(now))))
    }

    fn pass_on(&self) {
        if let Some(hint) = &self.hint {
            hint.pass_on();
        }
    }

    fn go<T>(&mut self, go: impl FnOnce(&mut Room, &mut Waiter) -> T) -> Option<T> {
        self.bell.take()?;
        let mut keys = self.rooms.keys();
        let room = keys.get_mut(self.key)?;
        let left = go(room, &mut self.waiter);
        if room.is_empty() {
            keys.remove(self.key);
        }
        Some(left)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.go(|room, waiter| room.leave(waiter, Instant::now())) == Some(true) {
            self.pass_on();
        }
        self.rooms.wanted[self.slot].fetch_sub(1, Ordering::Relaxed);
    }
}

async fn rung(bell: Option<&Arc<Notify>>) {
    match bell {
        Some(bell) => bell.notified().await,
        None => std::future::pending().await,
    }
}

async fn woken(hint: Option<&WakeHint>) {
    match hint {
        Some(hint) => hint.woken().await,
        None => std::future::pending().await,
    }
}

/// A number in `0.0..1.0`. Not for secrets.
fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness the schedule loses its jitter and nothing else.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0)
}
