//! How does a test get a PostgreSQL of its own?
//!
//! [`PostgresServer`] is one server; [`PgBouncer`] is the pooler in front of it. [`wire`] is the client through which
//! they are set up and looked into: blocking, trust authentication, no dependency on the driver under test.

pub mod pgbouncer;
pub mod server;
mod template;
pub mod wire;

pub use pgbouncer::{PgBouncer, PgBouncerOptions};
pub use server::{PostgresOptions, PostgresServer};
pub use wire::PgClient;
