//! What does the library itself say, and where?
//!
//! Through `tracing` when the feature is on, with hashes in the place of names; nowhere otherwise.

use crate::{Fence, Key, LockError, LockId};

/// A counter that nears its limit: a restore went wrong, or something counts that should not.
pub(crate) fn fence_near_limit(fence: Fence, key: &Key) {
    if !fence.is_near_limit() {
        return;
    }
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "syncguard", key_hash = %key.hash(), %fence, "the fence counter nears its limit");
    #[cfg(not(feature = "tracing"))]
    let _ = key;
}

/// A release that did not succeed: the lease will end it.
pub(crate) fn release_failed(error: &LockError, key: &Key, lock_id: &LockId) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: "syncguard", key_hash = %key.hash(), lock_id_hash = %lock_id.hash(), code = %error.code(), "release failed; the lease will end the lock");
    #[cfg(not(feature = "tracing"))]
    let _ = (error, key, lock_id);
}

/// A renewal that did not succeed; it is tried again while the lease lasts.
pub(crate) fn renewal_failed(error: &LockError, key: &Key) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "syncguard", key_hash = %key.hash(), code = %error.code(), "renewal failed, trying again");
    #[cfg(not(feature = "tracing"))]
    let _ = (error, key);
}
