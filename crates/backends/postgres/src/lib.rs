//! Locks in a `PostgreSQL` database that you run anyway.
//!
//! Every operation is one transaction in one round trip. The server's clock decides liveness, the server's disk keeps
//! the fences, and waiters are woken by the server. Works behind transaction poolers and shares its tables with the
//! TypeScript original. [Its page](https://docs.rs/syncguard/latest/syncguard/docs/backends/postgres/)
//! has guarantees, grants, sizing and poolers.
//!
//! * [`PostgresBackend::connect`] takes a URL, [`PostgresBackend::builder`] an address.
//! * [`schema_sql`] is the SQL for migrations.
//!
//! | feature | adds |
//! |---|---|
//! | `deadpool` | `PostgresBackend::from_pool`: your own `deadpool_postgres::Pool`; the crate is re-exported |
//! | `transaction` | `PostgresBackend::acquire_in_tx`: a lock taken atomically with your own writes; `tokio_postgres` is re-exported |
//!
//! Tested on Linux; not on macOS, nor on Windows, where it has no Unix sockets.

// docs.rs shows at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admission;
mod backend;
mod batch;
mod builder;
mod connect;
mod environment;
mod error;
mod health;
mod hosts;
#[cfg(feature = "transaction")]
mod in_tx;
mod inspect;
mod introduce;
mod listener;
mod logins;
mod names;
mod operations;
mod pace;
mod passfile;
mod pipeline;
mod pool;
mod row;
mod schema;
mod session;
mod statement;
mod table;
mod tls;
mod url;
mod wire;

pub use backend::PostgresBackend;
pub use builder::{PostgresBuilder, Prepared};
pub use connect::TargetSessionAttrs;
#[cfg(feature = "deadpool")]
pub use deadpool_postgres;
pub use schema::{protect_counters_sql, schema_sql};
pub use tls::SslMode;
#[cfg(any(feature = "transaction", feature = "client"))]
pub use tokio_postgres;

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
