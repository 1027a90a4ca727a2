//! A distributed lock for people who run the same code on more than one machine.
//!
//! This crate is what applications add: everything of [`syncguard_core`], the storages behind features, and
//! [`open`] to choose one by URL. With default features it needs nothing installed: locks live in an `SQLite` file shared
//! by all processes of the machine, and changing the URL moves them to Redis, `PostgreSQL` or Firestore.
//!
//! Libraries that take or offer locks should depend on `syncguard-core` instead, which has no driver in it.

#[cfg(doctest)]
mod doctests;
mod open;
mod url;

pub use open::open;
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
