//! How does Firestore carry a lock?
//!
//! Optimistically: read, decide on this machine's clock, then one Commit whose every write names the version that was
//! read. Whoever commits first wins; the others see the new state when they read again. Two calls each for acquire,
//! release and extend, one when the lock is held and for every look.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use syncguard_core::listener::stagger::Window;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, Clock, ExtendOutcome, HealthReport, Inspector, Key, LockBackend,
    LockId, LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Ttl, WakeHint,
};

use crate::builder::FirestoreBuilder;
use crate::listener::{Documents, Listener};
use crate::names::DocumentIds;
use crate::rpc::Rpc;
use crate::skew::{ClockOffset, Skew};

/// Locks in a Firestore database.
///
/// Liveness is decided by each client's own clock: **every machine needs a working NTP client**. See
/// [`clock_offset`](Self::clock_offset) and [`strict_clock`](FirestoreBuilder::strict_clock).
///
/// Cheap to clone. It may be used from any runtime, also when the one that made it has ended.
#[derive(Clone)]
pub struct FirestoreBackend {
    pub(crate) rpc: Rpc,
    pub(crate) options: Arc<FirestoreBuilder>,
    pub(crate) skew: Arc<Skew>,
    listener: Arc<Listener>,
    /// How far hints are held back, learnt from attempts that were lost to other processes.
    pub(crate) window: Arc<Window>,
    /// Whether a look is having a dead lock removed now.
    pub(crate) is_cleaning: Arc<AtomicBool>,
}

impl fmt::Debug for FirestoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FirestoreBackend {
    /// Prepares a backend for `firestore://PROJECT[/DATABASE][?option=value…]`; see [`FirestoreBuilder::from_url`].
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for a URL that cannot work,
    /// [`AuthFailed`](syncguard_core::ErrorCode::AuthFailed) when there are no credentials. Nothing is sent yet.
    pub async fn connect(url: &str) -> Result<Self> {
        FirestoreBuilder::from_url(url)?.connect().await
    }

    /// Starts the settings of a backend for a project.
    pub fn builder(project: impl Into<String>) -> FirestoreBuilder {
        FirestoreBuilder::new(project)
    }

    // The connection's worker is spawned here, so this must run inside a runtime: being async says so.
    #[allow(clippy::unused_async, reason = "spawns on the runtime that polls it")]
    pub(crate) async fn from_builder(options: FirestoreBuilder) -> Result<Self> {
        options.check()?;
        let skew = Arc::new(Skew::default());
        let rpc = Rpc::new(&options, skew.clone())?;
        let window = Arc::new(Window::default());
        let listener = Arc::new(Listener::new(Documents { rpc: rpc.clone(), window: window.clone() }));
        Ok(Self { rpc, options: Arc::new(options), skew, listener, window, is_cleaning: Arc::default() })
    }

    /// How far the server's clock is from this machine's, by the best of the recent answers; `None` before the first.
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.skew.best()
    }
}

impl LockBackend for FirestoreBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("firestore", TimeAuthority::Client)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.acquire_lock(request).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.release_lock(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.extend_lock(lock_id, ttl).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.look_at_key(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        match query {
            Lookup::Key(key) => self.lookup_key(key).await,
            Lookup::LockId(lock_id) => self.lookup_lock_id(lock_id).await,
        }
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.purge().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        match DocumentIds::of(key) {
            Ok(ids) => self.listener.subscribe(&self.lock_name(&ids)).await,
            Err(_) => WakeHint::never(),
        }
    }

    async fn health(&self) -> HealthReport {
        self.check_health().await
    }

    fn inspector(&self) -> Option<Inspector> {
        Some(Inspector::new(self.clone()))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.options.clock.clone()
    }
}
