//! Why is a lock not held any more?

/// Why a lock is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The backend said that the lock is not there.
    Absent,
    /// The lease ended, or must be presumed to have: no renewal succeeded in time.
    Expired,
    /// The longest hold that the request allowed is over.
    MaxHold,
    /// It was released (or its release was begun).
    Released,
}

impl LossReason {
    /// Returns the reason as one word, for labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Expired => "expired",
            Self::MaxHold => "max-hold",
            Self::Released => "released",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Absent => "the backend does not know it any more",
            Self::Expired => "its lease ended before it could be renewed",
            Self::MaxHold => "it reached its longest hold",
            Self::Released => "it was released",
        }
    }
}
