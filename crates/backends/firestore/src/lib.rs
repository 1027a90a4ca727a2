//! Locks in Firestore, for programs that have it already.
//!
//! One document per lock, one per fence counter, no server-side transaction: an operation reads, decides, and commits
//! on the condition that nothing it read has changed. Firestore offers no clock to ask, so **each client's own clock
//! decides when a lease is over**: run NTP on every machine, watch [`FirestoreBackend::clock_offset`], and have acquire
//! refuse a wrong clock with `?strict_clock=true`. Where clocks cannot be trusted, use another backend.
//!
//! ```no_run
//! use syncguard_firestore::FirestoreBackend;
//!
//! # async fn example() -> Result<(), syncguard_core::LockError> {
//! let backend = FirestoreBackend::connect("firestore://my-project?strict_clock=true").await?;
//! # let _ = backend;
//! # Ok(())
//! # }
//! ```
//!
//! It works the same on Linux, macOS and Windows.
//!
//! [Its page](https://docs.rs/syncguard/latest/syncguard/docs/backends/firestore/) has guarantees, costs, limits, rights and indexes.

mod auth;
mod backend;
mod builder;
mod connect;
mod document;
mod error;
mod health;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod inputs;
mod inspect;
mod listener;
mod names;
mod operations;
mod pool;
mod rpc;
mod skew;
mod url;

pub use backend::FirestoreBackend;
pub use builder::FirestoreBuilder;
pub use skew::ClockOffset;

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
