//! How does every call to a backend come into the history, also those that nobody waits for?
//!
//! A backend around the backend. Renewals, retries under the same id and the clean-up of abandoned attempts all pass
//! through it. A call whose future is dropped has no return: its outcome is unknown, as it is to the client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use syncguard::telemetry::LockEvent;
use syncguard::{
    AcquireOutcome, AcquireRequest, Capabilities, Clock, ExtendOutcome, HealthReport, Key, LockBackend, LockError,
    LockId, LockInfo, Lookup, ReleaseOutcome, Result, Ttl, WakeHint,
};

use crate::history::{Answer, Call, Recorder, What};

/// A backend whose calls are written down.
#[derive(Debug)]
pub struct Recorded<B> {
    inner: B,
    recorder: Arc<Recorder>,
    /// Extend and release are by lock id alone; checks are per key.
    keys: Mutex<HashMap<String, String>>,
}

impl<B> Recorded<B> {
    /// Writes down the calls to `inner`.
    pub fn new(inner: B, recorder: Arc<Recorder>) -> Self {
        Self { inner, recorder, keys: Mutex::default() }
    }

    fn invoke(&self, call: Call, key: Option<&Key>, id: &LockId) -> u64 {
        let op = self.recorder.number();
        let id = id.hash().to_string();
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let key = match key {
            Some(key) => keys.entry(id.clone()).insert_entry(key.as_str().to_owned()).get().clone(),
            None => keys.get(&id).cloned().unwrap_or_default(),
        };
        drop(keys);
        self.recorder.record(What::Invoke { op, call, key, id });
        op
    }

    fn answer<T>(&self, op: u64, result: &Result<T>, read: impl FnOnce(&T) -> Answer) {
        let answer = match result {
            Ok(outcome) => read(outcome),
            Err(error) => failed(error),
        };
        self.recorder.record(What::Return { op, answer });
    }
}

fn failed(error: &LockError) -> Answer {
    if error.is_ambiguous() { Answer::Unknown } else { Answer::Refused }
}

impl<B: LockBackend> LockBackend for Recorded<B> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let op = self.invoke(Call::Acquire, Some(request.key), request.lock_id);
        let result = self.inner.acquire(request).await;
        self.answer(op, &result, |outcome| match outcome {
            AcquireOutcome::Acquired(lease) => Answer::Acquired(lease.fence.get()),
            AcquireOutcome::Contended(_) => Answer::Contended,
        });
        result
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let op = self.invoke(Call::Release, None, lock_id);
        let result = self.inner.release(lock_id).await;
        self.answer(op, &result, |outcome| if outcome.is_released() { Answer::Released } else { Answer::Absent });
        result
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let op = self.invoke(Call::Extend, None, lock_id);
        let result = self.inner.extend(lock_id, ttl).await;
        self.answer(op, &result, |outcome| if outcome.is_extended() { Answer::Extended } else { Answer::Absent });
        result
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.inner.is_locked(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.inner.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.inner.purge_expired().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.inner.subscribe(key).await
    }

    async fn health(&self) -> HealthReport {
        self.inner.health().await
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.inner.new_lock_id(key)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn observe(&self, event: &LockEvent) {
        self.inner.observe(event);
    }
}
