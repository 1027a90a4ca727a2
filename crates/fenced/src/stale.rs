//! Who may write?
//!
//! One rule, in one place: a fence that is not below the highest one seen. Every guard of this crate asks [`compare`]
//! or says the same in the language of its storage.

use std::error::Error;
use std::fmt;

use syncguard_core::{ErrorCode, Fence, LockError};

/// A result whose error says why a write was not accepted.
pub type Result<T, E = FenceError> = std::result::Result<T, E>;

/// A newer holder has written already, so this write was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StaleFence {
    /// The fence that came with the write.
    pub offered: Fence,
    /// The highest fence that was accepted before.
    pub seen: Fence,
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} is stale: {} was here before", self.offered, self.seen)
    }
}

impl Error for StaleFence {}

/// Why a write was not accepted.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer holder has written. Trying again cannot help: stop, and leave the work to that holder.
    Stale(StaleFence),
    /// Somebody else held the lock for as long as was waited for it: nothing was begun.
    Contended(LockError),
    /// The lock was lost while the work ran, or while it was committed.
    Lost(LockError),
    /// The check itself failed, so nothing was accepted. [`LockError::is_transient`] says whether trying again can
    /// help.
    Failed(LockError),
}

impl FenceError {
    /// Returns the two fences if the write was refused for its fence.
    pub fn stale(&self) -> Option<StaleFence> {
        match self {
            Self::Stale(stale) => Some(*stale),
            Self::Contended(_) | Self::Lost(_) | Self::Failed(_) => None,
        }
    }

    /// Returns the status that a service answers with: `412` for a stale fence, as the layer for services does, otherwise
    /// that of [`LockError::http_status`].
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Stale(_) => 412,
            Self::Contended(error) | Self::Lost(error) | Self::Failed(error) => error.http_status(),
        }
    }

    #[allow(dead_code, reason = "each guard uses it, and each guard is optional")]
    pub(crate) fn unavailable(message: &'static str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(LockError::new(ErrorCode::ServiceUnavailable, message).with_source(source))
    }

    #[allow(dead_code, reason = "each guard uses it, and each guard is optional")]
    pub(crate) fn damaged(message: &'static str) -> Self {
        Self::Failed(
            LockError::internal(message).with_hint("restore the mark to the highest fence that was ever accepted"),
        )
    }
}

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(stale) => stale.fmt(f),
            Self::Contended(error) | Self::Lost(error) | Self::Failed(error) => error.fmt(f),
        }
    }
}

impl Error for FenceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Stale(_) => None,
            Self::Contended(error) | Self::Lost(error) | Self::Failed(error) => error.source(),
        }
    }
}

impl From<StaleFence> for FenceError {
    fn from(stale: StaleFence) -> Self {
        Self::Stale(stale)
    }
}

impl From<LockError> for FenceError {
    fn from(error: LockError) -> Self {
        match error.code() {
            ErrorCode::AcquisitionTimeout => Self::Contended(error),
            ErrorCode::LockLost => Self::Lost(error),
            _ => Self::Failed(error),
        }
    }
}

/// What an accepted fence means for the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a higher fence has to be remembered"]
pub enum Accepted {
    /// The first one, or higher than all before: remember it, in the same atomic step as the write.
    Higher,
    /// The same holder again: the mark is right as it is.
    Equal,
}

/// Applies the rule to an offered fence and the mark.
///
/// ```
/// use syncguard_fenced::{Accepted, StaleFence, compare};
/// use syncguard_core::Fence;
///
/// let (older, newer) = (Fence::new(41)?, Fence::new(42)?);
/// assert_eq!(compare(newer, Some(older)), Ok(Accepted::Higher));
/// assert_eq!(compare(newer, Some(newer)), Ok(Accepted::Equal));
/// assert_eq!(compare(older, Some(newer)), Err(StaleFence { offered: older, seen: newer }));
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
///
/// # Errors
/// [`StaleFence`] when the mark is higher.
pub fn compare(offered: Fence, seen: Option<Fence>) -> Result<Accepted, StaleFence> {
    match seen {
        Some(seen) if seen > offered => Err(StaleFence { offered, seen }),
        Some(seen) if seen == offered => Ok(Accepted::Equal),
        _ => Ok(Accepted::Higher),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_both_fences_and_nothing_else() {
        let stale = StaleFence { offered: Fence::FIRST, seen: Fence::MAX };
        let error = FenceError::from(stale);

        assert_eq!(error.to_string(), "fence 000000000000001 is stale: 900000000000000 was here before");
        assert_eq!(error.stale(), Some(stale));
    }

    #[test]
    fn a_failed_check_is_not_a_stale_fence() {
        let error = FenceError::unavailable("the disk is gone", std::io::Error::other("no disk"));

        assert_eq!(error.stale(), None);
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("no disk"));
    }
}
