//! What must a storage do to carry locks, and what may it answer?

mod backend;
pub(crate) mod erased;
pub mod health;
mod info;
pub mod inspect;
mod outcome;

pub use backend::{AcquireRequest, Capabilities, Label, LockBackend, Lookup, TimeAuthority};
pub use erased::AnyBackend;
pub use info::{LockInfo, Renewal, RevealedNames};
pub use outcome::{AbsentReason, AcquireOutcome, Contention, ExtendOutcome, Extension, Lease, ReleaseOutcome};
