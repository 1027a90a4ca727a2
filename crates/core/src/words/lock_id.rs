//! Who owns this lock?
//!
//! 16 bytes from the operating system's random source, as 22 base64url characters. Knowing the id *is*
//! the ownership, so it is a secret: `Debug` shows a hash and there is no `Display`.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::{HashId, LockError, Result};

/// The secret that proves ownership of one lock.
///
/// ```
/// use syncguard_core::LockId;
///
/// let id = LockId::random();
/// assert_eq!(LockId::parse(id.as_str())?, id);
/// assert!(LockId::parse("too short").is_err());
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId([u8; Self::LENGTH]);

impl LockId {
    /// Characters of every lock id.
    pub const LENGTH: usize = 22;

    /// Makes a fresh id with 128 random bits.
    ///
    /// # Panics
    /// When the operating system has no randomness to give; there is no safe way to go on.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        Self::from_bytes(&bytes)
    }

    /// Makes a fresh id that carries `tag` (its low four bits) in the bits that base64 leaves unused.
    ///
    /// 22 characters hold 132 bits, 128 are random. A sharded backend finds the shard of a lock from its
    /// id alone this way.
    pub fn random_with_tag(tag: u8) -> Self {
        let mut id = Self::random();
        let last = &mut id.0[Self::LENGTH - 1];
        // The last character of an untagged id has its low four bits clear.
        let value = sextet(*last).unwrap_or(0) & 0b11_0000 | (tag & 0b1111);
        *last = ALPHABET[usize::from(value)];
        id
    }

    /// Returns the four bits that [`LockId::random_with_tag`] put in.
    pub fn tag(&self) -> u8 {
        sextet(self.0[Self::LENGTH - 1]).unwrap_or(0) & 0b1111
    }

    /// Validates an id that came from outside.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) unless it is exactly 22 characters of
    /// `A-Z a-z 0-9 - _`. The message does not repeat it.
    pub fn parse(text: &str) -> Result<Self> {
        let bytes: [u8; Self::LENGTH] = text.as_bytes().try_into().map_err(|_| malformed())?;
        if bytes.iter().all(|byte| sextet(*byte).is_some()) { Ok(Self(bytes)) } else { Err(malformed()) }
    }

    /// Returns the secret itself. For storage and for the owner, never for logs.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a lock id is ASCII by construction")
    }

    /// Returns the pseudonym that stands for this id in logs and telemetry.
    pub fn hash(&self) -> HashId {
        HashId::of_normalised(self.as_str())
    }

    fn from_bytes(bytes: &[u8; 16]) -> Self {
        let mut text = [0; Self::LENGTH];
        URL_SAFE_NO_PAD.encode_slice(bytes, &mut text).expect("16 bytes are 22 base64 characters");
        Self(text)
    }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn sextet(character: u8) -> Option<u8> {
    match character {
        b'A'..=b'Z' => Some(character - b'A'),
        b'a'..=b'z' => Some(character - b'a' + 26),
        b'0'..=b'9' => Some(character - b'0' + 52),
        b'-' => Some(62),
        b'_' => Some(63),
        _ => None,
    }
}

fn malformed() -> LockError {
    LockError::invalid("Invalid lockId format: a lock id is 22 base64url characters")
        .with_hint("pass the id exactly as acquire gave it")
}

impl FromStr for LockId {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockId(#{})", self.hash())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn malformed_ids_are_refused_without_being_repeated() {
        let long = "A".repeat(23);
        for text in [
            "",
            "A",
            &long,
            "AAAAAAAAAAAAAAAAAAAAA+",
            "AAAAAAAAAAAAAAAAAAAAA/",
            "AAAAAAAAAAAAAAAAAAAAA=",
            "AAAAAAAAAAAAAAAAAAAAA ",
            "AAAAAAAAAAAAAAAAAAAAA\n",
            "AAAAAAAAAAAAAAAAAAAAé",
        ] {
            let error = LockId::parse(text).unwrap_err();
            assert!(text.is_empty() || text == "A" || !error.to_string().contains(text));
        }
    }

    #[test]
    fn spare_bits_are_accepted_and_make_another_id() {
        let plain = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").unwrap();
        let spare = LockId::parse("AAAAAAAAAAAAAAAAAAAAAB").unwrap();
        assert_ne!(plain, spare);
    }

    #[test]
    fn a_tag_survives_the_text_form_and_leaves_128_random_bits() {
        for tag in 0..16 {
            let id = LockId::random_with_tag(tag);
            assert_eq!(LockId::parse(id.as_str()).unwrap().tag(), tag);
        }
        assert_eq!(LockId::random().tag(), 0);
        let seen: std::collections::HashSet<_> = (0..1000).map(|_| LockId::random()).collect();
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn debug_does_not_show_the_id() {
        let id = LockId::random();
        assert!(!format!("{id:?}").contains(id.as_str()));
    }
}
