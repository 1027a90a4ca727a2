//! What must a storage do to carry locks?
//!
//! Four atomic operations and a look, each tried once: retries, budgets, renewal and cancellation belong to the client.
//! Nothing invalid can arrive, because the words carry their proof. `docs/write-a-backend.md` walks through an
//! implementation, and the crate `syncguard-conformance` proves it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::telemetry::LockEvent;
use crate::time::{Clock, SystemClock};
use crate::wake::WakeHint;
use crate::{
    AcquireOutcome, AnyBackend, ExtendOutcome, HealthReport, Inspector, Key, LockError, LockId, LockInfo,
    ReleaseOutcome, Result, Ttl,
};

/// A storage of locks.
///
/// All methods take `&self` and may be called from many tasks at once. Each is *one* attempt with its own bound in
/// time; a failure whose request may have left is marked [`ambiguous`](LockError::ambiguous). Dropping a returned
/// future must be safe at any point: the connection stays usable, and whether the server acted is then unknown.
pub trait LockBackend: Send + Sync + 'static {
    /// Returns the name of this backend and whose clock decides.
    fn capabilities(&self) -> Capabilities;

    /// Takes the lock if it is free or its lease is over, with the next fence.
    ///
    /// *Idempotent by lock id*: if this very id holds the lock already (an earlier reply was lost), the answer is the
    /// stored fence and expiry, unchanged. A fence past its limit is an error *before* anything is written. A
    /// contended acquire consumes no fence. The backend's clock is read after every wait.
    fn acquire(&self, request: AcquireRequest<'_>) -> impl Future<Output = Result<AcquireOutcome>> + Send;

    /// Frees the lock of this id if it is alive, atomically with the check of ownership. Wakes waiters.
    fn release(&self, lock_id: &LockId) -> impl Future<Output = Result<ReleaseOutcome>> + Send;

    /// Replaces the lease of this id by now + ttl if it is alive. Never creates a lock.
    fn extend(&self, lock_id: &LockId, ttl: Ttl) -> impl Future<Output = Result<ExtendOutcome>> + Send;

    /// Returns whether a live lock is on the key. Read-only unless cleanup was switched on. The default looks the lock
    /// up.
    fn is_locked(&self, key: &Key) -> impl Future<Output = Result<bool>> + Send {
        async { Ok(self.lookup(Lookup::Key(key)).await?.is_some()) }
    }

    /// Returns the live lock of a key or of a lock id. Read-only; absent and expired are `None` alike.
    fn lookup(&self, query: Lookup<'_>) -> impl Future<Output = Result<Option<LockInfo>>> + Send;

    /// Removes locks that have been dead for longer than the cleanup guard, and says how many. Never a counter.
    fn purge_expired(&self) -> impl Future<Output = Result<u64>> + Send;

    /// Registers interest in a key and returns the hint that it may have become free.
    ///
    /// Resolves once releases from now on will be noticed. The default never hints: waiters then rely on their
    /// schedule.
    fn subscribe(&self, key: &Key) -> impl Future<Output = WakeHint> + Send {
        let _ = key;
        async { WakeHint::never() }
    }

    /// Checks what an operator should know: reachability, rights, schema, durability, clock. Never fails: a failure is
    /// a line.
    fn health(&self) -> impl Future<Output = HealthReport> + Send {
        async { HealthReport::default() }
    }

    /// Returns the ability to list, count and watch locks and to ask for them, where the backend has it.
    fn inspector(&self) -> Option<Inspector> {
        None
    }

    /// Makes the lock id for a lock on this key. Only sharded storages have a reason to replace it.
    fn new_lock_id(&self, key: &Key) -> LockId {
        let _ = key;
        LockId::random()
    }

    /// Returns the local clock that guards of this backend live by. Only test backends have a reason to replace it.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Hears what the client saw beyond single calls: a lock that was lost, a wait that ended without the lock.
    ///
    /// Decorators such as [`Telemetry`](crate::telemetry::Telemetry) listen here and pass it on; a storage has no
    /// reason to. It must not block.
    fn observe(&self, event: &LockEvent) {
        let _ = event;
    }

    /// Erases the backend's type. Only [`AnyBackend`] has a reason to replace it: what is erased is not wrapped again.
    fn into_any(self) -> AnyBackend
    where
        Self: Sized,
    {
        AnyBackend::erase(self)
    }
}

/// What a backend is, for people and for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// One word: `memory`, `sqlite`, `redis`, `postgres`, `firestore`, or your own.
    pub backend: Cow<'static, str>,
    /// Whose clock decides liveness.
    pub time_authority: TimeAuthority,
}

impl Capabilities {
    /// Makes the capabilities of a backend of this name, whose leases count on this clock.
    pub fn new(backend: impl Into<Cow<'static, str>>, time_authority: TimeAuthority) -> Self {
        Self { backend: backend.into(), time_authority }
    }

    /// Returns `true`: every backend gives fences. For readers of the specification, where it is a choice.
    pub const fn supports_fencing(&self) -> bool {
        true
    }
}

/// Whose clock decides whether a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeAuthority {
    /// The storage's: clients may have any time.
    Server,
    /// Each client's: their clocks must agree to well within the tolerance.
    Client,
}

/// One attempt to acquire.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcquireRequest<'a> {
    /// What to lock.
    pub key: &'a Key,
    /// Who asks. Made before the server hears of it, so that a lost reply can be owned up to.
    pub lock_id: &'a LockId,
    /// For how long.
    pub ttl: Ttl,
    /// What the holder calls itself, for people. Stored where the layout has room for it.
    pub label: Option<&'a Label>,
}

impl<'a> AcquireRequest<'a> {
    /// Makes an attempt without a label.
    pub const fn new(key: &'a Key, lock_id: &'a LockId, ttl: Ttl) -> Self {
        Self { key, lock_id, ttl, label: None }
    }

    /// Adds what the holder calls itself.
    #[must_use]
    pub const fn with_label(mut self, label: Option<&'a Label>) -> Self {
        self.label = label;
        self
    }
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// The lock on a key.
    Key(&'a Key),
    /// The lock that this id owns.
    LockId(&'a LockId),
}

/// What a holder calls itself, for people who wonder who holds a lock: 1..=200 bytes. It is user input: escape it when
/// you show it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// The longest label in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Validates a label.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when empty, longer than 200 bytes or holding U+0000.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.is_empty() || text.len() > Self::MAX_BYTES || text.contains('\0') {
            return Err(LockError::invalid("a label is 1 to 200 bytes without U+0000"));
        }
        Ok(Self(Arc::from(text)))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// A label may name a person or a ticket; logs get its length only.
impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Label({} bytes)", self.0.len())
    }
}
