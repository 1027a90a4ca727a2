//! Where does a program start?
//!
//! One [`Locker`] per backend, cloned freely. It hands out requests, answers questions, and keeps track of what dropped guards
//! left to be done, so that [`Locker::drain`] can wait for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::election::Election;
use crate::multi::LockAllRequest;
use crate::time::Clock;
use crate::{
    AnyBackend, ExtendOutcome, Fence, FenceToken, Key, LockBackend, LockError, LockId, LockInfo, LockRequest, Lookup,
    ReleaseOutcome, Result, Ttl,
};

/// Called when a release did not succeed. The lock then ends with its lease.
pub type ReleaseErrorHook = Arc<dyn Fn(&LockError, &Key, &LockId) + Send + Sync>;

/// The entrance: makes lock requests against one backend. Cheap to clone; clones share the backend.
///
/// ```
/// use syncguard_core::{Locker, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let locker = Locker::new(MemoryBackend::new());
/// let guard = locker.lock("report").acquire().await?;
/// assert!(locker.is_locked("report").await?);
/// drop(guard); // released in the background …
/// locker.drain().await; // … and waited for
/// assert!(!locker.is_locked("report").await?);
/// # Ok(())
/// # }
/// ```
pub struct Locker<F: FenceToken = Fence>(pub(crate) Arc<Shared<F>>);

/// What every request, guard and background task of one locker shares.
pub(crate) struct Shared<F: FenceToken> {
    pub(crate) backend: AnyBackend<F>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Releases and reapings that nobody awaits any more.
    pub(crate) background: TaskTracker,
    pub(crate) on_release_error: Option<ReleaseErrorHook>,
}

impl<F: FenceToken> Clone for Locker<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: FenceToken> fmt::Debug for Locker<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locker").field(&self.0.backend).finish()
    }
}

impl<F: FenceToken> Locker<F> {
    /// A locker with default settings.
    pub fn new(backend: impl LockBackend<Fence = F>) -> Self {
        Self::builder(backend).build()
    }

    /// A locker with its own clock or release-error hook.
    pub fn builder(backend: impl LockBackend<Fence = F>) -> LockerBuilder<F> {
        let clock = backend.clock();
        LockerBuilder { backend: AnyBackend::new(backend), clock, on_release_error: None }
    }

    /// The backend behind it, for operations that need no client.
    pub fn backend(&self) -> &AnyBackend<F> {
        &self.0.backend
    }

    /// Starts a request for one key. A bad key surfaces when the request is used, before any I/O.
    pub fn lock(&self, key: impl AsRef<str>) -> LockRequest<F> {
        LockRequest::new(self.clone(), Key::new(key))
    }

    /// Starts a request for several keys at once: sorted, all or nothing.
    pub fn lock_all<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) -> LockAllRequest<F> {
        let keys = keys.into_iter().map(Key::new).collect();
        LockAllRequest::new(self.clone(), keys)
    }

    /// Starts an election: one leader per key, its term is the fence.
    pub fn elect(&self, key: impl AsRef<str>) -> Election<F> {
        Election::new(self.clone(), Key::new(key))
    }

    /// Whether anybody holds the key now.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad key.
    pub async fn is_locked(&self, key: impl AsRef<str>) -> Result<bool> {
        self.0.backend.is_locked(&Key::new(key)?).await
    }

    /// The live lock on a key, for diagnostics. Never decide by it: it may have changed when you read it.
    ///
    /// # Errors
    /// As [`Locker::is_locked`].
    pub async fn inspect(&self, key: impl AsRef<str>) -> Result<Option<LockInfo<F>>> {
        self.0.backend.lookup(Lookup::Key(&Key::new(key)?)).await
    }

    /// The live lock that an id owns, for diagnostics.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn inspect_id(&self, lock_id: &LockId) -> Result<Option<LockInfo<F>>> {
        self.0.backend.lookup(Lookup::LockId(lock_id)).await
    }

    /// Whether an id owns a live lock, for diagnostics.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn owns(&self, lock_id: &LockId) -> Result<bool> {
        Ok(self.inspect_id(lock_id).await?.is_some())
    }

    /// Releases by id: for handles that crossed a process boundary. Guards release themselves.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn release_id(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.0.backend.release(lock_id).await
    }

    /// Replaces the lease by id: for handles that crossed a process boundary.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad ttl.
    pub async fn extend_id(&self, lock_id: &LockId, ttl: Duration) -> Result<ExtendOutcome> {
        self.0.backend.extend(lock_id, Ttl::new(ttl)?).await
    }

    /// Waits for the releases that dropped guards and abandoned attempts left behind.
    ///
    /// Call it before the runtime ends: a release that no runtime carries out is left to the lease.
    pub async fn drain(&self) {
        self.0.background.close();
        self.0.background.wait().await;
        self.0.background.reopen();
    }
}

/// Settings of a [`Locker`].
pub struct LockerBuilder<F: FenceToken = Fence> {
    backend: AnyBackend<F>,
    clock: Arc<dyn Clock>,
    on_release_error: Option<ReleaseErrorHook>,
}

impl<F: FenceToken> LockerBuilder<F> {
    /// The local clock that guards live by. The backend's own choice suits everything but tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Hears of releases that failed, also those of dropped guards. A request may have its own.
    #[must_use]
    pub fn on_release_error(mut self, hook: impl Fn(&LockError, &Key, &LockId) + Send + Sync + 'static) -> Self {
        self.on_release_error = Some(Arc::new(hook));
        self
    }

    /// The locker.
    pub fn build(self) -> Locker<F> {
        Locker(Arc::new(Shared {
            backend: self.backend,
            clock: self.clock,
            background: TaskTracker::new(),
            on_release_error: self.on_release_error,
        }))
    }
}
