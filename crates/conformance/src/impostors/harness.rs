//! How does the suite run on an impostor?

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::Key;

use super::{Flaw, Impostor, Place};
use crate::{Break, Budget, Harness, Line, Poison, Unsupported};

/// The harness of an [`Impostor`]. Use it paused.
#[derive(Debug)]
pub struct ImpostorHarness(Impostor);

impl ImpostorHarness {
    /// An impostor with one flaw.
    pub fn with(flaw: Flaw) -> Self {
        Self(Impostor::new(Some(flaw)))
    }

    /// The impostor without a flaw: a correct backend.
    pub fn honest() -> Self {
        Self(Impostor::new(None))
    }
}

impl Harness for ImpostorHarness {
    type Backend = Impostor;

    async fn backend(&self) -> Impostor {
        self.0.clone()
    }

    async fn elsewhere(&self) -> Impostor {
        Impostor { namespace: "there", ..self.0.clone() }
    }

    async fn cleaning(&self) -> Result<Impostor, Unsupported> {
        Ok(Impostor { cleans: true, ..self.0.clone() })
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        self.0.store().counters.insert(self.0.place(key), value);
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        Ok(self.0.store().counters.get(&self.0.place(key)).copied())
    }

    async fn poison(&self, key: &Key, _: Poison) -> Result<(), Unsupported> {
        self.0.store().places.insert(self.0.place(key), Place::Foreign);
        Ok(())
    }

    async fn damage_counter(&self, key: &Key) -> Result<(), Unsupported> {
        self.0.store().damaged.insert(self.0.place(key));
        Ok(())
    }

    async fn entries(&self) -> Result<usize, Unsupported> {
        let store = self.0.store();
        Ok(store.places.len() + store.leaked)
    }

    async fn on_a_line(&self) -> Result<(Impostor, Line), Unsupported> {
        let line = Arc::new(Mutex::new(Break::Mended));
        let backend = Impostor { line: line.clone(), ..self.0.clone() };
        Ok((backend, Line::new(move |now| *line.lock().unwrap_or_else(PoisonError::into_inner) = now)))
    }

    async fn hold_up(&self, _: &Key, time: Duration) -> Result<(), Unsupported> {
        self.0.store().busy_until = Some(tokio::time::Instant::now() + time);
        Ok(())
    }

    async fn backend_with_clock(&self, offset: i64) -> Result<Impostor, Unsupported> {
        Ok(Impostor { clock_offset: offset, ..self.0.clone() })
    }

    async fn set_up_again(&self) {
        if self.0.has(Flaw::SetUpForgets) {
            self.0.store().counters.clear();
        }
    }

    async fn restart(&self) -> Result<(), Unsupported> {
        Ok(())
    }

    fn budget(&self) -> Budget {
        Budget { contended_cycles: 1_000, ..Budget::default() }
    }
}
