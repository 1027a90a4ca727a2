//! How fast is a lock on Redis, beside what else there is?
//!
//! Everything runs against fresh servers of this machine in one run; contenders take turns over several rounds, and
//! what counts are ratios inside a round. `cargo xtask bench redis [pairs|cost|handoff|listing|mixed] [--rounds N]`.
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

use std::time::Duration;

use syncguard_core::LockBackend;
use syncguard_redis::RedisBackend;
use syncguard_testkit::{RedisOptions, RedisServer};

/// How long and how often each contender runs.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    slice: Duration,
}

fn main() {
    // Cargo passes `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let rounds =
        words.iter().position(|word| word == "--rounds").and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(7);
    let wants = |name: &str| {
        !words.iter().any(|word| ["pairs", "cost", "handoff", "listing", "mixed"].contains(&word.as_str()))
            || words.iter().any(|word| word == name)
    };
    let effort = Effort { rounds, slice: Duration::from_millis(400) };
    println!("idle share of the processors at the start: {:.0} %", idle_share() * 100.0);
    // One thread for all clients leaves the other processor to the server.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if wants("cost") {
        runtime.block_on(cost::run(effort));
    }
    if wants("pairs") {
        runtime.block_on(pairs::run(effort));
    }
    if wants("listing") {
        runtime.block_on(beside_a_listing(effort));
    }
    if wants("handoff") {
        runtime.block_on(handoff::run());
    }
    if wants("mixed") {
        runtime.block_on(mixed::run());
    }
}

async fn beside_a_listing(effort: Effort) {
    let server = server();
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let onlooker = RedisBackend::connect(&server.url()).await.unwrap().inspector().unwrap();
    let pairs = async |tasks| pairs::of_backend(&backend, tasks, effort.slice).await;
    listing::report(&backend, &onlooker, (100_000, effort.rounds), pairs).await;
}

/// A server as most people run it, without persistence, so that the disk is not measured.
fn server() -> RedisServer {
    RedisServer::start(RedisOptions::new())
}

fn median(mut values: Vec<f64>) -> f64 {
    percentile(&mut values, 0.5)
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = format!("{:.0}", last as f64 * share).parse::<usize>().unwrap_or(0);
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// `0.95 (0.90–1.02)`: the median of the rounds and their spread.
fn spread(mut values: Vec<f64>) -> String {
    let (low, high) = (percentile(&mut values, 0.0), percentile(&mut values, 1.0));
    format!("{:.2} ({low:.2}–{high:.2})", median(values))
}

fn idle_share() -> f64 {
    let read = || -> Option<(f64, f64)> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let numbers: Vec<f64> =
            stat.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        Some((*numbers.get(3)?, numbers.iter().sum()))
    };
    let before = read();
    std::thread::sleep(Duration::from_millis(500));
    match (before, read()) {
        (Some((idle, all)), Some((idle_now, all_now))) if all_now > all => (idle_now - idle) / (all_now - all),
        _ => f64::NAN,
    }
}
