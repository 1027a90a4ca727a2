//! Which server does this test talk to, and who stops it?
//!
//! Every server is a direct child of the test process (or of `cargo xtask test`), listens on a reserved port of
//! 127.0.0.1, keeps its files in one private folder and is killed by its pid when its handle is dropped. If the process
//! that started it dies first, the kernel kills the server. No server of the machine itself is ever used or stopped.
//!
//! * Most tests want *a* server: [`shared`] answers with a URL, either the one that `cargo xtask test` exported or a
//!   private server started on first use. Use your own prefix, table or [`fresh_postgres_database`] so that tests do
//!   not meet.
//! * Tests that kill, stop or configure a server start their own: [`RedisServer`], [`RedisCluster`], [`RedisSentinel`],
//!   [`PostgresServer`], [`PgBouncer`], [`FirestoreEmulator`].
//! * Tests of a bad network put a [`FaultProxy`] in front of any of them.
//! * Benchmarks read their command line and keep their figures with [`mod@bench`].
//!
//! ```
//! use syncguard_testkit::{Fault, FaultProxy, RedisOptions, RedisServer};
//!
//! let server = RedisServer::start(RedisOptions::new());
//! let proxy = FaultProxy::start(server.port());
//! let url = proxy.url(&server.url()); // give this one to the code under test
//! assert!(url.starts_with("redis://127.0.0.1:"));
//!
//! proxy.set(Fault::DropReplies);
//! // … commands through `url` take effect, their replies vanish …
//! assert_eq!(server.command(&["PING"]), "PONG"); // this one goes straight to the server
//! assert_eq!(proxy.counts().faults, 0); // nothing went through yet
//! ```
//!
//! The API blocks: call it from a plain test, or before the runtime matters. Starting takes 10 ms (Redis) to 2 s
//! (emulator). `start` panics with the reason and an install hint, because a missing server is a failed test and never
//! a skipped one; `try_start` returns the same as an error.

#![allow(
    clippy::disallowed_methods,
    reason = "no lease is measured here; the system clocks are right for timeouts of set-up"
)]

pub mod bench;
pub mod clock;
pub mod disk;
pub mod firestore;
pub mod place;
pub mod postgres;
pub mod process;
pub mod program;
pub mod proxy;
pub mod redis;
pub mod rogue;
pub mod shared;
pub mod tls;
mod trials;

pub use disk::Disk;
pub use firestore::FirestoreEmulator;
pub use place::free_port;
pub use postgres::{PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer};
pub use proxy::{Fault, FaultProxy};
pub use redis::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};
pub use shared::{
    firestore_emulator, fresh_postgres_database, pgbouncer_url, postgres_ca, postgres_tls_url, postgres_url, redis_ca,
    redis_cluster_url, redis_sentinel_url, redis_tls_url, redis_url,
};
pub use trials::trials;
