//! Locks in Redis (or Valkey): a single server, behind Sentinel, or in a Cluster.
//!
//! Each operation is one Lua script and one round trip; the server's clock decides, the server counts the fences, and releases wake the
//! waiters of all processes. What Redis itself can lose (an asynchronous failover, a crash without an append-only file, an
//! eviction) is told in `docs/backends/redis.md`, with what fences still protect then.
//!
//! Begin with [`RedisBackend::connect`]; [`RedisOptions`] has everything a URL can say. Inside: `backend` turns operations into scripts,
//! `router` finds the server, `line` shares connections, `listener` hears releases.

mod backend;
mod cluster;
mod dial;
mod error;
mod health;
mod held;
mod line;
mod listener;
mod names;
mod options;
mod purge;
mod reply;
mod router;
mod script;
mod spread;
mod stream;
mod url;

pub use backend::RedisBackend;
pub use options::RedisOptions;
