//! Where do locks live when nothing is installed?
//!
//! In one SQLite file that all processes of a machine share. [`SqliteBackend`] keeps the whole contract: fences that
//! survive kills and power cuts, leases on this machine's clock, waiters that are woken across processes.
//!
//! * Many operations share one commit, and fences are promised to the disk ahead: hardly any lock waits for an fsync.
//! * Many processes queue for their turn instead of starving each other.
//! * A file that is not ours, damaged, replaced, or on a network filesystem is an error that says so; nothing is
//!   overwritten.
//!
//! It works on Linux and other Unixes. On macOS and others than Linux, waiters in *other processes* are not woken by a
//! release: they look again by their retry schedule. It does not compile for Windows.
//!
//! It is for **one machine**. For locks across machines use the Redis, PostgreSQL or Firestore backend.

#[cfg(not(unix))]
compile_error!("syncguard-sqlite needs a Unix system: it queues writers with flock and checks files by inode");

mod backend;
mod builder;
mod channel;
mod connect;
mod error;
mod file;
mod health;
mod inspect;
mod listener;
mod log;
mod names;
mod operations;
mod pool;
mod queue;
mod reserve;
mod row;
mod url;
mod writer;

pub use backend::SqliteBackend;
pub use builder::{SqliteBuilder, Synchronous};

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
