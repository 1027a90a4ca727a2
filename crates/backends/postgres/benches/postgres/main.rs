//! How fast are locks in PostgreSQL, compared with what the server itself can do?
//!
//! Machines are shared and noisy, so contenders take turns over several rounds and only ratios inside one round are
//! reported: the median and the spread. The server is private, writes through to the disk, and runs on the same
//! machine.
//!
//! `cargo bench -p syncguard-postgres --bench postgres -- [--seconds N] [--rounds N] [--counters N]
//! [--only pairs|notify|hand-off|counters|listing]
//! [--locks N]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::cast_precision_loss, clippy::as_conversions)]

mod counters;
mod hand_off;
#[path = "../../../../testkit/bench/listing.rs"]
mod listing;
mod naive;
mod pairs;
mod pgbench;

use std::time::Duration;

use syncguard_core::LockBackend;
use syncguard_postgres::PostgresBuilder;
use syncguard_testkit::{PostgresOptions, PostgresServer};

/// What the command line chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) seconds: u64,
    pub(crate) rounds: usize,
    pub(crate) counters: u64,
    /// How many locks a listing finds.
    locks: usize,
    only: Option<&'static str>,
}

impl Choice {
    fn from_args() -> Self {
        let words: Vec<String> = std::env::args().collect();
        let number = |flag: &str, default: u64| {
            let value = words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1));
            value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{flag} takes a number")))
        };
        Self {
            seconds: number("--seconds", 2),
            rounds: usize::try_from(number("--rounds", 5)).unwrap(),
            counters: number("--counters", 0),
            locks: usize::try_from(number("--locks", 100_000)).unwrap(),
            only: ["pairs", "notify", "hand-off", "counters", "listing"]
                .into_iter()
                .find(|part| words.windows(2).any(|pair| pair[0] == "--only" && pair[1] == *part)),
        }
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let choice = Choice::from_args();
    println!("load average at start: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    {
        // What is left when the disk costs nothing: protocol, statements and client.
        let diskless = PostgresServer::start(PostgresOptions::new().config("max_wal_size = 2GB"));
        println!("{}\n", diskless.query("SELECT version()")[0][0].as_deref().unwrap_or_default());
        println!("WITHOUT WAITING FOR THE DISK (fsync = off)\n");
        run(&diskless, choice).await;
    }
    let server = PostgresServer::start(PostgresOptions::new().fsync().config("max_wal_size = 2GB"));
    println!("\nWITH EVERY COMMIT ON THE DISK (fsync = on)\n");
    run(&server, choice).await;
    if choice.wants("counters") && choice.counters > 0 {
        counters::report(&server, choice).await;
    }
}

async fn run(server: &PostgresServer, choice: Choice) {
    if choice.wants("pairs") {
        pairs::report(server, choice).await;
    }
    if choice.wants("notify") {
        pgbench::report_notify(server, choice);
    }
    if choice.wants("hand-off") {
        hand_off::report(server, choice).await;
    }
    if choice.wants("listing") {
        beside_a_listing(server, choice).await;
    }
}

async fn beside_a_listing(server: &PostgresServer, choice: Choice) {
    let connect = async || PostgresBuilder::from_url(&server.url()).unwrap().pool_size(32).connect().await.unwrap();
    let (backend, onlooker) = (connect().await, connect().await.inspector().unwrap());
    let pairs = async |tasks| pairs::run(&backend, tasks, choice).await;
    listing::report(&backend, &onlooker, (choice.locks, choice.rounds), pairs).await;
}

/// The middle, the lowest and the highest of a few numbers.
pub(crate) fn median(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}
