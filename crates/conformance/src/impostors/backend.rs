//! How does a call of an impostor reach its storage?
//!
//! Over a line that a case may break, and to a storage that a case may make busy.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use syncguard_core::time::{Clock, TokioClock};
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ErrorCode, ExtendOutcome, Inspector, Key, LockBackend, LockError,
    LockId, LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Ttl, WakeHint,
};

use super::{Flaw, Impostor};
use crate::Break;

impl Impostor {
    async fn through<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let line = *self.line.lock().unwrap_or_else(PoisonError::into_inner);
        match line {
            Break::Mended => return call.await,
            Break::RepliesLost => drop(call.await?),
            Break::Silent if self.has(Flaw::HangsWithTheStorage) => std::future::pending().await,
            Break::Silent => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let error = LockError::new(ErrorCode::NetworkTimeout, "no reply came");
        Err(if self.has(Flaw::IsNeverAmbiguous) { error } else { error.ambiguous() })
    }

    /// A network makes every call wait once; a busy storage, longer.
    pub(super) async fn not_busy(&self) {
        tokio::task::yield_now().await;
        let until = self.store().busy_until;
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }
}

impl LockBackend for Impostor {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("impostor", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.through(self.acquire_there(request)).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.through(self.release_there(lock_id)).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.through(self.extend_there(lock_id, ttl)).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.through(self.is_locked_there(key)).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.through(self.lookup_there(query)).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        tokio::task::yield_now().await;
        let dead = self.dead(self.now(), None);
        if self.has(Flaw::CleansUpWhatItSaw) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(self.remove(&dead))
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        let place = self.place(key);
        if self.has(Flaw::ConfirmsTooEarly) {
            let soon = tokio::time::Instant::now() + Duration::from_millis(5);
            self.store().heard_from.insert(place.clone(), soon);
        }
        self.hub.subscribe(&place)
    }

    fn inspector(&self) -> Option<Inspector> {
        Some(Inspector::new(self.clone()))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(TokioClock)
    }
}
