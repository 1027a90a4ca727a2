//! Does this backend keep the contract of all backends (`conformance`), and what does it promise beyond it?
#![allow(clippy::unwrap_used)]

mod auth;
mod calls;
mod cleanup;
mod clocks;
mod conformance;
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
mod support;
mod wakes;
