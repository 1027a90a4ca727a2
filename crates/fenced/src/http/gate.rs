//! Who may be inside at the same time?
//!
//! Requests of one fence: they are the same holder. A newer fence waits until the older ones have been answered, and
//! from its arrival on older ones are turned away. Without this, a request that was accepted and then lingered would
//! write after its successor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use syncguard_core::{Fence, Key};
use tokio::sync::Notify;

use crate::{StaleFence, compare};

/// The keys with somebody inside or waiting. Other keys are not kept: marks are remembered elsewhere.
#[derive(Default)]
pub(super) struct Gates(Mutex<HashMap<Key, Gate>>);

struct Gate {
    /// The highest fence that came since the gate is kept. Never lower than `inside`.
    highest: Fence,
    /// The one fence that is inside; without meaning while `count` is zero.
    inside: Fence,
    /// How many requests are inside.
    count: usize,
    /// How many wait. While it is not zero the gate is kept, so that nobody forgets what they wait with.
    waiting: usize,
    /// Tells those who wait that the last one has left.
    left: Arc<Notify>,
}

/// What a request finds at the gate.
pub(super) enum Entry {
    Inside(Inside),
    /// An older fence is inside.
    MustWait(Waiting),
}

impl Gates {
    pub(super) fn try_enter(self: &Arc<Self>, key: &Key, fence: Fence) -> Result<Entry, StaleFence> {
        let mut gates = self.gates();
        let gate = gates.entry(key.clone()).or_insert_with(|| Gate {
            highest: fence,
            inside: fence,
            count: 0,
            waiting: 0,
            left: Arc::default(),
        });
        let _ = compare(fence, Some(gate.highest))?;
        gate.highest = fence;
        let place = Place { gates: self.clone(), key: key.clone() };
        if gate.count > 0 && gate.inside != fence {
            gate.waiting += 1;
            // Made before the lock is given back, so that a departure in between is not missed.
            return Ok(Entry::MustWait(Waiting { left: Box::pin(gate.left.clone().notified_owned()), place }));
        }
        gate.inside = fence;
        gate.count += 1;
        Ok(Entry::Inside(Inside(place)))
    }

    fn gates(&self) -> MutexGuard<'_, HashMap<Key, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Place {
    gates: Arc<Gates>,
    key: Key,
}

impl Place {
    fn leave(&self, departure: impl FnOnce(&mut Gate)) {
        let mut gates = self.gates.gates();
        let Some(gate) = gates.get_mut(&self.key) else { return };
        departure(gate);
        if gate.count == 0 {
            gate.left.notify_waiters();
        }
        if gate.count == 0 && gate.waiting == 0 {
            gates.remove(&self.key);
        }
    }
}

/// A request that is inside, until dropped.
pub(super) struct Inside(Place);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.leave(|gate| gate.count -= 1);
    }
}

/// A request that waits, until dropped.
pub(super) struct Waiting {
    left: std::pin::Pin<Box<tokio::sync::futures::OwnedNotified>>,
    place: Place,
}

impl Waiting {
    /// Waits until the older ones have left. Try again before this is dropped: until then the gate knows the fence.
    pub(super) async fn over(&mut self) {
        self.left.as_mut().await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.place.leave(|gate| gate.waiting -= 1);
    }
}
