//! Does this backend keep the contract of all backends (`conformance`), and what does it promise beyond it?
//!
//! One binary for all of it, because linking is what tests of a small crate wait for.
#![allow(clippy::unwrap_used)]

mod access;
mod cluster;
mod conformance;
mod contest;
mod crowd;
mod damage;
mod faults;
mod inspect;
mod labels;
mod layout;
mod line;
mod logs;
mod replicas;
mod rights;
mod sentinel;
mod support;
mod two_masters;
mod wake;
