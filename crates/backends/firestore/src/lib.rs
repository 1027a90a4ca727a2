//! Locks in Firestore, for programs that have it already.
//!
//! One document per lock, one per fence counter, no server-side transaction: an operation reads, decides, and commits on the
//! condition that nothing it read has changed. Firestore offers no clock to ask, so **each client's own clock decides when
//! a lease is over**: run NTP on every machine, watch [`FirestoreBackend::clock_offset`], and have acquire refuse a
//! wrong clock with `?clock=strict`. Where clocks cannot be trusted, use another backend.
//!
//! ```no_run
//! use syncguard_firestore::FirestoreBackend;
//!
//! # async fn example() -> Result<(), syncguard_core::LockError> {
//! let backend = FirestoreBackend::connect("firestore://my-project?clock=strict").await?;
//! # let _ = backend;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/backends/firestore.md` has guarantees, costs, limits, rights and indexes.

mod attempt;
mod auth;
mod backend;
mod crowd;
mod document;
mod error;
mod health;
mod listen;
mod options;
mod owned;
mod rpc;
mod skew;

pub use backend::FirestoreBackend;
pub use options::FirestoreBuilder;
pub use skew::ClockOffset;
