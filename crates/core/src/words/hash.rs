//! How is a name written where it must not be read?
//!
//! SHA-256 of the NFC text, first 96 bits, as 24 hexadecimal digits. A *pseudonym*, not anonymity: a guessable
//! name can be found by trying, so treat hashes as you treat the names' existence.

use std::fmt;
use std::str::FromStr;

use serde_core::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization;

use crate::LockError;

/// The 24-digit pseudonym of a key or a lock id, the same on every backend.
///
/// ```
/// use syncguard_core::HashId;
///
/// assert_eq!(HashId::of("a").to_string(), "ca978112ca1bbdcafac231b3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HashId([u8; 12]);

impl HashId {
    /// Hashes the NFC form of a text.
    pub fn of(text: &str) -> Self {
        if text.is_ascii() {
            return Self::of_normalised(text);
        }
        Self::of_normalised(&text.nfc().collect::<String>())
    }

    pub(crate) fn of_normalised(text: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let mut first = [0; 12];
        first.copy_from_slice(&digest[..12]);
        Self(first)
    }
}

impl fmt::Display for HashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Reads what [`Display`](fmt::Display) wrote: in a log, for example.
impl FromStr for HashId {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self, LockError> {
        let malformed = || LockError::invalid("a hash is 24 hexadecimal digits");
        let is_hex = text.len() == 24 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex).ok_or_else(malformed)?;
        let mut hash = [0; 12];
        hash.copy_from_slice(&number.to_be_bytes()[4..]);
        Ok(Self(hash))
    }
}

impl fmt::Debug for HashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HashId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_was_written() {
        let hash = HashId::of("a");
        assert_eq!(hash.to_string().parse::<HashId>().unwrap(), hash);
        for text in ["", "+a978112ca1bbdcafac231b3", "ca978112ca1bbdcafac231b", "ca978112ca1bbdcafac231bé"] {
            assert!(text.parse::<HashId>().is_err(), "{text}");
        }
    }

    #[test]
    fn normal_forms_hash_alike_and_collisions_of_the_linear_hash_do_not() {
        assert_eq!(HashId::of("caf\u{e9}"), HashId::of("cafe\u{301}"));
        // These two collide under the linear hash that the TypeScript original used.
        assert_ne!(
            HashId::of("mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm"),
            HashId::of("mlmnmomlnlmmlllnnmmllnnmmmmmmmmmmmmm")
        );
    }
}
