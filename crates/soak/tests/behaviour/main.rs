//! Can the soak's own checks fail, does the model keep every promise, and what do readers make of hostile input?
#![allow(clippy::unwrap_used, reason = "tests")]

mod contention;
mod hostile;
mod inputs;
mod model;
mod power;
mod soak;
