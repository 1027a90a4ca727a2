//! Which names may a lock have?
//!
//! 1 to 512 bytes of UTF-8 after NFC, without U+0000 (`PostgreSQL` cannot store it, and a key must mean the same
//! lock everywhere). Nothing is trimmed or folded: `" "` and `"\t"` are two keys.

use std::fmt;
use std::sync::Arc;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::{HashId, LockError, Result};

/// The name of what is locked: NFC, 1..=512 bytes, no U+0000. Cheap to clone; `Debug` shows its hash only.
///
/// ```
/// use syncguard_core::Key;
///
/// let composed = Key::new("caf\u{e9}")?;
/// let decomposed = Key::new("cafe\u{301}")?;
/// assert_eq!(composed, decomposed); // one lock
/// assert!(Key::new("x".repeat(513)).is_err());
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key in bytes, counted after normalisation.
    pub const MAX_BYTES: usize = 512;

    // No sequence shrinks under NFC by more than a factor of three. Beyond this the answer is known, and a
    // hostile megabyte of combining marks is refused without being buffered and sorted.
    const MAX_RAW_BYTES: usize = Self::MAX_BYTES * 16;

    /// Normalises and validates a name.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when empty, too long or holding U+0000. The
    /// message does not repeat the key.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(LockError::invalid("the key is empty").with_hint("give the lock a name of 1 to 512 bytes"));
        }
        if name.len() > Self::MAX_RAW_BYTES {
            return Err(too_long());
        }
        if name.contains('\0') {
            return Err(LockError::invalid("the key contains U+0000, which not every backend can store"));
        }
        let normalised = normalise(name)?;
        Ok(Self(normalised))
    }

    /// Returns the normalised name. For storage and for people who may see it, never for logs.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the pseudonym that stands for this key in logs and telemetry.
    pub fn hash(&self) -> HashId {
        HashId::of_normalised(&self.0)
    }
}

fn normalise(name: &str) -> Result<Arc<str>> {
    if name.is_ascii() || is_nfc_quick(name.chars()) == IsNormalized::Yes {
        if name.len() > Key::MAX_BYTES {
            return Err(too_long());
        }
        return Ok(Arc::from(name));
    }
    let mut normalised = String::with_capacity(name.len().min(Key::MAX_BYTES));
    for character in name.nfc() {
        normalised.push(character);
        if normalised.len() > Key::MAX_BYTES {
            return Err(too_long());
        }
    }
    Ok(Arc::from(normalised))
}

fn too_long() -> LockError {
    LockError::invalid("the key exceeds maximum length: 512 bytes after normalisation")
        .with_hint("use a shorter name, or a hash of the long one")
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(#{})", self.hash())
    }
}

impl TryFrom<&str> for Key {
    type Error = LockError;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn length_is_counted_in_bytes_after_normalisation() {
        assert!(Key::new("a".repeat(512)).is_ok());
        assert!(Key::new("a".repeat(513)).is_err());
        assert!(Key::new("€".repeat(171)).is_err());
        assert!(Key::new("😀".repeat(128)).is_ok());
        assert!(Key::new("e\u{301}".repeat(256)).is_ok(), "768 raw bytes are 512 in NFC");
        assert!(Key::new("e\u{301}".repeat(300)).is_err());
        assert!(Key::new("\u{344}".repeat(256)).is_err(), "U+0344 grows from two bytes to four");
        assert!(Key::new("\u{344}".repeat(128)).is_ok());
    }

    #[test]
    fn composed_and_decomposed_forms_are_one_key_and_compatibility_forms_are_not() {
        assert_eq!(Key::new("caf\u{e9}").unwrap(), Key::new("cafe\u{301}").unwrap());
        assert_eq!(Key::new("\u{212a}").unwrap(), Key::new("K").unwrap());
        assert_ne!(Key::new("ﬁ").unwrap(), Key::new("fi").unwrap());
        assert_ne!(Key::new(" ").unwrap(), Key::new("\t").unwrap());
    }

    #[test]
    fn empty_and_nul_are_refused() {
        assert!(Key::new("").is_err());
        assert!(Key::new("a\0b").is_err());
    }

    #[test]
    fn a_hostile_key_is_refused_with_a_short_message_that_does_not_repeat_it() {
        let hostile = "\u{301}".repeat(5 << 20);

        let error = Key::new(&hostile).unwrap_err();

        assert!(error.to_string().len() < 1024);
        assert!(!error.to_string().contains('\u{301}'));
    }

    #[test]
    fn debug_shows_the_hash_only() {
        let key = Key::new("payment:42").unwrap();

        let text = format!("{key:?}");

        assert!(!text.contains("payment"), "{text}");
        assert!(text.contains(&key.hash().to_string()), "{text}");
    }

    proptest! {
        #[test]
        fn parsing_a_key_again_changes_nothing(name in "\\PC{1,200}") {
            if let Ok(key) = Key::new(&name) {
                prop_assert_eq!(Key::new(key.as_str()).unwrap(), key.clone());
                prop_assert!(key.as_str().len() <= Key::MAX_BYTES);
            }
        }
    }
}
