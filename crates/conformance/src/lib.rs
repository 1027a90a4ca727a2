//! Is my backend a correct SyncGuard backend?
//!
//! Write a [`Harness`] of twenty lines, name it in [`suite!`], and every case of the suite becomes one test of yours.
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
pub use harness::{Budget, Harness, Poison, Unsupported};
pub use memory_harness::{Foreign, MemoryHarness};
pub use runner::{Time, run};
pub use scripted::{Call, ScriptedBackend};
pub use suite::CASES;
pub use syncguard_core::telemetry::Operation;
