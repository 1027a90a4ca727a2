//! The same locks for programs without async code.
//!
//! One background runtime per process, made on first use, carries the connections and renews the locks: a lock taken
//! with `keep_alive` is renewed while the calling thread computes. Every call blocks its thread until it has its
//! answer.
//!
//! ```
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), syncguard::LockError> {
//! let locker = syncguard::blocking::connect("memory:")?; // or sqlite:PATH, redis://…, postgres://…
//! let receipt = locker
//!     .lock("payment:42")
//!     .timeout(Duration::from_secs(5))
//!     .keep_alive()
//!     .run(|lock| format!("charged under fence {}", lock.fence()))?;
//! assert_eq!(receipt, "charged under fence 000000000000001");
//!
//! if let Some(guard) = locker.lock("payment:42").try_acquire()? {
//!     guard.check()?; // before each step that must not run twice
//! } // released here
//! # Ok(())
//! # }
//! ```
//!
//! Called inside an async context, every function here answers with an error instead of blocking the runtime.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use syncguard_core::{
    AnyBackend, ExtendOutcome, IntoKey, IntoTtl, LockBackend, LockError, LockHandle, LockId, LockInfo, LossReason,
    ReleaseOutcome, Report, Result, election, several,
};
use tokio::runtime::{Builder, Handle, Runtime};

/// Connects to the backend that a URL names.
///
/// # Errors
/// As [`open`](crate::open); [`InvalidArgument`](crate::ErrorCode::InvalidArgument) inside an async context.
pub fn connect(url: &str) -> Result<Locker> {
    block_on(crate::open(url)).flatten().map(Locker::new)
}

/// The runtime of all blocking calls of this process.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let made = RUNTIME
        .get_or_init(|| Builder::new_multi_thread().worker_threads(1).thread_name("syncguard").enable_all().build());
    made.as_ref()
        .map_err(|error| LockError::internal("the background thread cannot be started").with_source(error.to_string()))
}

/// Waits for an answer on the calling thread.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T> {
    if Handle::try_current().is_ok() {
        return Err(LockError::invalid("the blocking API was called inside an async context")
            .with_hint("use syncguard::connect and await there, or move the call into spawn_blocking's own thread"));
    }
    Ok(runtime()?.block_on(work))
}

/// The entrance: makes lock requests against one backend. Cheap to clone; clones share the backend.
#[derive(Clone)]
pub struct Locker(syncguard_core::Locker);

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The blocking view of a locker, with its defaults.
impl From<syncguard_core::Locker> for Locker {
    fn from(locker: syncguard_core::Locker) -> Self {
        Self(locker)
    }
}

impl Locker {
    /// Makes a locker with default settings.
    pub fn new(backend: impl LockBackend) -> Self {
        Self(syncguard_core::Locker::new(backend))
    }

    /// Returns the backend behind it.
    pub fn backend(&self) -> &AnyBackend {
        self.0.backend()
    }

    /// Starts a request for one key. A bad key surfaces when the request is used, before any I/O.
    pub fn lock(&self, key: impl IntoKey) -> LockRequest {
        LockRequest(self.0.lock(key))
    }

    /// Starts a request for several keys at once: sorted, all or nothing.
    pub fn lock_all<K: IntoKey>(&self, keys: impl IntoIterator<Item = K>) -> LockAllRequest {
        LockAllRequest(self.0.lock_all(keys))
    }

    /// Starts an election: one leader per key, its term is the fence.
    pub fn elect(&self, key: impl IntoKey) -> Election {
        Election(self.0.elect(key))
    }

    /// Returns whether anybody holds the key now.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad key.
    pub fn is_locked(&self, key: impl IntoKey) -> Result<bool> {
        block_on(self.0.is_locked(key))?
    }

    /// Returns the live lock on a key, for diagnostics.
    ///
    /// # Errors
    /// As [`is_locked`](Self::is_locked).
    pub fn inspect(&self, key: impl IntoKey) -> Result<Option<LockInfo>> {
        block_on(self.0.inspect(key))?
    }

    /// Releases by id: for handles that crossed a process boundary.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn release_id(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        block_on(self.0.release_id(lock_id))?
    }

    /// Replaces the lease by id: for handles that crossed a process boundary.
    ///
    /// # Errors
    /// What the backend reports; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for a bad ttl.
    pub fn extend_id(&self, lock_id: &LockId, ttl: impl IntoTtl) -> Result<ExtendOutcome> {
        block_on(self.0.extend_id(lock_id, ttl))?
    }

    /// Waits, for at most `timeout`, until abandoned attempts are undone, and tells whether they were. Closes nothing.
    ///
    /// Guards of this API release before their drop returns, so a program needs it only after waits that were cut off.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) inside an async context.
    pub fn shutdown(&self, timeout: Duration) -> Result<bool> {
        block_on(async { self.0.shutdown(timeout).await })
    }
}

/// A request for one lock. Finish it with [`try_acquire`](Self::try_acquire), [`acquire`](Self::acquire) or
/// [`run`](Self::run).
#[must_use = "a request does nothing until it is used"]
#[derive(Clone)]
pub struct LockRequest(syncguard_core::LockRequest);

impl LockRequest {
    syncguard_core::__lock_settings!(0);

