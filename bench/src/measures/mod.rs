//! What is asked of the contenders?

pub(crate) mod counters;
pub(crate) mod hand_off;
pub(crate) mod memory;
pub(crate) mod pairs;

use std::time::Duration;

use crate::contenders::Entry;

/// How long and how often.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// The most counters that are loaded.
    pub(crate) counters: u64,
    /// The most locks that are held at once.
    pub(crate) locks: usize,
}

/// One that fails leaves a gap, and does not take the figures of the others with it.
fn warn(entry: &Entry, error: anyhow::Error) {
    eprintln!("warning: {}: {error:#}", entry.name);
}

fn who(entry: &Entry) -> (&str, &str, &str) {
    (entry.name, entry.group.name(), entry.beside)
}
