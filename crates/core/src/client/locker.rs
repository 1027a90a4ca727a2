//! Where does a program start?
//!
//! One [`Locker`] per backend, cloned freely. It hands out requests, answers questions, and keeps track of what dropped
//! guards left to be done, so that [`Locker::drain`] can wait for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::holding::belief::Granted;
use crate::client::holding::handle::NewHold;
use crate::client::holding::heartbeat::{self, KeepAlive};
use crate::client::several::LockAllRequest;
use crate::client::shared::Shared;
use crate::election::Election;
use crate::time::Clock;
use crate::{
    AnyBackend, ExtendOutcome, Guard, IntoKey, IntoTtl, Key, LockBackend, LockError, LockHandle, LockId, LockInfo,
    LockOptions, LockRequest, Lookup, ReleaseOutcome, Result,
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
/// locker.shutdown(std::time::Duration::from_secs(5)).await; // … and waited for
/// assert!(!locker.is_locked("report").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locker(pub(crate) Arc<Shared>);

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locker").field(&self.0.backend).finish()
    }
}

impl Locker {
    /// Makes a locker with default settings.
    pub fn new(backend: impl LockBackend) -> Self {
        Self::builder(backend).build()
    }

    /// Starts a locker with its own clock or release-error hook.
    pub fn builder(backend: impl LockBackend) -> LockerBuilder {
        let clock = backend.clock();
        LockerBuilder { backend: AnyBackend::new(backend), clock, defaults: LockOptions::new(), on_release_error: None }
    }

    /// Returns the backend behind it, for operations that need no client.
    pub fn backend(&self) -> &AnyBackend {
        &self.0.backend
    }

    /// Starts a request for one key. A bad key surfaces when the request is used, before any I/O.
    pub fn lock(&self, key: impl IntoKey) -> LockRequest {
        LockRequest::new(self.clone(), key.into_key())
    }

    /// Starts a request for several keys at once: sorted, all or nothing.
    pub fn lock_all<K: IntoKey>(&self, keys: impl IntoIterator<Item = K>) -> LockAllRequest {
        let keys: Vec<_> = keys.into_iter().map(IntoKey::into_key).collect();
        LockAllRequest::new(self.clone(), keys)
    }

    /// Starts an election: one leader per key, its term is the fence.
    pub fn elect(&self, key: impl IntoKey) -> Election {
        Election::new(self.lock(key))
    }

    /// Returns whether anybody holds the key now.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad key.
    pub async fn is_locked(&self, key: impl IntoKey) -> Result<bool> {
        self.0.is_locked(&key.into_key()?).await
    }

    /// Returns the live lock on a key, for diagnostics. Never decide by it: it may have changed when you read it.
    ///
    /// # Errors
    /// As [`Locker::is_locked`].
    pub async fn inspect(&self, key: impl IntoKey) -> Result<Option<LockInfo>> {
        self.0.lookup(Lookup::Key(&key.into_key()?)).await
    }

    /// Returns the live lock that an id owns, for diagnostics.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn inspect_id(&self, lock_id: &LockId) -> Result<Option<LockInfo>> {
        self.0.lookup(Lookup::LockId(lock_id)).await
    }

    /// Returns whether an id owns a live lock, for diagnostics.
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
        self.0.release(lock_id).await
    }

    /// Replaces the lease by id: for handles that crossed a process boundary.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad ttl.
    pub async fn extend_id(&self, lock_id: &LockId, ttl: impl IntoTtl) -> Result<ExtendOutcome> {
        self.0.extend(lock_id, ttl.into_ttl()?).await
    }

    /// Takes over a lock that was acquired elsewhere, by its id: replaces the lease by now + ttl and renews it for as long
    /// as the guard lives. `None` when the id owns no lock any more.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad ttl.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the lease was replaced; the lock stays with its id.
    pub async fn adopt(&self, lock_id: &LockId, ttl: impl IntoTtl) -> Result<Option<Guard>> {
        let ttl = ttl.into_ttl()?;
        crate::client::runtime::require()?;
        let Some(info) = self.inspect_id(lock_id).await? else { return Ok(None) };
        let sent = self.0.clock.boot();
        let ExtendOutcome::Extended(extension) = self.extend_id(lock_id, ttl).await? else { return Ok(None) };
        let guard = Guard::new(LockHandle::new(NewHold {
            shared: self.0.clone(),
            key: info.reveal().key.clone(),
            lock_id: lock_id.clone(),
            fence: info.fence,
            granted: Granted { sent, ttl, expires_at: extension.expires_at, left: None },
            max_hold: None,
            on_release_error: self.0.defaults.on_release_error.clone(),
        }));
        heartbeat::start(&guard, Some(KeepAlive { ttl, every: ttl.duration() / 3 }));
        Ok(Some(guard))
    }

    /// Waits for the releases that dropped guards and abandoned attempts had left behind when it was called.
    ///
    /// Call it, or [`shutdown`](Self::shutdown), before the runtime ends: a release that no runtime carries out is left
    /// to the lease. It has no bound of its own beyond the few seconds that each release may take.
    pub async fn drain(&self) {
        self.0.background.drain().await;
    }

    /// Waits like [`drain`](Self::drain), but not longer than `timeout`, and returns whether everything was given back
    /// by then.
    ///
    /// It waits and closes nothing: guards that live keep their locks, and the locker takes requests as before.
    /// Drop or release the guards first.
    ///
    /// The last line of `main`: without it the runtime may end before dropped guards have released, and their locks
    /// stay until their leases end.
    #[doc(alias = "close")]
    pub async fn shutdown(&self, timeout: Duration) -> bool {
        crate::sync::timeout(timeout, self.drain()).await.is_ok()
    }
}

/// Settings of a [`Locker`].
pub struct LockerBuilder {
    backend: AnyBackend,
    clock: Arc<dyn Clock>,
    defaults: LockOptions,
    on_release_error: Option<ReleaseErrorHook>,
}

impl LockerBuilder {
    /// Sets the local clock that guards live by. The backend's own choice suits everything but tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets what requests of this locker begin with. An election still has its own lease and waits without limit.
    #[must_use]
    pub fn defaults(mut self, options: LockOptions) -> Self {
        self.defaults = options;
        self
    }

    /// Calls the hook when a release failed, also one of a dropped guard. A request may have a hook of its own.
    #[must_use]
    pub fn on_release_error(mut self, hook: impl Fn(&LockError, &Key, &LockId) + Send + Sync + 'static) -> Self {
        self.on_release_error = Some(Arc::new(hook));
        self
    }

    /// Makes the locker.
    pub fn build(self) -> Locker {
        let mut defaults = self.defaults;
        defaults.on_release_error = defaults.on_release_error.or(self.on_release_error);
        Locker(Arc::new(Shared::new(self.backend, self.clock, defaults)))
    }
}
