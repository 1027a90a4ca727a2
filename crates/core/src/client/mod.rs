//! How is a lock asked for, held and given back?
//!
//! A [`Locker`] makes requests. `waiting` gets the lock, `holding` knows for how long it may be believed in, `release`
//! gives it back, whoever leaves. Several locks and elections are requests that wrap the one for a single lock.

mod cancellation;
pub mod election;
pub(crate) mod holding;
mod locker;
mod options;
pub(crate) mod plan;
pub(crate) mod release;
mod request;
mod runtime;
pub mod several;
pub(crate) mod shared;
pub(crate) mod waiting;

pub use holding::{Guard, LockHandle, LossReason};
pub use locker::{Locker, LockerBuilder, ReleaseErrorHook};
pub use options::LockOptions;
pub use request::{Attempt, LockRequest, OnLost, Report};
