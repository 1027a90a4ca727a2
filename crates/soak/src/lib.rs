//! Does the lock keep its promises when everything around it breaks?
//!
//! Worker *processes* contend for keys while a nemesis, driven by a seed, kills and stops them, cuts their network and
//! kills their server. Every process writes what it saw to a [`history`] of its own, on the one clock that all processes
//! of a machine share; afterwards pure functions [`check`] the histories. [`run`] does all of it and returns the
//! [`Scoreboard`].
//!
//! A verdict is about safety alone. How much was done depends on the machine; that nothing wrong was done does not.

#![allow(
    clippy::disallowed_methods,
    reason = "leases are measured by the boot clock of `time`; the system clocks bound waits of the set-up"
)]

pub mod check;
pub mod contention;
pub mod fleet;
pub mod fork;
pub mod history;
pub mod inputs;
pub mod nemesis;
pub mod power;
pub mod random;
pub mod recorded;
pub mod resource;
mod run;
pub mod scoreboard;
pub mod time;
pub mod worker;
pub mod world;

pub use run::{Options, check_folder, run};
pub use scoreboard::Scoreboard;
pub use world::Storage;

/// The lease that workers ask for. Short, so that a stop outlives it within seconds.
pub const TTL_MS: u64 = 2_000;

/// How long after its expiry a lease still counts as alive: core's tolerance.
pub const TOLERANCE_MS: u64 = 1_000;
