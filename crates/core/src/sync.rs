//! What do the tasks of the client stand on?
//!
//! Mutexes of the standard library, tasks and timers of tokio. They are imported from here and from nowhere else, so
//! that a build with `--cfg syncguard_shuttle` can put others in their place, under which the `schedules` are explored.

#[cfg(all(test, syncguard_shuttle))]
pub(crate) use crate::schedules::primitives::{
    Handle, Instant, JoinHandle, Notify, sleep, sleep_until, spawn, timeout, timeout_at,
};
#[cfg(all(test, syncguard_shuttle))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(all(test, syncguard_shuttle)))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(all(test, syncguard_shuttle)))]
pub(crate) use tokio::{
    runtime::Handle,
    sync::Notify,
    task::{JoinHandle, spawn},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
