//! What does this backend promise beyond the contract?
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod auth;
mod calls;
mod clocks;
mod duplicates;
mod faults;
mod google;
mod layout;
mod logs;
mod network;
mod races;
mod wakes;
