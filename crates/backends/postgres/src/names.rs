//! Under which names is a key stored?

use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
use syncguard_core::{Key, Result};

/// 1700 bytes: what an entry of a B-tree takes, with room to spare.
const LIMIT: StorageLimit = StorageLimit::new(1700, 0);

/// The storage names of one key.
pub(crate) struct Names {
    pub(crate) lock: String,
    pub(crate) fence: String,
}

impl Names {
    pub(crate) fn new(key: &Key) -> Result<Self> {
        let lock = lock_key("", key, LIMIT)?;
        let fence = fence_key("", &lock, LIMIT)?;
        Ok(Self { lock, fence })
    }
}
