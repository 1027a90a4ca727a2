//! Under which name does a backend store a key?
//!
//! `prefix:key` while it fits, else `prefix:` and the first 24 hexadecimal digits of the key's SHA-256. Lengths are
//! bytes. The fence counter's name is derived from the *lock's storage name* in a second step, so that a key
//! whose name was shortened has exactly one counter too.

use crate::{HashId, Key, LockError, Result};

/// What a backend allows its names to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageLimit {
    /// The longest name the storage takes, in bytes.
    pub bytes: usize,
    /// Bytes kept free for names derived from this one.
    pub reserve: usize,
}

impl StorageLimit {
    /// Makes a storage that takes names of `bytes`, of which `reserve` stay free for names derived from them.
    pub const fn new(bytes: usize, reserve: usize) -> Self {
        Self { bytes, reserve }
    }

    const fn usable(self) -> usize {
        self.bytes.saturating_sub(self.reserve)
    }
}

/// Returns the storage name of a lock.
///
/// An empty prefix gives the bare key; colons at the prefix's end are dropped.
///
/// ```
/// use syncguard_core::Key;
/// use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
///
/// let (key, limit) = (Key::new("job")?, StorageLimit::new(1000, 26));
/// let name = lock_key("app:", &key, limit)?;
/// assert_eq!(name, "app:job");
/// assert_eq!(fence_key("app:", &name, limit)?, "app:fence:app:job");
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when even the shortened name does not fit, or when
/// the key looks like a shortened name while the prefix is so long that names can be shortened: such a key could
/// be the same lock as another one.
pub fn lock_key(prefix: &str, key: &Key, limit: StorageLimit) -> Result<String> {
    let prefix = prefix.trim_end_matches(':');
    let longest = prefix.len() + 1 + Key::MAX_BYTES;
    if longest > limit.usable() && looks_shortened(key.as_str()) {
        return Err(LockError::invalid(
            "a key of 24 hexadecimal digits cannot be told from a shortened name under this prefix",
        )
        .with_hint("use a shorter prefix or another key"));
    }
    make(prefix, key.as_str(), limit)
}

/// Returns the storage name of the fence counter that belongs to a lock's storage name.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when even the shortened name does not fit.
pub fn fence_key(prefix: &str, lock_key: &str, limit: StorageLimit) -> Result<String> {
    make(prefix.trim_end_matches(':'), &format!("fence:{lock_key}"), limit)
}

fn make(prefix: &str, name: &str, limit: StorageLimit) -> Result<String> {
    let full = join(prefix, name);
    if full.len() <= limit.usable() {
        return Ok(full);
    }
    let shortened = join(prefix, &HashId::of_normalised(name).to_string());
    if shortened.len() <= limit.usable() {
        return Ok(shortened);
    }
    Err(LockError::invalid("the prefix leaves no room for a key").with_hint("use a shorter prefix"))
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}:{name}") }
}

/// Returns whether a name has the form of a shortened one: 24 lower-case hexadecimal digits.
pub fn looks_shortened(name: &str) -> bool {
    name.len() == 24 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SMALL: StorageLimit = StorageLimit::new(1000, 26);
    const LARGE: StorageLimit = StorageLimit::new(1700, 0);

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    #[test]
    fn prefixes_lose_their_trailing_colons_and_may_be_empty() {
        assert_eq!(lock_key("app", &key("k"), SMALL).unwrap(), "app:k");
        assert_eq!(lock_key("app::", &key("k"), SMALL).unwrap(), "app:k");
        assert_eq!(lock_key("", &key("k"), SMALL).unwrap(), "k");
        assert_eq!(fence_key("", "k", LARGE).unwrap(), "fence:k");
    }

    #[test]
    fn a_name_over_the_limit_is_shortened_by_bytes_and_deterministically() {
        let prefix = "p".repeat(461);
        let fits = lock_key(&prefix, &key(&"k".repeat(512)), SMALL).unwrap();
        assert_eq!(fits.len(), 974);

        let prefix = "p".repeat(462);
        let long = key(&"k".repeat(512));
        let short = lock_key(&prefix, &long, SMALL).unwrap();
        assert_eq!(short, format!("{prefix}:{}", long.hash()));
        assert_eq!(short, lock_key(&prefix, &long, SMALL).unwrap());
    }

    #[test]
    fn the_counter_of_a_long_prefix_is_shortened_from_the_locks_name() {
        let prefix = "p".repeat(228);
        let lock = lock_key(&prefix, &key(&"k".repeat(512)), SMALL).unwrap();
        let counter = fence_key(&prefix, &lock, SMALL).unwrap();
        assert_eq!(counter, format!("{prefix}:{}", HashId::of(&format!("fence:{lock}"))));
    }

    #[test]
    fn a_key_that_looks_shortened_is_refused_only_where_names_can_be_shortened() {
        let digits = key("0123456789abcdef01234567");
        assert!(lock_key("app", &digits, SMALL).is_ok());
        assert!(lock_key(&"p".repeat(470), &digits, SMALL).is_err());
    }

    #[test]
    fn a_prefix_that_leaves_no_room_is_refused() {
        assert!(lock_key(&"p".repeat(990), &key("a-rather-long-key-that-does-not-fit"), SMALL).is_err());
    }
}
