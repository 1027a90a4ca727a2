//! When is the lock asked for, and by whom, until somebody has it?
//!
//! `retry` is the schedule of one waiter, `room` the pure machine that decides for all waiters of a process, `limits` its
//! numbers, `place` what one task has of a room, and `acquisition` the loop that sends what the machine decides.

pub(crate) mod acquisition;
mod giving_up;
mod limits;
pub(crate) mod place;
pub mod retry;
mod room;
