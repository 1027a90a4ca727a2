//! What does an event say?

use std::fmt;
use std::time::Duration;

use crate::{ErrorCode, HashId};

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
            Self::Error(code) => code.as_str(),
        }
    }
}

/// One operation and how it ended. `Debug` shows hashes only.
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
    /// Whether it was done.
    pub fn is_ok(&self) -> bool {
        self.reason.is_none()
    }

    /// The outcome in one word: `ok` or the reason.
    pub fn outcome(&self) -> &'static str {
        self.reason.map_or("ok", Reason::as_str)
    }

    pub(super) fn without_names(&self) -> Self {
        Self { key: None, lock_id: None, ..self.clone() }
    }

    #[cfg_attr(
        not(any(feature = "tracing", feature = "metrics")),
        allow(clippy::unused_self, reason = "without either feature there is nobody to tell")
    )]
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
        #[cfg(feature = "metrics")]
        metrics::histogram!(
            "syncguard_operation_seconds",
            "backend" => backend.to_owned(),
            "operation" => self.operation.as_str(),
            "outcome" => self.outcome()
        )
        .record(self.elapsed.as_secs_f64());
        #[cfg(not(any(feature = "tracing", feature = "metrics")))]
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
