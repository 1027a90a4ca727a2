//! For how long is a lock held, and who finds out that it is not?

pub(crate) mod belief;
mod guard;
pub(crate) mod handle;
pub(crate) mod heartbeat;
mod loss;
#[cfg_attr(all(test, syncguard_shuttle), allow(dead_code, reason = "schedules have no other threads"))]
pub(crate) mod renewal_thread;

pub use guard::Guard;
pub use handle::LockHandle;
pub use loss::LossReason;
