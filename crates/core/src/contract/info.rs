//! What may an onlooker know about a lock?
//!
//! Hashes, times and the fence. Raw names are inside but come out only by [`LockInfo::reveal`], so that
//! printing or serialising an info by accident leaks nothing.

use std::fmt;
use std::time::Duration;

use serde_core::ser::SerializeStruct;
use serde_core::{Serialize, Serializer};

use crate::time::free_in;
use crate::{Fence, HashId, Key, Label, LockId, Timestamp, Ttl};

/// A live lock, as seen by lookup. `Debug` and serde show hashes only.
#[derive(Clone, PartialEq, Eq)]
pub struct LockInfo {
    key: Key,
    lock_id: LockId,
    label: Option<Label>,
    ttl: Option<Ttl>,
    is_asked_for: bool,
    /// The fence of the present holder.
    pub fence: Fence,
    /// When the present holder got it, on the backend's clock.
    pub acquired_at: Timestamp,
    /// When the lease ends, on the backend's clock.
    pub expires_at: Timestamp,
    /// The backend's clock at the time of the look.
    pub observed_at: Timestamp,
}

/// Whether a holder keeps its lease alive. No extra write is needed to know it: a lease that began later than
/// its lock was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// It was renewed, last so long ago.
    Renewed {
        /// How long ago.
        ago: Duration,
    },
    /// It was not, but it is too young to tell: a holder that renews does so before half of its lease is over.
    NotYet,
    /// It was not, and half of its lease is over: nobody renews it, or its holder is in trouble.
    NotRenewed,
    /// The storage does not tell: the holder's client does not write the length of its lease.
    Unknown,
}

/// The raw names of a lock, for people who may see them.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct RevealedNames<'a> {
    /// The key.
    pub key: &'a Key,
    /// The owner's secret: whoever knows it can release the lock.
    pub lock_id: &'a LockId,
}

impl LockInfo {
    /// Makes the description of a live lock that a backend found.
    pub fn new(
        key: Key,
        lock_id: LockId,
        fence: Fence,
        acquired_at: Timestamp,
        expires_at: Timestamp,
        observed_at: Timestamp,
    ) -> Self {
        Self { key, lock_id, label: None, ttl: None, is_asked_for: false, fence, acquired_at, expires_at, observed_at }
    }

    /// Adds the holder's label, where the backend stores one.
    #[must_use]
    pub fn with_label(mut self, label: Option<Label>) -> Self {
        self.label = label;
        self
    }

    /// Adds the length of the present lease, where the backend stores it.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Option<Ttl>) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets whether somebody asked the holder to let go.
    #[must_use]
    pub fn with_asked_for(mut self, asked: bool) -> Self {
        self.is_asked_for = asked;
        self
    }

    /// Returns the key's pseudonym.
    pub fn key_hash(&self) -> HashId {
        self.key.hash()
    }

    /// Returns the lock id's pseudonym.
    pub fn lock_id_hash(&self) -> HashId {
        self.lock_id.hash()
    }

    /// Returns what the holder calls itself, where the backend stores it.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// Returns the length of the present lease, where the backend stores it.
    pub fn ttl(&self) -> Option<Ttl> {
        self.ttl
    }

    /// Returns whether somebody asked the holder to let go ([`Inspect::ask`](crate::Inspect::ask)).
    pub fn is_asked_for(&self) -> bool {
        self.is_asked_for
    }

    /// Returns whether the holder keeps the lease alive, as far as what is stored tells.
    pub fn renewal(&self) -> Renewal {
        let Some(ttl) = self.ttl else { return Renewal::Unknown };
        // The lease began one ttl before its end: with the acquisition, or with the last renewal.
        let began = Timestamp::from_millis(self.expires_at.as_millis().saturating_sub(ttl.as_millis()));
        if began == self.acquired_at {
            let fresh = self.held_for() < ttl.duration() / 2;
            return if fresh { Renewal::NotYet } else { Renewal::NotRenewed };
        }
        // Anything else was written by a client that replaced the lease and does not know of the stored length.
        let plausible = began > self.acquired_at && began <= self.observed_at;
        if plausible { Renewal::Renewed { ago: self.observed_at.since(began) } } else { Renewal::Unknown }
    }

    /// Returns how long until the lock can be taken over if nobody renews it.
    pub fn free_in(&self) -> Duration {
        free_in(self.expires_at, self.observed_at)
    }

    /// Returns how long it has been held.
    pub fn held_for(&self) -> Duration {
        self.observed_at.since(self.acquired_at)
    }

    /// Returns the raw key and lock id. The lock id lets its reader release the lock: handle it as a password.
    pub fn reveal(&self) -> RevealedNames<'_> {
        RevealedNames { key: &self.key, lock_id: &self.lock_id }
    }
}

impl fmt::Debug for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockInfo")
            .field("key_hash", &self.key_hash())
            .field("lock_id_hash", &self.lock_id_hash())
            .field("fence", &self.fence)
            .field("acquired_at", &self.acquired_at)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

impl Serialize for LockInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("LockInfo", 5)?;
        out.serialize_field("keyHash", &self.key_hash())?;
        out.serialize_field("lockIdHash", &self.lock_id_hash())?;
        out.serialize_field("fence", &self.fence)?;
        out.serialize_field("acquiredAtMs", &self.acquired_at)?;
        out.serialize_field("expiresAtMs", &self.expires_at)?;
        out.end()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn printing_and_serialising_show_hashes_only() {
        let id = LockId::random();
        let at = Timestamp::from_millis;
        let info = LockInfo::new(Key::new("canary").unwrap(), id.clone(), Fence::FIRST, at(1), at(2), at(1));

        let text = format!("{info:?} {}", serde_json::to_string(&info).unwrap());

        assert!(!text.contains("canary") && !text.contains(id.as_str()), "{text}");
        assert!(text.contains("\"fence\":\"000000000000001\""), "{text}");
        assert_eq!(info.reveal().key.as_str(), "canary");
    }

    #[test]
    fn a_renewal_is_told_from_what_is_stored() {
        let info = |expires_at: i64, observed_at: i64, ttl: Option<i64>| {
            let at = Timestamp::from_millis;
            let key = Key::new("k").unwrap();
            LockInfo::new(key, LockId::random(), Fence::FIRST, at(1000), at(expires_at), at(observed_at))
                .with_ttl(ttl.map(|millis| Ttl::from_millis(millis).unwrap()))
                .renewal()
        };

        assert_eq!(info(31_000, 2_000, Some(30_000)), Renewal::NotYet);
        assert_eq!(info(31_000, 16_000, Some(30_000)), Renewal::NotRenewed);
        assert_eq!(info(41_000, 17_000, Some(30_000)), Renewal::Renewed { ago: Duration::from_secs(6) });
        assert_eq!(info(41_000, 17_000, None), Renewal::Unknown);
        // A client that does not know the stored length made the lease longer, or shorter.
        assert_eq!(info(91_000, 17_000, Some(30_000)), Renewal::Unknown);
        assert_eq!(info(20_000, 17_000, Some(30_000)), Renewal::Unknown);
    }
}
