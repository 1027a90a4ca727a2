//! How fast are locks in PostgreSQL, compared with what the server itself can do?
//!
//! Machines are shared and noisy, so contenders take turns over several rounds and only ratios inside one round are
//! reported: the median and the spread. The server is private, writes through to the disk, and runs on the same
//! machine.
//!
//! `cargo xtask bench postgres [pairs|notify|hand-off|listing|counters] [--rounds N] [--seconds N] [--counters N]
//! [--locks N] [--json FILE]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::cast_precision_loss, clippy::as_conversions)]

mod counters;
mod hand_off;
#[path = "../../../../testkit/bench/listing.rs"]
mod listing;
mod naive;
mod pairs;
mod pgbench;

use std::process::ExitCode;
use std::time::Duration;

use syncguard_core::LockBackend;
use syncguard_postgres::PostgresBuilder;
use syncguard_testkit::bench::{Arguments, Options, Report};
use syncguard_testkit::{PostgresOptions, PostgresServer};

/// How long and how often each contender runs, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) seconds: u64,
    pub(crate) rounds: usize,
    /// Whether a commit waits for the disk.
    pub(crate) setting: &'static str,
}

impl Choice {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

fn options() -> Options {
    Options::new("postgres")
        .rounds(5)
        .part("pairs", "acquire and release, beside pgbench and the specification's sequence")
        .part("notify", "what wake-ups cost a release that nobody waits for")
        .part("hand-off", "from a release to the next holder")
        .part("listing", "pairs beside a listing that never rests")
        .part("counters", "pairs when many keys were locked before: needs --counters")
        .number("seconds", 2, "how long a contender runs in a round")
        .number("counters", 0, "how many keys were locked before")
        .number("locks", 100_000, "how many locks a listing finds")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = options().read();
    let mut report = Report::start(&arguments, arguments.rounds());
    let choice = Choice { seconds: arguments.number("seconds"), rounds: arguments.rounds(), setting: "fsync off" };
    println!("load average at start: {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    {
        // What is left when the disk costs nothing: protocol, statements and client.
        let diskless = PostgresServer::start(PostgresOptions::new().config("max_wal_size = 2GB"));
        println!("{}\n", diskless.query("SELECT version()")[0][0].as_deref().unwrap_or_default());
        println!("WITHOUT WAITING FOR THE DISK (fsync = off)\n");
        run(&diskless, choice, &arguments, &mut report).await;
    }
    let choice = Choice { setting: "fsync on", ..choice };
    let server = PostgresServer::start(PostgresOptions::new().fsync().config("max_wal_size = 2GB"));
    println!("\nWITH EVERY COMMIT ON THE DISK (fsync = on)\n");
    run(&server, choice, &arguments, &mut report).await;
    let counters = arguments.number("counters");
    if arguments.wants("counters") && counters > 0 {
        counters::report(&server, counters, choice, &mut report).await;
    }
    report.finish()
}

async fn run(server: &PostgresServer, choice: Choice, arguments: &Arguments, report: &mut Report) {
    if arguments.wants("pairs") {
        pairs::report(server, choice, report).await;
    }
    if arguments.wants("notify") {
        pgbench::report_notify(server, choice, report);
    }
    if arguments.wants("hand-off") {
        hand_off::report(server, choice, report).await;
    }
    if arguments.wants("listing") {
        let locks = usize::try_from(arguments.number("locks")).unwrap();
        beside_a_listing(server, choice, locks, report).await;
    }
}

async fn beside_a_listing(server: &PostgresServer, choice: Choice, locks: usize, report: &mut Report) {
    let connect = async || PostgresBuilder::from_url(&server.url()).unwrap().pool_size(32).connect().await.unwrap();
    let (backend, onlooker) = (connect().await, connect().await.inspector().unwrap());
    let pairs = async |tasks| pairs::run(&backend, tasks, choice).await;
    let noted = (report, Some(choice.setting));
    listing::report(&backend, &onlooker, (locks, choice.rounds), pairs, noted).await;
}
