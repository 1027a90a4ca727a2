//! Under which names is a key stored?

use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
use syncguard_core::{Key, Result};

/// The storage names of one key.
pub(crate) struct Names {
    pub(crate) lock: String,
    pub(crate) fence: String,
}

impl Names {
    pub(crate) fn new(key: &Key) -> Result<Self> {
        let lock = lock_key("", key, StorageLimit::POSTGRES)?;
        let fence = fence_key("", &lock, StorageLimit::POSTGRES)?;
        Ok(Self { lock, fence })
    }
}
