//! Locks in a `PostgreSQL` database that you run anyway.
//!
//! Every operation is one transaction in one round trip. The server's clock decides liveness, the server's disk keeps the
//! fences, and waiters are woken by the server. Works behind transaction poolers and shares its tables with the TypeScript
//! original. `docs/backends/postgres.md` has guarantees, grants, sizing and poolers.
//!
//! * [`PostgresBackend::connect`] takes a URL, [`PostgresBackend::from_pool`] your own pool.
//! * [`PostgresBackend::acquire_in_tx`] takes a lock atomically with your own writes.
//! * [`schema_sql`] is the SQL for migrations.

mod backend;
mod builder;
mod connect;
mod error;
mod health;
mod in_tx;
mod listener;
mod names;
mod operations;
mod passfile;
mod pipeline;
mod pool;
mod row;
mod schema;
mod statement;
mod table;
mod tls;
mod url;
mod wire;

pub use backend::PostgresBackend;
pub use builder::{PostgresBuilder, Prepared};
pub use schema::{protect_counters_sql, schema_sql};
pub use tls::SslMode;
