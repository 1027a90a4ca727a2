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

/// The keys with somebody inside. What has nobody inside is not kept: marks are remembered elsewhere.
#[derive(Default)]
pub(super) struct Gates(Mutex<HashMap<Key, Gate>>);

struct Gate {
    /// The highest fence that came since somebody was inside.
    highest: Fence,
    /// The one fence that is inside.
    inside: Fence,
    /// How many requests are inside. Never zero between two calls: the last one to leave removes the gate.
    count: usize,
    /// Tells those who wait that the last one has left.
    left: Arc<Notify>,
}

impl Gates {
    /// Waits until no older fence is inside.
    pub(super) async fn enter(self: &Arc<Self>, key: &Key, fence: Fence) -> Result<Inside, StaleFence> {
        loop {
            // Made before the lock is given back, so that a departure in between is not missed.
            let left = match self.try_enter(key, fence)? {
                None => return Ok(Inside { gates: self.clone(), key: key.clone() }),
                Some(left) => left.notified_owned(),
            };
            left.await;
        }
    }

    fn try_enter(&self, key: &Key, fence: Fence) -> Result<Option<Arc<Notify>>, StaleFence> {
        let mut gates = self.gates();
        let Some(gate) = gates.get_mut(key) else {
            gates.insert(key.clone(), Gate { highest: fence, inside: fence, count: 1, left: Arc::default() });
            return Ok(None);
        };
        let _ = compare(fence, Some(gate.highest))?;
        gate.highest = fence;
        if gate.inside != fence {
            return Ok(Some(gate.left.clone()));
        }
        gate.count += 1;
        Ok(None)
    }

    fn gates(&self) -> MutexGuard<'_, HashMap<Key, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is inside, until dropped.
pub(super) struct Inside {
    gates: Arc<Gates>,
    key: Key,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut gates = self.gates.gates();
        let Some(gate) = gates.get_mut(&self.key) else { return };
        gate.count -= 1;
        if gate.count == 0 {
            gate.left.notify_waiters();
            gates.remove(&self.key);
        }
    }
}
