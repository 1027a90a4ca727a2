//! How soon does everything work again after connections went silent?
//!
//! One process is connected to each kind of server through proxies, holds locks that are kept alive, asks, and waits
//! for releases. Then the connections that exist become black holes for good, as a network does that forgot them; new
//! ones pass. Measured on every kind of server at once, several times:
//!
//! ```text
//! cargo xtask bench silence [--rounds N] [--json FILE]
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
use syncguard_testkit::bench::{Options, Report};
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
    let arguments = Options::new("silence").rounds(3).read();
    let mut report = Report::start(&arguments, arguments.rounds());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut failed = false;
    for (name, rounds) in runtime.block_on(campaign(arguments.rounds())) {
        for (number, round) in rounds.iter().enumerate() {
            for failure in round.failures() {
                println!("FAILED  {name} round {}: {failure}", number + 1);
                failed = true;
            }
        }
        report.extend(probes::figures(name, &rounds));
    }
    let kept = report.finish();
    if failed { ExitCode::FAILURE } else { kept }
}

/// What was seen of each kind of server, round after round.
async fn campaign(rounds: usize) -> Vec<(&'static str, Vec<Round>)> {
    let worlds = [worlds::redis(), worlds::cluster(), worlds::postgres(), worlds::firestore().await];
    println!(
        "{:<10} {:>5}  operations  renewal at 15s  at 30s  heard again  hand-over before  after  kept",
        "", "round"
    );
    // All at once: a round takes as long as the longest lease.
    let all = worlds.iter().map(|world| async { (world.name, measure(world, rounds).await) });
    futures_util::future::join_all(all).await
}

/// Runs the rounds of one kind of server, and prints them.
async fn measure(world: &World, rounds: usize) -> Vec<Round> {
    let far = world.far().await;
    let held = Held::take(&far).await;
    let mut seen = Vec::new();
    for number in 1..=rounds {
        let round = Round::run(world, &far, &held).await;
        println!("{:<10} {number:>5}  {round}", world.name);
        seen.push(round);
    }
    held.release().await;
    seen
}
