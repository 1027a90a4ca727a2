//! A distributed lock for people who run the same code on more than one machine.
//!
//! ```
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), syncguard::LockError> {
//! let locker = syncguard::connect("memory:").await?; // or sqlite:PATH, redis://…, postgres://…, firestore://…
//! let receipt = locker
//!     .lock("payment:42")
//!     .timeout(Duration::from_secs(5)) // how long to wait for it
//!     .keep_alive() // renewed while the work runs; the work is dropped if the lock is lost
//!     .run(async |lock| format!("charged under fence {}", lock.fence()))
//!     .await?;
//! assert_eq!(receipt, "charged under fence 000000000000001");
//! locker.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! This crate is what applications add: everything of [`syncguard_core`], the backends behind features, and [`connect`]
//! to choose one by URL. No backend is on by default, only `memory:`; `cargo add syncguard --features sqlite` needs nothing
//! installed, and changing feature and URL moves the locks to Redis, `PostgreSQL` or Firestore. Libraries that take or offer locks should depend on
//! `syncguard-core` instead, which has no driver in it.
//!
//! # Five jobs
//!
//! ```
//! # use std::time::Duration;
//! # use syncguard::fenced::{self, RunFenced};
//! # async fn report() {}
//! # async fn deploy() {}
//! # async fn migrate() {}
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let locker = syncguard::connect("memory:").await?;
//! // Started on every host, done by one. That another one has it is an answer, not an error.
//! if let Some(guard) = locker.lock("cron:report").keep_alive().try_acquire().await? {
//!     report().await;
//!     guard.release().await?;
//! }
//!
//! // One deployment at a time; the others wait their turn, and whoever looks sees who is at it.
//! let deployment = locker.lock("deploy:prod").timeout(Duration::from_secs(30 * 60)).label("ci-1234").keep_alive();
//! deployment.run(async |_| deploy().await).await?;
//!
//! // Migrations of an application whose replicas all start at once.
//! locker.lock("migrate:app").timeout(Duration::from_secs(600)).keep_alive().run(async |_| migrate().await).await?;
//!
//! // One leader, and a successor when it dies. The term grows with every leader.
//! let term = locker.elect("leader:mailer").lead(async |lock| lock.fence()).await?;
//! # assert_eq!(term.get(), 1);
//!
//! // A write that a holder which slept past its lease cannot do (feature `fenced`).
//! let mut database = rusqlite::Connection::open_in_memory()?;
//! fenced::sqlite::install(&database)?;
//! # database.execute_batch("CREATE TABLE ledger (closed)")?;
//! let work = |tx: &mut rusqlite::Transaction<'_>| {
//!     tx.execute("UPDATE ledger SET closed = 1", [])?;
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
//! };
//! locker.lock("ledger:close").run_fenced(&mut database, work).await?;
//! # locker.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
#![cfg_attr(
    doc,
    doc = "Where to go on: the [guide](docs::guide), [fencing](docs::fencing), the [promises](docs::guarantees) with"
)]
#![cfg_attr(doc, doc = "their tests, every [error](docs::errors), the [backends](docs::backends), how to")]
#![cfg_attr(doc, doc = "[write one](docs::write_a_backend), and the [command](docs::cli).")]
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite` | the embedded backend: one file, all processes of one machine |
//! | `redis`, `postgres`, `firestore` | those backends; `firestore` needs Rust 1.91 |
//! | `blocking` | the same locks for programs without async code |
//! | `fenced` | guards for what a lock protects: files, and the databases whose backends are on |
//! | `fenced-http`, `fenced-object` | the same for HTTP services (tower) and object stores |
//! | `fenced-sqlx` | the same for transactions of sqlx on `PostgreSQL`; needs Rust 1.94 |
//! | `client`, `deadpool`, `transaction` | a connection by the same URL; your own pool; a lock inside of your transaction |
//! | `tracing`, `metrics` | warnings and events; histograms and counters |
//! | `full` | `sqlite`, `redis`, `postgres`, `firestore`, `blocking`, `fenced`, `tracing` and `metrics` |
//!
//! A feature belongs to one version of what it speaks with: `fenced` to rusqlite 0.32 to 0.41, tokio-postgres 0.7 and
//! redis 1; `fenced-sqlx` to sqlx 0.9; `fenced-http` to http 1 and tower 0.5; `fenced-object` to `object_store`
//! 0.14; `metrics` to metrics 0.24; `deadpool` to deadpool-postgres 0.14.
//!
//! Rust 1.89 or newer, where the table says no more. Tested on Linux. On macOS the sqlite backend notices another
//! process's release by looking again, not by a wake-up; on Windows it does not compile.

// docs.rs shows at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(any(doc, doctest))]
pub mod docs;
mod open;
mod url;

pub use open::{OpenOptions, connect, open};
pub use syncguard_core::protection::{Protection, Way};
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

/// Guards for what a lock protects: databases, files, services and objects that refuse a stale holder.
#[cfg(feature = "fenced")]
pub use syncguard_fenced as fenced;
