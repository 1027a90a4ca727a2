//! How can one type stand for every storage?
//!
//! [`AnyBackend`] erases the storage, so that nothing above the contract is generic over it. It costs one box per call.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::telemetry::LockEvent;
use crate::time::Clock;
use crate::wake::WakeHint;
use crate::{
    AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, HealthReport, Inspector, Key, Label, LockBackend,
    LockId, LockInfo, Lookup, ReleaseOutcome, Result, Ttl,
};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Any backend. Cheap to clone.
///
/// ```
/// use syncguard_core::{AnyBackend, LockBackend, MemoryBackend};
///
/// let backend = AnyBackend::new(MemoryBackend::new());
/// assert_eq!(backend.capabilities().backend, "memory");
/// ```
#[derive(Clone)]
pub struct AnyBackend(Arc<dyn Erased>);

impl AnyBackend {
    /// Erases a backend's type. One that is erased already is not wrapped again.
    pub fn new(backend: impl LockBackend) -> Self {
        backend.into_any()
    }

    pub(crate) fn erase(backend: impl LockBackend) -> Self {
        Self(Arc::new(backend))
    }

    /// An acquire that owns what it needs, so that it can go on when its caller has left. Boxed once.
    pub(crate) fn acquire_owned(&self, request: OwnedRequest) -> PendingAcquire {
        self.0.clone().acquire_owned(request)
    }
}

/// An acquire that may outlive its caller.
pub(crate) type PendingAcquire = Boxed<'static, Result<AcquireOutcome>>;

/// An [`AcquireRequest`] that borrows nothing.
pub(crate) struct OwnedRequest {
    pub(crate) key: Key,
    pub(crate) lock_id: LockId,
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
}

impl fmt::Debug for AnyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyBackend({})", self.0.capabilities().backend)
    }
}

/// The object-safe twin of [`LockBackend`].
trait Erased: Send + Sync {
    fn capabilities(&self) -> Capabilities;
    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> Boxed<'a, Result<AcquireOutcome>>;
    fn acquire_owned(self: Arc<Self>, request: OwnedRequest) -> PendingAcquire;
    fn release<'a>(&'a self, lock_id: &'a LockId) -> Boxed<'a, Result<ReleaseOutcome>>;
    fn extend<'a>(&'a self, lock_id: &'a LockId, ttl: Ttl) -> Boxed<'a, Result<ExtendOutcome>>;
    fn is_locked<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<bool>>;
    fn lookup<'a>(&'a self, query: Lookup<'a>) -> Boxed<'a, Result<Option<LockInfo>>>;
    fn purge_expired(&self) -> Boxed<'_, Result<u64>>;
    fn subscribe<'a>(&'a self, key: &'a Key) -> Boxed<'a, WakeHint>;
    fn health(&self) -> Boxed<'_, HealthReport>;
    fn inspector(&self) -> Option<Inspector>;
    fn new_lock_id(&self, key: &Key) -> LockId;
    fn clock(&self) -> Arc<dyn Clock>;
    fn observe(&self, event: &LockEvent);
}

impl<B: LockBackend> Erased for B {
    fn capabilities(&self) -> Capabilities {
        LockBackend::capabilities(self)
    }

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> Boxed<'a, Result<AcquireOutcome>> {
        Box::pin(LockBackend::acquire(self, request))
    }

    fn acquire_owned(self: Arc<Self>, request: OwnedRequest) -> PendingAcquire {
        Box::pin(async move {
            let OwnedRequest { key, lock_id, ttl, label } = &request;
            LockBackend::acquire(&*self, AcquireRequest::new(key, lock_id, *ttl).with_label(label.as_ref())).await
        })
    }

    fn release<'a>(&'a self, lock_id: &'a LockId) -> Boxed<'a, Result<ReleaseOutcome>> {
        Box::pin(LockBackend::release(self, lock_id))
    }

    fn extend<'a>(&'a self, lock_id: &'a LockId, ttl: Ttl) -> Boxed<'a, Result<ExtendOutcome>> {
        Box::pin(LockBackend::extend(self, lock_id, ttl))
    }

    fn is_locked<'a>(&'a self, key: &'a Key) -> Boxed<'a, Result<bool>> {
        Box::pin(LockBackend::is_locked(self, key))
    }

    fn lookup<'a>(&'a self, query: Lookup<'a>) -> Boxed<'a, Result<Option<LockInfo>>> {
        Box::pin(LockBackend::lookup(self, query))
    }

    fn purge_expired(&self) -> Boxed<'_, Result<u64>> {
        Box::pin(LockBackend::purge_expired(self))
    }

    fn subscribe<'a>(&'a self, key: &'a Key) -> Boxed<'a, WakeHint> {
        Box::pin(LockBackend::subscribe(self, key))
    }

    fn health(&self) -> Boxed<'_, HealthReport> {
        Box::pin(LockBackend::health(self))
    }

    fn inspector(&self) -> Option<Inspector> {
        LockBackend::inspector(self)
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        LockBackend::new_lock_id(self, key)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        LockBackend::clock(self)
    }

    fn observe(&self, event: &LockEvent) {
        LockBackend::observe(self, event);
    }
}

impl LockBackend for AnyBackend {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.0.acquire(request).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.0.release(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.0.extend(lock_id, ttl).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.0.is_locked(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.0.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.0.purge_expired().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.0.subscribe(key).await
    }

    async fn health(&self) -> HealthReport {
        self.0.health().await
    }

    fn inspector(&self) -> Option<Inspector> {
        self.0.inspector()
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.0.new_lock_id(key)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    fn observe(&self, event: &LockEvent) {
        self.0.observe(event);
    }

    fn into_any(self) -> Self {
        self
    }
}
