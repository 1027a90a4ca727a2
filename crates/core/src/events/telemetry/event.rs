//! What does an event say?

use std::fmt;
use std::time::Duration;

use serde_core::ser::SerializeStruct;
use serde_core::{Serialize, Serializer};

use crate::{ErrorCode, HashId, Key, LockId, LossReason};

/// The operation that an event speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// An attempt to take a lock.
    Acquire,
    /// An attempt to give one back.
    Release,
    /// An attempt to replace a lease.
    Extend,
    /// A look whether a key is locked.
    IsLocked,
    /// A look at a lock.
    Lookup,
    /// A removal of dead locks.
    Purge,
    /// An effort to get a lock, which may be many attempts. Told when it ended without the lock.
    Wait,
    /// The time for which a lock was held. Told when it ended by a loss.
    Hold,
}

impl Operation {
    /// One word, for labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Extend => "extend",
            Self::IsLocked => "is-locked",
            Self::Lookup => "lookup",
            Self::Purge => "purge",
            Self::Wait => "wait",
            Self::Hold => "hold",
        }
    }
}

/// Why an operation did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Somebody else holds the lock.
    Locked,
    /// The lease had ended.
    Expired,
    /// There is no such lock.
    NotFound,
    /// The lock is not there, and the backend did not say why.
    Absent,
    /// The caller stopped waiting for the answer.
    Abandoned,
    /// The lock was lost while it was held.
    Lost(LossReason),
    /// It failed.
    Error(ErrorCode),
}

impl Reason {
    /// One word, for labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Locked => "locked",
            Self::Expired => "expired",
            Self::NotFound => "not-found",
            Self::Absent => "absent",
            Self::Abandoned => "abandoned",
            Self::Lost(reason) => reason.as_str(),
            Self::Error(code) => code.as_label(),
        }
    }
}

/// One operation and how it ended. `Debug` and `Serialize` show hashes only.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockEvent {
    /// What was asked.
    pub operation: Operation,
    /// The key's pseudonym, where the operation names a key.
    pub key_hash: Option<HashId>,
    /// The lock id's pseudonym, where the operation names one.
    pub lock_id_hash: Option<HashId>,
    /// Why it was not done; `None` when it was.
    pub reason: Option<Reason>,
    /// How long it took.
    pub elapsed: Duration,
    /// The raw key, only where the predicate allowed it and the name does not look like a secret.
    pub key: Option<String>,
    /// The raw lock id, only where the raw key is shown too. Whoever knows it can release the lock.
    pub lock_id: Option<String>,
}

impl LockEvent {
    pub(crate) fn new(operation: Operation, elapsed: Duration) -> Self {
        Self { operation, key_hash: None, lock_id_hash: None, reason: None, elapsed, key: None, lock_id: None }
    }

    pub(crate) fn named(mut self, key: Option<&Key>, lock_id: Option<&LockId>) -> Self {
        self.key_hash = key.map(Key::hash);
        self.lock_id_hash = lock_id.map(LockId::hash);
        self.key = key.map(|key| key.as_str().to_owned());
        self.lock_id = lock_id.map(|id| id.as_str().to_owned());
        self
    }

    pub(crate) fn with_reason(mut self, reason: Option<Reason>) -> Self {
        self.reason = reason;
        self
    }

    /// Returns whether it was done.
    pub fn is_ok(&self) -> bool {
        self.reason.is_none()
    }

    /// Returns the outcome in one word: `ok` or the reason.
    pub fn outcome(&self) -> &'static str {
        self.reason.map_or("ok", Reason::as_str)
    }

    pub(super) fn without_names(&self) -> Self {
        Self { key: None, lock_id: None, ..self.clone() }
    }

    #[cfg_attr(not(feature = "tracing"), allow(clippy::unused_self, reason = "without it there is nobody to tell"))]
    pub(super) fn emit(&self, backend: &str) {
        #[cfg(feature = "tracing")]
        tracing::debug!(
            target: "syncguard",
            backend,
            operation = self.operation.as_str(),
            outcome = self.outcome(),
            key_hash = self.key_hash.map(tracing::field::display),
            lock_id_hash = self.lock_id_hash.map(tracing::field::display),
            elapsed_us = u64::try_from(self.elapsed.as_micros()).unwrap_or(u64::MAX),
            "lock operation"
        );
        #[cfg(not(feature = "tracing"))]
        let _ = backend;
    }
}

impl fmt::Debug for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockEvent")
            .field("operation", &self.operation)
            .field("outcome", &self.outcome())
            .field("key_hash", &self.key_hash)
            .field("lock_id_hash", &self.lock_id_hash)
            .field("elapsed", &self.elapsed)
            .finish_non_exhaustive()
    }
}

impl Serialize for LockEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("LockEvent", 5)?;
        out.serialize_field("operation", self.operation.as_str())?;
        out.serialize_field("outcome", self.outcome())?;
        out.serialize_field("keyHash", &self.key_hash)?;
        out.serialize_field("lockIdHash", &self.lock_id_hash)?;
        out.serialize_field("elapsedUs", &u64::try_from(self.elapsed.as_micros()).unwrap_or(u64::MAX))?;
        out.end()
    }
}
