//! Marks in this process's memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use syncguard_core::{Fence, Key};

use crate::{Accepted, HighWater, Result, compare};

/// Marks that live as long as the process: for one server whose data does not outlive it either, and for tests.
///
/// After a restart it has seen nothing, and a stale holder that was refused before would be accepted. It keeps one mark
/// for each key it was ever asked about.
#[derive(Default)]
pub struct MemoryMarks(Mutex<HashMap<Key, Fence>>);

impl MemoryMarks {
    /// Returns a store that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<Key, Fence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMarks").field("keys", &self.marks().len()).finish()
    }
}

impl HighWater for MemoryMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        let mut marks = self.marks();
        if compare(fence, marks.get(key).copied())? == Accepted::Higher {
            marks.insert(key.clone(), fence);
        }
        Ok(())
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        Ok(self.marks().get(key).copied())
    }
}
