//! How long may a lease be?
//!
//! Whole milliseconds, from 1 ms to 366 days. The upper bound is not about use but about arithmetic: beyond 10¹⁴ ms
//! Redis's JSON prints numbers in a form that loses digits.

use std::time::Duration;

use crate::{LockError, Result};

/// The length of a lease: 1 ms ..= 366 days.
///
/// ```
/// use std::time::Duration;
/// use syncguard_core::Ttl;
///
/// assert_eq!(Ttl::new(Duration::from_secs(30))?.as_millis(), 30_000);
/// assert!(Ttl::new(Duration::from_micros(500)).is_err());
/// assert!(Ttl::new(Duration::MAX).is_err());
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ttl(i64);

impl Ttl {
    /// 30 seconds.
    pub const DEFAULT: Self = Self(30_000);
    /// 1 millisecond.
    pub const MIN: Self = Self(1);
    /// 366 days.
    pub const MAX: Self = Self(366 * 24 * 60 * 60 * 1000);

    /// Validates a duration; a part below a millisecond is cut off.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) below 1 ms or above 366 days.
    pub fn new(duration: Duration) -> Result<Self> {
        match i64::try_from(duration.as_millis()) {
            Ok(millis) => Self::from_millis(millis),
            Err(_) => Err(out_of_range()),
        }
    }

    /// Validates a number of milliseconds.
    ///
    /// # Errors
    /// As [`Ttl::new`].
    pub fn from_millis(millis: i64) -> Result<Self> {
        if (Self::MIN.0..=Self::MAX.0).contains(&millis) { Ok(Self(millis)) } else { Err(out_of_range()) }
    }

    /// Returns the length in milliseconds, as every storage keeps it.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns the length as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0.unsigned_abs())
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = LockError;

    fn try_from(duration: Duration) -> Result<Self> {
        Self::new(duration)
    }
}

fn out_of_range() -> LockError {
    LockError::invalid("the ttl is outside 1 ms ..= 366 days")
        .with_hint("10 s to 60 s suits most work; keep longer work alive by renewal instead")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_exact() {
        for millis in [1, 1_000, Ttl::MAX.as_millis()] {
            assert!(Ttl::from_millis(millis).is_ok());
        }
        for millis in [0, -1, Ttl::MAX.as_millis() + 1, 100_000_000_000_000, (1 << 53) + 1, i64::MAX, i64::MIN] {
            assert!(Ttl::from_millis(millis).is_err(), "{millis}");
        }
        assert!(Ttl::new(Duration::ZERO).is_err());
        assert_eq!(Ttl::new(Duration::from_micros(1_500)).map(Ttl::as_millis).ok(), Some(1));
    }
}
