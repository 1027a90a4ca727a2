//! Was anything seen that must never be?
//!
//! Pure functions from histories to violations, each in a file with the promise it checks, and each with a test in which
//! it fails. `docs/guarantees.md` names the promises.

mod belief;
mod fences;
mod holds;
mod linear;
mod operations;
mod orphans;
mod releases;
mod signals;

pub use belief::no_two_believers;
pub use fences::fences_rise;
pub use holds::{Hold, holds};
pub use linear::{Linearizability, linearizability};
pub use operations::{Operation, operations};
pub use orphans::{Probe, orphans};
pub use releases::at_most_one_release;
pub use signals::{Signals, signals};

/// What must never be, and was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found it.
    pub check: &'static str,
    /// What was seen, for people.
    pub what: String,
}

impl Violation {
    fn new(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, what: what.into() }
    }
}
