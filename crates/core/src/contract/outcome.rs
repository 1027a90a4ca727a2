//! What did the backend answer?
//!
//! Outcomes are values. That somebody else holds the lock, or that nobody does any more, are answers; only
//! what kept us from an answer is an error.

use std::time::Duration;

use crate::{Fence, Timestamp};

/// The answer to acquire.
#[must_use = "the lock may be somebody else's"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// The lock is ours (or was already, under the same lock id).
    Acquired(Lease),
    /// Somebody else holds it.
    Contended(Contention),
}

/// A lock that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// Grows with every acquisition of the key.
    pub fence: Fence,
    /// When the lease ends, on the backend's clock.
    pub expires_at: Timestamp,
    /// The backend's clock when it answered, where the answer carries it anyway.
    ///
    /// A lease that an earlier attempt took, and that is owned up to now, has less left than its length. With this
    /// time the guard knows how much, and cannot believe in it for too long, whatever became of the earlier
    /// answer.
    pub observed_at: Option<Timestamp>,
}

impl Lease {
    /// Makes a lease that ends at `expires_at`.
    pub const fn new(fence: Fence, expires_at: Timestamp) -> Self {
        Self { fence, expires_at, observed_at: None }
    }

    /// Adds the backend's time of the answer. It must be read in the same step as the lease itself.
    #[must_use]
    pub fn observed_at(mut self, now: Timestamp) -> Self {
        self.observed_at = Some(now);
        self
    }

    /// Returns how long the lease lasts from the answer on, where the backend's time is known.
    pub fn left(&self) -> Option<Duration> {
        self.observed_at.map(|now| self.expires_at.since(now))
    }
}

/// A lock that somebody else holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// How long until the holder's lease can be taken over if nobody renews it ([`free_in`](crate::time::free_in)),
    /// where the backend learned it for free. Waiters look again then, so that a dead holder costs
    /// no more than its lease.
    pub free_in: Option<Duration>,
    /// Whether the holder is known to tell waiters of its release, where the backend learned it for free. Waiters that
    /// hear of releases ask less often then.
    pub announces_release: bool,
}

impl Contention {
    /// Makes the contention of which nothing more is known.
    pub const fn new() -> Self {
        Self { free_in: None, announces_release: false }
    }

    /// Makes the contention with a holder whose lease can be taken over after this time.
    pub const fn free_in(duration: Duration) -> Self {
        Self { free_in: Some(duration), announces_release: false }
    }

    /// Says that the holder tells waiters of its release.
    #[must_use]
    pub const fn announcing_release(self) -> Self {
        Self { announces_release: true, ..self }
    }
}

/// The answer to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The lock was ours and is free now.
    Released,
    /// There was no live lock with this id.
    Absent(Option<AbsentReason>),
}

impl ReleaseOutcome {
    /// Returns whether this call freed the lock.
    pub const fn is_released(self) -> bool {
        matches!(self, Self::Released)
    }
}

/// The answer to extend.
#[must_use = "the lock may be gone: then nothing was extended"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendOutcome {
    /// The lease was replaced.
    Extended(Extension),
    /// There was no live lock with this id.
    Absent(Option<AbsentReason>),
}

/// A lease that was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extension {
    /// When it ends now, on the backend's clock.
    pub expires_at: Timestamp,
    /// Whether somebody asked the holder to let go ([`Inspect::ask`](crate::Inspect::ask)).
    pub is_asked_for: bool,
}

impl Extension {
    /// Makes a lease that ends at `expires_at` now.
    pub const fn new(expires_at: Timestamp) -> Self {
        Self { expires_at, is_asked_for: false }
    }

    /// Sets whether somebody asked for the lock.
    #[must_use]
    pub const fn asked_for(mut self, asked: bool) -> Self {
        self.is_asked_for = asked;
        self
    }
}

impl ExtendOutcome {
    /// Returns whether the lease was replaced.
    pub const fn is_extended(self) -> bool {
        matches!(self, Self::Extended(_))
    }
}

/// Why a lock is absent, where the backend saw it without asking again. For telemetry, not for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AbsentReason {
    /// Its lease had ended.
    Expired,
    /// Nothing with this id was there: released, taken over, or never acquired.
    NotFound,
}
