//! Locks in Redis (or Valkey): a single server, behind Sentinel, or in a Cluster.
//!
//! Acquire is one Lua script and one round trip, and so are release and extend of a lock that this process acquired
//! (for another process's lock id its name is read first); `is_locked` reads the lock and the time. The server's clock
//! decides, the server counts the fences, and releases wake the waiters of all processes. What Redis itself can lose
//! (an asynchronous failover, a crash without an append-only file, an eviction) is told on
//! [its page](https://docs.rs/syncguard/latest/syncguard/docs/backends/redis/),
//! with what fences still protect then.
//!
//! Begin with [`RedisBackend::connect`]; [`RedisBuilder`] has everything a URL can say. Inside: `operations` turns lock
//! operations into scripts, `router` finds the server, `pool` shares connections,
//! `listener` hears releases.

// docs.rs shows at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod builder;
mod cluster;
mod connect;
mod error;
mod health;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod inputs;
mod inspect;
mod listener;
mod names;
mod operations;
mod own_locks;
mod pool;
mod reply;
mod router;
mod script;
mod stream;
mod turns;
mod url;

pub use backend::RedisBackend;
pub use builder::{RedisAddress, RedisBuilder};

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
