//! What does each operation read, decide and write?

mod acquire;
mod cleanup;
mod extend;
mod lookup;
mod owned;
mod release;
mod retry;

use syncguard_core::{Timestamp, Ttl};

use crate::backend::FirestoreBackend;
use crate::names::DocumentIds;

pub(crate) use retry::WriteRetry;

impl FirestoreBackend {
    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.wall()
    }

    pub(crate) fn begin(&self) -> WriteRetry {
        WriteRetry::begin(self.options.timeout, None)
    }

    pub(crate) fn begin_for(&self, lease: Ttl) -> WriteRetry {
        WriteRetry::begin(self.options.timeout, Some(lease))
    }

    pub(crate) fn lock_name(&self, ids: &DocumentIds) -> String {
        self.rpc.name(&self.options.collection, &ids.lock)
    }
}
