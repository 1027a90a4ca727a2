//! Which of two holders came later?
//!
//! A fence is a number that grows with every acquisition of a key. It is written with exactly 15 digits, so that
//! text order is number order everywhere, and it is *compared as a number* in code: comparing text let a
//! 16-digit counter sort below its predecessors in the TypeScript original.

use std::fmt;
use std::str::FromStr;

use serde_core::de::{Deserialize, Deserializer, Error as _};
use serde_core::{Serialize, Serializer};

use crate::{LockError, Result};

/// The fencing token of one acquisition: grows per key, never repeats.
///
/// ```
/// use syncguard_core::Fence;
///
/// let fence = Fence::new(42)?;
/// assert_eq!(fence.to_string(), "000000000000042");
/// assert_eq!("000000000000042".parse::<Fence>()?, fence);
/// assert!(fence < Fence::new(43)?);
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(u64);

impl Fence {
    /// Digits of the text form.
    pub const DIGITS: usize = 15;
    /// The first fence of a key.
    pub const FIRST: Self = Self(1);
    /// The last fence that is ever given. Beyond it acquire fails before anything is written.
    pub const MAX: Self = Self(900_000_000_000_000);
    /// From here on acquire warns: a tenth of the way, which no honest use reaches.
    pub const WARN: Self = Self(90_000_000_000_000);

    /// Accepts a counter's value.
    ///
    /// # Errors
    /// [`Internal`](crate::ErrorCode::Internal) for 0 and for anything above [`Fence::MAX`].
    pub fn new(value: u64) -> Result<Self> {
        if value == 0 || value > Self::MAX.0 {
            return Err(LockError::internal("the fence counter is outside 1..=900000000000000")
                .with_hint("the counter was damaged or restored badly; use a new key or repair the counter by hand"));
        }
        Ok(Self(value))
    }

    /// Returns the number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether the counter is past [`Fence::WARN`].
    pub fn is_near_limit(self) -> bool {
        self > Self::WARN
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015}", self.0)
    }
}

impl FromStr for Fence {
    type Err = LockError;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() != Self::DIGITS || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(LockError::invalid("a fence is exactly 15 decimal digits"));
        }
        // A text comes from a person or from another system: that it is out of range says nothing about our counters.
        let value = text.parse().map_err(|_| LockError::invalid("a fence is exactly 15 decimal digits"))?;
        Self::new(value).map_err(|_| LockError::invalid("a fence lies within 1..=900000000000000"))
    }
}

impl TryFrom<u64> for Fence {
    type Error = LockError;

    fn try_from(value: u64) -> Result<Self> {
        Self::new(value)
    }
}

impl TryFrom<i64> for Fence {
    type Error = LockError;

    fn try_from(value: i64) -> Result<Self> {
        Self::new(u64::try_from(value).unwrap_or(0))
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.0
    }
}

impl From<Fence> for i64 {
    fn from(fence: Fence) -> Self {
        // The largest fence has 15 digits, so this never saturates.
        Self::try_from(fence.0).unwrap_or(Self::MAX)
    }
}

impl Serialize for Fence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fence {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_limits_hold() {
        assert!(Fence::new(0).is_err());
        assert_eq!(Fence::new(1).unwrap(), Fence::FIRST);
        assert_eq!(Fence::new(Fence::MAX.get()).unwrap(), Fence::MAX);
        for beyond in [Fence::MAX.get() + 1, 999_999_999_999_999, 1_000_000_000_000_000, u64::MAX] {
            assert!(Fence::new(beyond).is_err());
        }
        assert!(!Fence::WARN.is_near_limit());
        assert!(Fence::new(Fence::WARN.get() + 1).unwrap().is_near_limit());
    }

    #[test]
    fn only_fifteen_digits_parse() {
        for text in
            ["", "1", "0000000000000001", "00000000000001", "+00000000000001", "00000000000000x", "000000000000000"]
        {
            assert!(text.parse::<Fence>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_text_out_of_range_is_the_callers_mistake() {
        for text in ["000000000000000", "900000000000001", "999999999999999"] {
            assert_eq!(text.parse::<Fence>().unwrap_err().code(), crate::ErrorCode::InvalidArgument, "{text}");
        }
    }

    #[test]
    fn a_fence_is_a_number_of_either_kind_and_back() {
        let fence = Fence::new(42).unwrap();
        assert_eq!((u64::from(fence), i64::from(fence)), (42, 42));
        assert_eq!((Fence::try_from(42_u64).unwrap(), Fence::try_from(42_i64).unwrap()), (fence, fence));
        assert!(Fence::try_from(-1_i64).is_err() && Fence::try_from(0_u64).is_err());
    }

    #[test]
    fn json_carries_text() {
        let fence = Fence::new(7).unwrap();
        let json = serde_json::to_string(&fence).unwrap();
        assert_eq!(json, "\"000000000000007\"");
        assert_eq!(serde_json::from_str::<Fence>(&json).unwrap(), fence);
        assert!(serde_json::from_str::<Fence>("7").is_err());
    }

    proptest! {
        #[test]
        fn text_order_is_number_order(a in 1..=Fence::MAX.get(), b in 1..=Fence::MAX.get()) {
            let (a, b) = (Fence::new(a).unwrap(), Fence::new(b).unwrap());
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
            prop_assert_eq!(a.to_string().parse::<Fence>().unwrap(), a);
        }
    }
}
