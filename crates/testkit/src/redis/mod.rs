//! How does a test get a Redis of its own?
//!
//! [`RedisServer`] is one server with the options a test needs; [`RedisCluster`] and [`RedisSentinel`] are made of it.
//! [`resp`] is the client through which they are set up and looked into: blocking, no pool, no dependency on the driver
//! under test.

pub mod cluster;
pub mod resp;
pub mod sentinel;
pub mod server;
mod slots;

pub use cluster::{ClusterOptions, RedisCluster};
pub use resp::{Reply, RespClient};
pub use sentinel::RedisSentinel;
pub use server::{Appendonly, RedisOptions, RedisServer};
