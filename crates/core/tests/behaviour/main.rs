//! Does the client keep its promises, on the reference backend and on scripted ones?
#![allow(clippy::unwrap_used, reason = "tests")]

mod allocations;
mod client;
mod drops;
mod inspect;
mod metrics;
mod pauses;
mod promises;
mod release_hooks;
mod simulation;
mod standby;
mod telemetry;
mod weight;
