//! Does this backend keep the contract of all backends (`conformance`), and what does it promise beyond it?
//!
//! One binary for all of it, because linking is what tests of a small crate wait for.
#![allow(clippy::unwrap_used)]

mod admission;
mod boundary;
mod conformance;
mod connections;
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
mod strangers;
mod support;
mod tls;
mod wake;
