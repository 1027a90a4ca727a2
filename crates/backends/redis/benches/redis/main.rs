//! How fast is a lock on Redis, beside what else there is?
//!
//! Everything runs against fresh servers of this machine in one run; contenders take turns over several rounds, and
//! what counts are ratios inside a round. `cargo xtask bench redis [cost|pairs|listing|hand-off|mixed] [--rounds N]
//! [--json FILE]`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark reads the monotonic clock and may fail"
)]
#![allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "figures for people")]

mod cost;
mod handoff;
#[path = "../../../../testkit/bench/listing.rs"]
mod listing;
mod mixed;
mod pairs;
mod raw;

use std::process::ExitCode;
use std::time::Duration;

use syncguard_core::LockBackend;
use syncguard_redis::RedisBackend;
use syncguard_testkit::bench::{Options, Report};
use syncguard_testkit::{RedisOptions, RedisServer};

/// How long and how often each contender runs.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    slice: Duration,
}

fn main() -> ExitCode {
    let arguments = Options::new("redis")
        .rounds(7)
        .part("cost", "the server's time and memory for a pair")
        .part("pairs", "acquire and release, beside a raw socket and other locks")
        .part("listing", "the same beside a listing that never rests")
        .part("hand-off", "from a release to the next holder")
        .part("mixed", "one waiter of the original among busy workers")
        .read();
    let mut report = Report::start(&arguments, arguments.rounds());
    let effort = Effort { rounds: arguments.rounds(), slice: Duration::from_millis(400) };
    // One thread for all clients leaves the other processor to the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if arguments.wants("cost") {
        runtime.block_on(cost::run(effort, &mut report));
    }
    if arguments.wants("pairs") {
        runtime.block_on(pairs::run(effort, &mut report));
    }
    if arguments.wants("listing") {
        runtime.block_on(beside_a_listing(effort, &mut report));
    }
    if arguments.wants("hand-off") {
        runtime.block_on(handoff::run(&mut report, effort.rounds));
    }
    if arguments.wants("mixed") {
        runtime.block_on(mixed::run(&mut report));
    }
    report.finish()
}

async fn beside_a_listing(effort: Effort, report: &mut Report) {
    let server = server();
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let onlooker = RedisBackend::connect(&server.url()).await.unwrap().inspector().unwrap();
    let pairs = async |tasks| pairs::of_backend(&backend, tasks, effort.slice).await;
    listing::report(&backend, &onlooker, (100_000, effort.rounds), pairs, (report, None)).await;
}

/// A server as most people run it, without persistence, so that the disk is not measured.
fn server() -> RedisServer {
    RedisServer::start(RedisOptions::new())
}
