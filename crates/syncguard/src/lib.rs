//! A distributed lock for people who run the same code on more than one machine.
//!
//! ```
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), syncguard::LockError> {
//! let locker = syncguard::connect("memory:").await?; // or sqlite:PATH, redis://…, postgres://…, firestore://…
//! let receipt = locker
//!     .lock("payment:42")
//!     .timeout(Duration::from_secs(5)) // how long to wait for it
//!     .keep_alive() // renewed while the work runs; the work is dropped if the lock is lost
//!     .run(async |lock| format!("charged under fence {}", lock.fence()))
//!     .await?;
//! assert_eq!(receipt, "charged under fence 000000000000001");
//! locker.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! This crate is what applications add: everything of [`syncguard_core`], the backends behind features, and [`connect`]
//! to choose one by URL. With default features it needs nothing installed: locks live in an `SQLite` file, and changing
//! the URL moves them to Redis, `PostgreSQL` or Firestore. Libraries that take or offer locks should depend on
//! `syncguard-core` instead, which has no driver in it.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite` (default) | the embedded backend: one file, all processes of one machine |
//! | `redis`, `postgres`, `firestore` | those backends |
//! | `blocking` | the same locks for programs without async code |
//! | `fenced`, `fenced-http`, `fenced-object`, `fenced-sqlx` | guards for what a lock protects |
//! | `tracing`, `metrics` | warnings and events; histograms and counters |
//! | `full` | all of these but `fenced-http`, `fenced-object` and `fenced-sqlx` |
//!
//! Rust 1.95 or newer. Tested on Linux. On macOS the sqlite backend notices another process's release by looking again, not by a wake-up;
//! on Windows it does not compile.

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(doctest)]
mod doctests;
mod open;
mod url;

pub use open::{connect, open};
pub use syncguard_core::*;
pub use url::{KNOWN_SCHEMES, RedactedUrl, Scheme};

/// The embedded storage: one `SQLite` file, all processes of one machine.
#[cfg(feature = "sqlite")]
pub use syncguard_sqlite as sqlite;

/// Redis: a single server, Sentinel or Cluster.
#[cfg(feature = "redis")]
pub use syncguard_redis as redis;

/// `PostgreSQL`.
#[cfg(feature = "postgres")]
pub use syncguard_postgres as postgres;

/// Firestore.
#[cfg(feature = "firestore")]
pub use syncguard_firestore as firestore;

/// Guards for what a lock protects: databases, files, services and objects that refuse a stale holder.
#[cfg(feature = "fenced")]
pub use syncguard_fenced as fenced;
