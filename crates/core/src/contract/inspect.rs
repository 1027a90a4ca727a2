//! Who holds what, and may I have it?
//!
//! An ability beside the contract of a backend, for operators: list the live locks in bounded steps, count them, watch
//! them come and go, and ask a holder to let go. A backend that has it answers
//! [`LockBackend::inspector`](crate::LockBackend::inspector); one that has not is complete without it.
//!
//! Breaking a lock needs nothing from here: a lock id belongs to one acquisition and so to one fence, so a look
//! followed by a release by that id frees the lock that was looked at, or nothing.
//!
//! ```
//! use syncguard_core::{AskOutcome, ListRequest, LockBackend, Locker, MemoryBackend};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), syncguard_core::LockError> {
//! let locker = Locker::new(MemoryBackend::new());
//! let guard = locker.lock("deploy:web").label("ada").acquire().await?;
//!
//! let inspector = locker.backend().inspector().expect("the memory backend can be inspected");
//! let page = inspector.list(ListRequest::new("deploy:")).await?;
//! assert_eq!(page.locks[0].label().map(|label| label.as_str()), Some("ada"));
//!
//! // The polite way: the holder hears of it with its next renewal, and decides.
//! assert_eq!(inspector.ask(guard.lock_id()).await?, AskOutcome::Asked);
//! assert!(guard.extend(std::time::Duration::from_secs(30)).await?.is_extended());
//! assert!(guard.is_asked_for());
//! # Ok(())
//! # }
//! ```

mod pace;
mod watch;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

pub use pace::Pace;
pub use watch::{Transition, TransitionKind, Watch};

use crate::{LockId, LockInfo, Result, WakeHint};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a storage must do so that operators can see its locks. Read-only but for the mark of [`ask`](Self::ask).
pub trait Inspect: Send + Sync + 'static {
    /// One bounded step of a listing of live locks.
    ///
    /// The order is the storage's. A lock that is live during the whole listing is in it; a storage that moves under
    /// the scan may give one twice. A page may be empty although more follow; the last has no cursor. A stored value
    /// that is no lock is passed over. A listing must not hold up those who lock.
    fn list(&self, request: ListRequest<'_>) -> impl Future<Output = Result<Page>> + Send;

    /// How many locks are live, and how many fence counters are kept. May look at everything that is stored.
    fn count(&self) -> impl Future<Output = Result<Counts>> + Send;

    /// Marks the live lock of this id as asked for. Its holder hears of it with the answer to its next
    /// [`extend`](crate::LockBackend::extend). The mark ends with the lock: the next holder is not asked.
    fn ask(&self, lock_id: &LockId) -> impl Future<Output = Result<AskOutcome>> + Send;

    /// Registers interest in all locks and returns the hint that one of them may have changed. The default never
    /// hints: watchers rely on their schedule then.
    fn changes(&self) -> impl Future<Output = WakeHint> + Send {
        async { WakeHint::never() }
    }
}

/// Which locks to list, and from where on.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ListRequest<'a> {
    /// The beginning of the keys, taken literally; empty for all.
    pub prefix: &'a str,
    /// How much one step may look at: 1 ..= 10 000.
    pub page_size: u32,
    /// Where the page before ended.
    pub cursor: Option<&'a Cursor>,
}

impl<'a> ListRequest<'a> {
    /// The first page of the locks whose keys begin with `prefix`.
    pub const fn new(prefix: &'a str) -> Self {
        Self { prefix, page_size: 500, cursor: None }
    }

    /// Sets how much one step may look at; brought into its range.
    #[must_use]
    pub fn page_size(mut self, size: u32) -> Self {
        self.page_size = size.clamp(1, 10_000);
        self
    }

    /// Goes on where a page ended.
    #[must_use]
    pub const fn after(mut self, cursor: Option<&'a Cursor>) -> Self {
        self.cursor = cursor;
        self
    }
}

// A prefix is the beginning of a key.
impl fmt::Debug for ListRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ListRequest(prefix of {} bytes, {} per page)", self.prefix.len(), self.page_size)
    }
}

/// One step of a listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The live locks of this step.
    pub locks: Vec<LockInfo>,
    /// Where the next step begins; `None` when this was the last.
    pub next: Option<Cursor>,
}

impl Page {
    /// A step of a listing.
    pub const fn new(locks: Vec<LockInfo>, next: Option<Cursor>) -> Self {
        Self { locks, next }
    }
}

/// Where a listing goes on. Made by a backend for itself: it may hold a key, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Cursor(String);

impl Cursor {
    /// Wraps what the backend needs to go on.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What the backend wrapped.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cursor({} bytes)", self.0.len())
    }
}

/// What is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Live locks.
    pub locks: u64,
    /// Fence counters: one for every key that was ever locked.
    pub counters: u64,
}

impl Counts {
    /// So many live locks and counters.
    pub const fn new(locks: u64, counters: u64) -> Self {
        Self { locks, counters }
    }
}

/// The answer to [`Inspect::ask`].
#[must_use = "the lock may be gone already"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    /// The lock is marked. Its holder hears of it with its next renewal, if it renews.
    Asked,
    /// There was no live lock with this id.
    Absent,
}

/// Any [`Inspect`]. Cheap to clone.
#[derive(Clone)]
pub struct Inspector(Arc<dyn Erased>);

impl Inspector {
    /// Erases the type of what inspects.
    pub fn new(inspect: impl Inspect) -> Self {
        Self(Arc::new(inspect))
    }

    /// As [`Inspect::list`].
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        self.0.list(request).await
    }

    /// As [`Inspect::count`].
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn count(&self) -> Result<Counts> {
        self.0.count().await
    }

    /// As [`Inspect::ask`].
    ///
    /// # Errors
    /// What the backend reports, also when its layout has no room for the mark.
    pub async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        self.0.ask(lock_id).await.map_err(|error| error.with_lock_id(lock_id))
    }

    /// As [`Inspect::changes`].
    pub async fn changes(&self) -> WakeHint {
        self.0.changes().await
    }

    /// Watches the locks whose keys begin with `prefix`.
    pub fn watch(&self, prefix: impl Into<String>) -> Watch {
        Watch::new(self.clone(), prefix.into())
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inspector")
    }
}

/// The object-safe twin of [`Inspect`].
trait Erased: Send + Sync {
    fn list<'a>(&'a self, request: ListRequest<'a>) -> Boxed<'a, Result<Page>>;
    fn count(&self) -> Boxed<'_, Result<Counts>>;
    fn ask<'a>(&'a self, lock_id: &'a LockId) -> Boxed<'a, Result<AskOutcome>>;
    fn changes(&self) -> Boxed<'_, WakeHint>;
}

impl<I: Inspect> Erased for I {
    fn list<'a>(&'a self, request: ListRequest<'a>) -> Boxed<'a, Result<Page>> {
        Box::pin(Inspect::list(self, request))
    }

    fn count(&self) -> Boxed<'_, Result<Counts>> {
        Box::pin(Inspect::count(self))
    }

    fn ask<'a>(&'a self, lock_id: &'a LockId) -> Boxed<'a, Result<AskOutcome>> {
        Box::pin(Inspect::ask(self, lock_id))
    }

    fn changes(&self) -> Boxed<'_, WakeHint> {
        Box::pin(Inspect::changes(self))
    }
}
