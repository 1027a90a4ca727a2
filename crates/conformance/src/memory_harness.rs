//! How does the suite run on the reference backend?

use std::time::Duration;

use syncguard_core::{Key, MemoryBackend};

use crate::{Budget, Harness, Unsupported};

/// The harness of [`MemoryBackend`]: the suite proves itself on it, and yours can be as short.
#[derive(Debug, Default)]
pub struct MemoryHarness {
    backend: MemoryBackend,
    elsewhere: MemoryBackend,
}

impl MemoryHarness {
    /// Two empty memories.
    pub fn start() -> Self {
        Self::default()
    }
}

impl Harness for MemoryHarness {
    type Backend = MemoryBackend;

    async fn backend(&self) -> MemoryBackend {
        self.backend.clone()
    }

    async fn elsewhere(&self) -> MemoryBackend {
        self.elsewhere.clone()
    }

    async fn cleaning(&self) -> Result<MemoryBackend, Unsupported> {
        Ok(self.backend.cleaning_up())
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        self.backend.set_counter(key, value);
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        Ok(self.backend.counter(key))
    }

    // The storage is this process: it cannot restart without the case.
    async fn restart(&self) -> Result<(), Unsupported> {
        Ok(())
    }

    fn budget(&self) -> Budget {
        Budget { contended_cycles: 100_000, ..Budget::default() }
    }

    fn slack(&self) -> Duration {
        Duration::from_millis(100)
    }
}
