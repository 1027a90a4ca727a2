//! A distributed lock whose holder knows when it has lost it.
//!
//! A **lock** is one key held by one owner for a while. Three things make it safe to build on:
//!
//! * the **lock id**, a secret made by the owner: only who knows it can extend or release the lock;
//! * the **lease**, counted on the backend's clock: a holder that died frees the lock by doing nothing;
//! * the **fence**, a number that only grows per key: a resource that remembers the highest fence it has seen refuses a
//!   holder that was paused and woke up too late.
//!
//! No lease lock can promise that two processes never *run* at once: a process may be suspended between two
//! instructions. What this crate promises is that at most one lock id is live in storage, that the guard
//! stops believing *before* storage frees the lock, and that fences only rise.
//!
//! # The whole idea on one page
//!
//! ```
//! use std::time::Duration;
//! use syncguard_core::{Locker, MemoryBackend};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), syncguard_core::LockError> {
//! let locker = Locker::new(MemoryBackend::new());
//!
//! // Held around a piece of work, renewed while it runs, and the work is dropped if the lock is lost.
//! let receipt = locker
//!     .lock("payment:42")
//!     .ttl(Duration::from_secs(30))
//!     .timeout(Duration::from_secs(5))
//!     .keep_alive()
//!     .run(async |lock| format!("charged under fence {}", lock.fence()))
//!     .await?;
//! assert_eq!(receipt, "charged under fence 000000000000001");
//!
//! // Or by hand. Contention is an answer, not an error.
//! if let Some(guard) = locker.lock("payment:42").try_acquire().await? {
//!     assert!(guard.remaining() > Duration::from_secs(29));
//!     guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Where things are
//!
//! * `words`, each validated once and carrying its proof: [`Key`], [`LockId`], [`Fence`], [`Ttl`], [`Timestamp`],
//!   [`HashId`], [`LockError`];
//! * `contract`, what a backend does: [`LockBackend`], its outcomes, [`LockInfo`], [`AnyBackend`], [`health`],
//!   [`inspect`];
//! * `client`: [`Locker`], [`LockRequest`], [`Guard`], [`LockHandle`], [`retry`], [`several`], [`election`];
//! * `events`: [`telemetry`];
//! * `for_backends`, what they share: [`listener`], [`wake`], [`url_options`], [`storage_key`];
//! * [`MemoryBackend`], for tests and single processes.
//!
//! Libraries should depend on this crate; applications on `syncguard`, which adds `open(url)` and the storages.

// docs.rs shows at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod contract;
mod events;
mod for_backends;
mod memory;
#[cfg(all(test, syncguard_shuttle))]
mod schedules;
mod sync;
mod words;

pub use client::waiting::retry;
pub use client::{
    Attempt, Guard, LockHandle, LockOptions, LockRequest, Locker, LockerBuilder, LossReason, OnLost, ReleaseErrorHook,
    Report, election, several,
};
pub use contract::{
    AbsentReason, AcquireOutcome, AcquireRequest, AnyBackend, Capabilities, Contention, ExtendOutcome, Extension,
    Label, Lease, LockBackend, LockInfo, Lookup, ReleaseOutcome, Renewal, RevealedNames, TimeAuthority, health,
    inspect,
};
pub use events::telemetry;
pub use for_backends::protection;
#[cfg(feature = "tls")]
pub use for_backends::tls;
pub use for_backends::{listener, storage_key, url_options, wake};
pub use health::{HealthCheck, HealthReport, HealthStatus};
pub use inspect::{
    AskOutcome, Counts, Cursor, Inspect, Inspector, ListRequest, Page, Transition, TransitionKind, Watch,
};
pub use memory::MemoryBackend;
pub use time::{BootTime, Clock, SystemClock, Timestamp, TokioClock};
pub use tokio_util::sync::CancellationToken;
pub use wake::{WakeHint, WakeHub};
pub use words::{ErrorCode, Fence, HashId, IntoKey, IntoLabel, IntoTtl, Key, LockError, LockId, Result, Ttl, time};

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
