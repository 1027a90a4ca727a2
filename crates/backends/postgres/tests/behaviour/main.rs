//! What does this backend promise beyond the contract of all backends?
//!
//! One binary for all of it, because linking is what tests of a small crate wait for.
#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

mod boundary;
mod crash;
mod faults;
mod health;
mod in_tx;
mod inspect;
mod literal;
mod many;
mod one_statement;
mod opening;
mod pooler;
mod promises;
mod rights;
mod schema;
mod secrets;
mod session;
mod tls;
mod wake;
