//! Under which names is a key stored?

use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
use syncguard_core::{Key, Result};

/// 1700 bytes: what an entry of a B-tree takes, with room to spare.
const LIMIT: StorageLimit = StorageLimit::new(1700, 0);

/// The storage names of one key. A key has at most 512 bytes, so its name is the key itself: what hears releases relies
/// on it.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_key_is_stored_as_it_is() {
        for text in ["k".to_owned(), "k".repeat(512), "\u{20ac}".repeat(170)] {
            let names = Names::new(&Key::new(&text).unwrap()).unwrap();
            assert_eq!((names.lock, names.fence), (text.clone(), format!("fence:{text}")));
        }
    }
}
