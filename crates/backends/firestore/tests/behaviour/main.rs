//! What does this backend promise beyond the contract?
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod auth;
mod calls;
mod cleanup;
mod clocks;
mod connections;
mod damage;
mod duplicates;
mod faults;
mod google;
mod inspect;
mod layout;
mod logs;
mod network;
mod races;
mod wakes;