    /// Tries once. Contention is `None`, not an error.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for bad settings and inside an async context, otherwise
    /// what the backend reports.
    pub fn try_acquire(self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())??.map(Guard))
    }

    /// Waits for the lock within the budget.
    ///
    /// # Errors
    /// [`AcquisitionTimeout`](crate::ErrorCode::AcquisitionTimeout) when somebody else held it for the whole budget;
    /// otherwise as [`try_acquire`](Self::try_acquire).
    pub fn acquire(self) -> Result<Guard> {
        block_on(self.0.acquire())?.map(Guard)
    }

    /// Waits for the lock, runs the work under it and releases.
    ///
    /// A thread cannot be stopped from outside, so the work itself asks [`LockHandle::check`] before each step that
    /// must not run twice. Like its async sister, `run` is strict: a value that came after the loss is dropped;
    /// [`run_and_report`](Self::run_and_report) keeps it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockLost`](crate::ErrorCode::LockLost) when the lock did not last as long
    /// as the work.
    pub fn run<T>(self, work: impl FnOnce(&LockHandle) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let value = work(&guard);
        guard.check().map(|()| value)
    }

    /// Does what [`run`](Self::run) does, and keeps the value of work whose lock was lost before it finished.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn run_and_report<T>(self, work: impl FnOnce(&LockHandle) -> T) -> Result<Report<T>> {
        let guard = self.acquire()?;
        Ok(Report::new(work(&guard), guard.loss()))
    }
}

/// The owner of a held lock: releases it when dropped, and waits for the answer (at most about 5 s).
///
/// Everything that can be asked without waiting is on [`LockHandle`], to which this derefs.
#[must_use = "a dropped guard releases its lock at once; bind it to a name (not to `_`)"]
pub struct Guard(syncguard_core::Guard);

impl Guard {
    /// Gives the lock back. A second release answers [`Absent`](ReleaseOutcome::Absent) without asking the backend.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn release(&self) -> Result<ReleaseOutcome> {
        block_on(self.0.release())?
    }

    /// Replaces the lease by now + ttl: it may shorten.
    ///
    /// # Errors
    /// As [`LockHandle::extend`].
    pub fn extend(&self, ttl: impl IntoTtl) -> Result<ExtendOutcome> {
        block_on(self.0.extend(ttl))?
    }

    /// Blocks until the lock is lost or released: for a thread that watches over the work of another.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) inside an async context.
    pub fn lost(&self) -> Result<LossReason> {
        block_on(self.0.lost())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A failure here is not silent: the drop of the guard inside tries again in the background and tells the hook.
        // Inside an async context nothing may block, and that background release is all there is.
        let _ = self.release();
    }
}

impl Deref for Guard {
    type Target = LockHandle;

    fn deref(&self) -> &LockHandle {
        &self.0
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A request for several locks. Finish it with [`try_acquire`](Self::try_acquire), [`acquire`](Self::acquire) or
/// [`run`](Self::run).
#[must_use = "a request does nothing until it is used"]
#[derive(Clone)]
pub struct LockAllRequest(several::LockAllRequest);

impl LockAllRequest {
    syncguard_core::__lock_settings!(0);

    /// Tries once. `None` when somebody else holds one of them.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    pub fn try_acquire(self) -> Result<Option<GuardAll>> {
        Ok(block_on(self.0.try_acquire())??.map(GuardAll))
    }

    /// Takes all of them or none.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn acquire(self) -> Result<GuardAll> {
        block_on(self.0.acquire())?.map(GuardAll)
    }

    /// Takes all of them, runs the work under them and releases, as [`LockRequest::run`] does.
    ///
    /// # Errors
    /// As [`LockRequest::run`].
    pub fn run<T>(self, work: impl FnOnce(&GuardAll) -> T) -> Result<T> {
        let all = self.acquire()?;
        let value = work(&all);
        all.check().map(|()| value)
    }

    /// Does what [`run`](Self::run) does, and keeps the value of work that lost a lock before it finished.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    pub fn run_and_report<T>(self, work: impl FnOnce(&GuardAll) -> T) -> Result<Report<T>> {
        let all = self.acquire()?;
        Ok(Report::new(work(&all), all.loss()))
    }
}

/// Several held locks. Dropping it releases them all, and waits for the answers.
#[must_use = "a dropped guard releases its locks at once; bind it to a name (not to `_`)"]
#[derive(Debug)]
pub struct GuardAll(several::GuardAll);

impl GuardAll {
    /// Releases all of them, the last taken first.
    ///
    /// # Errors
    /// The first failure; the others are still tried.
    pub fn release(&self) -> Result<()> {
        block_on(self.0.release())?
    }

    /// Blocks until the first of them is lost.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) inside an async context.
    pub fn lost(&self) -> Result<LossReason> {
        block_on(self.0.lost())
    }
}

impl Deref for GuardAll {
    type Target = several::GuardAll;

    fn deref(&self) -> &several::GuardAll {
        &self.0
    }
}

impl Drop for GuardAll {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// An election for one key.
#[must_use = "an election does nothing until somebody campaigns"]
#[derive(Clone)]
pub struct Election(election::Election);

impl Election {
    syncguard_core::__lock_settings!(0);

    /// Waits, for as long as it takes, to become the leader.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`], without its timeout.
    pub fn campaign(&self) -> Result<Leadership> {
        block_on(self.0.campaign())?.map(Leadership)
    }

    /// Tries once to become the leader. `None` while somebody else leads.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    pub fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(block_on(self.0.try_campaign())??.map(Leadership))
    }
}

/// A leadership that is held. Dropping it resigns, and waits for the answer.
#[must_use = "a dropped leadership is resigned"]
#[derive(Debug)]
pub struct Leadership(election::Leadership);

impl Leadership {
    /// Gives the leadership up.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn resign(&self) -> Result<ReleaseOutcome> {
        block_on(self.0.resign())?
    }

    /// Blocks until the leadership is lost or given up.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) inside an async context.
    pub fn lost(&self) -> Result<LossReason> {
        block_on(self.0.lost())
    }
}

impl Deref for Leadership {
    type Target = election::Leadership;

    fn deref(&self) -> &election::Leadership {
        &self.0
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        let _ = self.resign();
    }
}
