//! Under which names is a key stored?

use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
use syncguard_core::{Key, Result};

/// 1700 bytes: what an entry of a B-tree takes, with room to spare.
const LIMIT: StorageLimit = StorageLimit::new(1700, 0);

/// The name of a key's lock.
pub(crate) fn lock_name(key: &Key) -> Result<String> {
    lock_key("", key, LIMIT)
}

/// The name of the counter that belongs to a lock's name.
pub(crate) fn fence_name(lock_name: &str) -> Result<String> {
    fence_key("", lock_name, LIMIT)
}
