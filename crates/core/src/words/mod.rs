//! What does each word mean, and what can it never be?
//!
//! Keys, ids, fences, leases, times and errors. Each is validated once, when it is made, and carries the proof.

mod conversions;
mod error;
mod fence;
mod hash;
mod key;
mod lock_id;
pub mod time;
mod ttl;

pub use conversions::{IntoKey, IntoLabel, IntoTtl};
pub use error::{ErrorCode, LockError, Result};
pub use fence::Fence;
pub use hash::HashId;
pub use key::Key;
pub use lock_id::LockId;
pub use ttl::Ttl;
