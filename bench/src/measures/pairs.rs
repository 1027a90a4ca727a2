//! How many pairs of acquire and release a second, and how long does one take?

use anyhow::{Context, Result};

use super::{Effort, who};
use crate::contender::Pairs;
use crate::contenders::Entry;
use crate::report::{Measure, Table, percentile};

pub(crate) const TASKS: [usize; 3] = [1, 16, 64];
pub(crate) const PERCENTILES: [f64; 3] = [50.0, 95.0, 99.0];

/// Everybody in turn, at every load, round after round. Every pair of the single task is timed.
pub(crate) async fn measure(entries: &[Entry], effort: Effort) -> Result<[Measure; 2]> {
    let mut throughput = Table::new("throughput", "pairs/s", "tasks");
    let mut latency = Table::new("latency", "ms", "percentile");
    // The first round makes connections, files and prepared statements.
    for round in 0..=effort.rounds {
        for tasks in TASKS {
            for entry in entries {
                let slice = if round == 0 { effort.slice / 4 } else { effort.slice };
                let pairs = entry.contender.pairs(tasks, slice).await;
                let Pairs { per_second, mut took } = pairs.with_context(|| format!("{} with {tasks}", entry.name))?;
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
    Ok([throughput.finish(), latency.finish()])
}
