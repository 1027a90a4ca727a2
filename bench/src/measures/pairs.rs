//! How many pairs of acquire and release a second, and how long does one take?

use syncguard_testkit::bench::percentile;

use super::{Effort, warn, who};
use crate::contender::Pairs;
use crate::contenders::Entry;
use crate::report::{Measure, Table};

pub(crate) const TASKS: [usize; 3] = [1, 16, 64];
pub(crate) const PERCENTILES: [f64; 3] = [50.0, 95.0, 99.0];

/// Everybody in turn, at every load, round after round. Every pair of the single task is timed.
pub(crate) async fn measure(entries: &[Entry], effort: Effort) -> [Measure; 2] {
    let mut throughput = Table::new("throughput", "pairs/s", "tasks");
    let mut latency = Table::new("latency", "ms", "percentile");
    // The first round makes connections, files and prepared statements.
    for round in 0..=effort.rounds {
        for tasks in TASKS {
            for entry in entries {
                let slice = if round == 0 { effort.slice / 4 } else { effort.slice };
                let pairs = entry.contender.pairs(tasks, slice).await;
                let Pairs { per_second, mut took } = pairs.unwrap_or_else(|error| failed(entry, error));
                if round == 0 {
                    continue;
                }
                throughput.note(who(entry), tasks as f64, per_second);
                for percent in PERCENTILES.into_iter().filter(|_| tasks == 1) {
                    latency.note(who(entry), percent, percentile(&mut took, percent).unwrap_or(f64::NAN));
                }
            }
        }
        eprintln!("pairs: round {round} of {}", effort.rounds);
    }
    [throughput.finish(), latency.finish()]
}

fn failed(entry: &Entry, error: anyhow::Error) -> Pairs {
    warn(entry, error);
    Pairs { per_second: f64::NAN, took: Vec::new() }
}
