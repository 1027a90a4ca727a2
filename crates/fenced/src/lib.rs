//! Guards for what a lock protects.
//!
//! A lock tells its holder that nobody else is at work. It cannot stop a holder that was paused past the end of its
//! lease and writes when it wakes up. Only the resource can, by comparing the [`Fence`](syncguard_core::Fence) of the
//! lock with the highest one it has seen. Here are resources that do:
//!
//! | module | protects | the write and the mark are one |
//! |---|---|---|
//! | `file` | a file | OS lock, then rename |
//! | `sqlite` | tables of an `SQLite` file | transaction of the caller |
//! | `postgres`, `sqlx` | tables of a `PostgreSQL` database | transaction of the caller |
//! | `redis` | keys of a Redis server or Cluster | one script |
//! | `http` | a service | requests of an older fence end before a newer one begins |
//! | `object` | an object of S3, GCS, Azure | conditional put |
//!
//! One rule holds everywhere: a fence that is not below the highest one seen is accepted and remembered; a lower one is
//! refused with [`StaleFence`]. Remembering and the caller's write are one atomic step. Everything is behind the
//! feature that has the module's name.
//!
//! [`RunFenced::run_fenced`] is the shortest way: lock, check, write and commit in one call.
//!
//! For a place of your own there is [`HighWater`], and `fenced_suite!` (feature `suite`) to prove it.

// docs.rs shows at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "file")]
pub mod file;
mod high_water;
#[cfg(feature = "http")]
pub mod http;
mod memory;
#[cfg(feature = "object")]
pub mod object;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod postgres_shared;
#[cfg(feature = "redis")]
pub mod redis;
mod run;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod stale;
#[cfg(feature = "suite")]
pub mod suite;

pub use high_water::HighWater;
pub use memory::MemoryMarks;
pub use run::{Gate, RunFenced};
pub use stale::{Accepted, FenceError, Result, StaleFence, compare};

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
