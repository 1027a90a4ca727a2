//! Is my backend a correct SyncGuard backend?
//!
//! Write a [`Harness`] of twenty lines, name it in [`suite!`], and every case of the suite becomes one test of yours.
//! Each case is a sentence that is true of a correct backend: `a_stranger_can_neither_release_nor_extend`,
//! `dropping_acquire_at_every_poll_leaves_no_lock_beyond_its_lease`.
//!
//! ```no_run
//! // tests/conformance.rs
//! use syncguard_conformance::{Harness, suite};
//! use syncguard_core::MemoryBackend;
//!
//! #[derive(Default)]
//! struct MyHarness {
//!     backend: MemoryBackend,
//!     elsewhere: MemoryBackend,
//! }
//!
//! impl Harness for MyHarness {
//!     type Backend = MemoryBackend;
//!
//!     async fn backend(&self) -> MemoryBackend {
//!         self.backend.clone()
//!     }
//!
//!     async fn elsewhere(&self) -> MemoryBackend {
//!         self.elsewhere.clone()
//!     }
//! }
//!
//! suite!(mine, MyHarness::default(), paused); // a real server: suite!(mine, MyHarness::start().await);
//! # fn main() {}
//! ```
//!
//! A case can be run alone, here one that the harness above passes:
//!
//! ```
//! # use syncguard_conformance::{Harness, run_named};
//! # use syncguard_core::MemoryBackend;
//! # #[derive(Default)]
//! # struct MyHarness(MemoryBackend, MemoryBackend);
//! # impl Harness for MyHarness {
//! #     type Backend = MemoryBackend;
//! #     async fn backend(&self) -> MemoryBackend { self.0.clone() }
//! #     async fn elsewhere(&self) -> MemoryBackend { self.1.clone() }
//! # }
//! run_named!("a_dead_lock_cannot_be_extended", MyHarness::default(), paused);
//! ```
//!
//! # How to read a result
//!
//! * **Skips are printed.** A case that needs more than the harness can do (a counter put to its limit, a foreign
//!   value) prints `SKIPPED <case>: <reason>`. `cargo nextest run` and `cargo test` keep what a passed test prints to themselves:
//!   see the list with `--no-capture`, or set `SYNCGUARD_TEST_SKIPS=deny`, and each is a failure. Implement the method of [`Harness`] that it asks for, or leave the line
//!   as a fact about your storage.
//! * **Real time or paused.** Backends on tokio's clock pass time; servers sleep through it, mostly under two seconds a
//!   case, so run more tests at once than you have cores. A look at a named moment counts only if the *backend's* clock
//!   shows that it happened there.
//! * **[`Budget`] says how heavy** the heavy cases are. State it when you publish a result.
//!
//! # Why to believe it
//!
//! [`impostors`] holds a backend that can be given any of several dozen flaws, each of which fails the case that is
//! named for it. When you fix a bug in a backend, first add the impostor that has it.
//!
//! # For tests of your own
//!
//! [`Faulty`] breaks chosen calls of any backend; [`ScriptedBackend`] answers by a script; [`history`] checks that
//! holds never overlapped.
//!
//! ```
//! use std::time::Duration;
//! use syncguard_conformance::{Operation, ScriptedBackend};
//! use syncguard_core::{ErrorCode, ExtendOutcome, Locker};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! // How does my job behave when its lock is lost under it?
//! let backend = ScriptedBackend::new().contended().acquire_works().extend_answers(ExtendOutcome::Absent(None));
//! let locker = Locker::new(backend.clone());
//!
//! let job = locker.lock("nightly").keep_alive().run(async |_| tokio::time::sleep(Duration::from_secs(3600)).await);
//!
//! assert_eq!(job.await.unwrap_err().code(), ErrorCode::LockLost);
//! assert!(backend.count(Operation::Acquire) >= 2);
//! assert_eq!(backend.count(Operation::Extend), 1);
//! # }
//! ```

pub mod cases;
mod faulty;
mod harness;
pub mod history;
pub mod impostors;
mod memory_harness;
mod runner;
mod scripted;
mod suite;
mod support;

pub use faulty::{Fault, Faulty};
pub use harness::{Break, Budget, Harness, Line, Poison, Unsupported};
pub use memory_harness::{Foreign, MemoryHarness};
pub use runner::{Time, run};
pub use scripted::{Call, ScriptedBackend};
pub use suite::CASES;
pub use syncguard_core::telemetry::Operation;

/// The examples of the package's front page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
