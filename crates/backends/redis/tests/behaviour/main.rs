//! What does this backend promise beyond the contract of all backends?
//!
//! One binary for all of it, because linking is what tests of a small crate wait for.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod cluster;
mod contest;
mod damage;
mod faults;
mod hand_over;
mod inspect;
mod labels;
mod layout;
mod line;
mod logs;
mod replicas;
mod rights;
mod sentinel;
mod two_masters;
mod wake;
