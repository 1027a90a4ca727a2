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
//! * the words, each validated once and carrying its proof: [`Key`], [`LockId`], [`Fence`], [`Ttl`], [`Timestamp`],
//!   [`HashId`], [`LockError`], and [`storage_key`] for backends;
//! * the contract of a backend: [`LockBackend`], its outcomes, [`LockInfo`], [`AnyBackend`], [`wake`], [`listener`],
//!   [`health`], beside it [`inspect`], and for their URLs [`options`];
//! * the client: [`Locker`], [`LockRequest`], [`Guard`], [`LockHandle`], [`retry`], [`multi`], [`election`];
//! * beside all of them: [`telemetry`] and [`MemoryBackend`].
//!
//! Libraries should depend on this crate; applications on `syncguard`, which adds `open(url)` and the storages.

// docs.rs shows at each item which feature brings it.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquisition;
mod any;
mod backend;
mod background;
mod belief;
mod cancellation;
#[cfg(any(feature = "postgres-types", feature = "sqlx"))]
mod column;
pub mod election;
mod error;
mod fence;
mod guard;
mod handle;
mod hash;
pub mod health;
mod heartbeat;
mod in_flight;
mod info;
pub mod inspect;
mod key;
pub mod listener;
mod lock_id;
mod locker;
mod loss;
mod memory;
pub mod multi;
pub mod options;
mod outcome;
mod plan;
mod queue;
mod reaper;
mod request;
pub mod retry;
mod runtime;
#[cfg(all(test, syncguard_shuttle))]
mod schedules;
#[cfg(syncguard_seeded_bugs)]
#[doc(hidden)]
pub mod seeded;
#[cfg(not(syncguard_seeded_bugs))]
mod seeded;
mod shared;
#[cfg_attr(all(test, syncguard_shuttle), allow(dead_code, reason = "schedules have no other threads"))]
mod standby;
pub mod storage_key;
mod sync;
pub mod telemetry;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
mod trace;
mod ttl;
pub mod wake;
mod words;
mod wrapped;

pub use any::AnyBackend;
pub use backend::{AcquireRequest, Capabilities, Label, LockBackend, Lookup, TimeAuthority};
pub use error::{ErrorCode, LockError, Result};
pub use fence::{Fence, FenceToken, HasFence, Unfenced};
pub use guard::Guard;
pub use handle::LockHandle;
pub use hash::HashId;
pub use health::{HealthCheck, HealthReport, HealthStatus};
pub use info::{LockInfo, Renewal, RevealedNames};
pub use inspect::{
    AskOutcome, Counts, Cursor, Inspect, Inspector, ListRequest, Page, Transition, TransitionKind, Watch,
};
pub use key::Key;
pub use lock_id::LockId;
pub use locker::{Locker, LockerBuilder, ReleaseErrorHook};
pub use loss::LossReason;
pub use memory::MemoryBackend;
pub use outcome::{AbsentReason, AcquireOutcome, Contention, ExtendOutcome, Extension, Lease, ReleaseOutcome};
pub use request::{Attempt, LockRequest, OnLost, Report};
pub use time::{BootTime, Clock, SystemClock, Timestamp, TokioClock};
pub use tokio_util::sync::CancellationToken;
pub use ttl::Ttl;
pub use wake::{WakeHint, WakeHub};
pub use words::{IntoKey, IntoLabel, IntoTtl};

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
