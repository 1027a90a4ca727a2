//! How long from a release to the next holder, when that many wait?

use std::time::Duration;

use syncguard_testkit::bench::percentile;

use super::{Effort, warn, who};
use crate::contender::Race;
use crate::contenders::Entry;
use crate::report::{Measure, Table};

pub(crate) const WAITERS: [usize; 3] = [1, 10, 100];

/// Everybody in turn; the median of each round, and its 99th percentile.
pub(crate) async fn measure(entries: &[Entry], effort: Effort) -> [Measure; 2] {
    let mut half = Table::new("hand-off p50", "ms", "waiters");
    let mut slow = Table::new("hand-off p99", "ms", "waiters");
    // Each takes seconds: fewer of them, but an odd number, so that the median is one of them.
    let rounds = effort.rounds.div_ceil(2) | 1;
    for number in 0..rounds {
        for waiters in WAITERS {
            let race = Race { waiters, hand_offs: 100, at_most: Duration::from_millis(1500), number };
            for entry in entries {
                let Some(race) = entry.contender.hand_offs(race) else { continue };
                let mut waits = race.await.unwrap_or_else(|error| {
                    warn(entry, error);
                    Vec::new()
                });
                half.note(who(entry), waiters as f64, percentile(&mut waits, 50.0).unwrap_or(f64::NAN));
                slow.note(who(entry), waiters as f64, percentile(&mut waits, 99.0).unwrap_or(f64::NAN));
            }
        }
        eprintln!("hand-off: round {} of {rounds}", number + 1);
    }
    [half.finish(), slow.finish()]
}
