//! What may an onlooker know about a lock?
//!
//! Hashes, times and the fence. Raw names are inside but come out only by [`LockInfo::reveal`], so that
//! printing or serialising an info by accident leaks nothing.

use std::fmt;
use std::time::Duration;

use serde_core::ser::SerializeStruct;
use serde_core::{Serialize, Serializer};

use crate::time::free_in;
use crate::{Fence, FenceToken, HashId, Key, Label, LockId, Timestamp};

/// A live lock, as seen by lookup. `Debug` and serde show hashes only.
#[derive(Clone, PartialEq, Eq)]
pub struct LockInfo<F = Fence> {
    key: Key,
    lock_id: LockId,
    label: Option<Label>,
    /// The fence of the present holder.
    pub fence: F,
    /// When the present holder got it, on the backend's clock.
    pub acquired_at: Timestamp,
    /// When the lease ends, on the backend's clock.
    pub expires_at: Timestamp,
    /// The backend's clock at the time of the look.
    pub observed_at: Timestamp,
}

/// The raw names of a lock, for people who may see them.
#[derive(Clone, Copy)]
pub struct RevealedNames<'a> {
    /// The key.
    pub key: &'a Key,
    /// The owner's secret: whoever knows it can release the lock.
    pub lock_id: &'a LockId,
}

impl<F: FenceToken> LockInfo<F> {
    /// Put together by a backend that found a live lock.
    pub fn new(
        key: Key,
        lock_id: LockId,
        fence: F,
        acquired_at: Timestamp,
        expires_at: Timestamp,
        observed_at: Timestamp,
    ) -> Self {
        Self { key, lock_id, label: None, fence, acquired_at, expires_at, observed_at }
    }

    /// Adds the holder's label, where the backend stores one.
    #[must_use]
    pub fn with_label(mut self, label: Option<Label>) -> Self {
        self.label = label;
        self
    }

    /// The key's pseudonym.
    pub fn key_hash(&self) -> HashId {
        self.key.hash()
    }

    /// The lock id's pseudonym.
    pub fn lock_id_hash(&self) -> HashId {
        self.lock_id.hash()
    }

    /// What the holder calls itself, where the backend stores it.
    pub fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// How long until the lock can be taken over if nobody renews it.
    pub fn free_in(&self) -> Duration {
        free_in(self.expires_at, self.observed_at)
    }

    /// How long it has been held.
    pub fn held_for(&self) -> Duration {
        self.observed_at.since(self.acquired_at)
    }

    /// The raw key and lock id. The lock id lets its reader release the lock: handle it as a password.
    pub fn reveal(&self) -> RevealedNames<'_> {
        RevealedNames { key: &self.key, lock_id: &self.lock_id }
    }
}

impl<F: FenceToken> fmt::Debug for LockInfo<F> {
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

impl<F: FenceToken> Serialize for LockInfo<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("LockInfo", 5)?;
        out.serialize_field("keyHash", &self.key_hash())?;
        out.serialize_field("lockIdHash", &self.lock_id_hash())?;
        match self.fence.fence() {
            Some(fence) => out.serialize_field("fence", &fence)?,
            None => out.skip_field("fence")?,
        }
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
}
