//! How soon does everything work again after connections went silent?
//!
//! One process is connected to each kind of server through proxies, holds locks that are kept alive, asks, and waits
//! for releases. Then the connections that exist become black holes for good, as a network does that forgot them; new
//! ones pass. Measured on every kind of server at once, several times:
//!
//! ```text
//! cargo xtask bench silence [--rounds N]
//! ```
//!
//! It fails when operations or renewals take longer than a third of the lease (at most 15 s) to recover, when releases
//! are not heard within milliseconds again after 15 s, or when a lock is lost.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement reads the monotonic clock and may fail"
)]

mod probes;
mod worlds;

use std::process::ExitCode;
use std::time::Duration;

use probes::{Held, Round};
use worlds::World;

/// The leases that are kept alive. No lock of these may be lost.
const LEASES: [Duration; 2] = [Duration::from_secs(15), Duration::from_secs(30)];

/// How many locks of each length are held.
const LOCKS: usize = 8;

/// Within this every connection must have been replaced, whatever the lease.
const AT_MOST: Duration = Duration::from_secs(15);

/// A hand-over that takes no longer was heard of, and not found by asking again. On a busy machine, where they take
/// longer before the silence, up to four times as long as then.
const HEARD: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    // Cargo passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let rounds = words.iter().position(|word| word == "--rounds").and_then(|at| words.get(at + 1)?.parse().ok());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let failures = runtime.block_on(campaign(rounds.unwrap_or(3)));
    for failure in &failures {
        println!("FAILED  {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn campaign(rounds: usize) -> Vec<String> {
    let worlds = [worlds::redis(), worlds::cluster(), worlds::postgres(), worlds::firestore().await];
    println!(
        "{:<10} {:>5}  operations  renewal at 15s  at 30s  heard again  hand-over before  after  kept",
        "", "round"
    );
    // All at once: a round takes as long as the longest lease.
    let all = worlds.iter().map(|world| measure(world, rounds));
    futures_util::future::join_all(all).await.into_iter().flatten().collect()
}

/// Runs the rounds of one kind of server, prints them, and returns what went wrong.
async fn measure(world: &World, rounds: usize) -> Vec<String> {
    let far = world.far().await;
    let held = Held::take(&far).await;
    let mut failures = Vec::new();
    for round in 1..=rounds {
        let figures = Round::run(world, &far, &held).await;
        println!("{:<10} {round:>5}  {figures}", world.name);
        failures
            .extend(figures.failures().into_iter().map(|failure| format!("{} round {round}: {failure}", world.name)));
    }
    held.release().await;
    failures
}
