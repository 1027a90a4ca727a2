//! Does the facade give what it says?
#![allow(clippy::unwrap_used, reason = "tests")]

mod allocations;
mod anatomy;
mod blocking;
mod closures;
mod examples;
mod moving;
mod open;
mod paused;
mod waiters;
