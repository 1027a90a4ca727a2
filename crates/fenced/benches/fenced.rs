//! What does a guard cost, beside the same write without it?
//!
//! Both run in turn, in the same rounds, against fresh servers of this machine; what counts is the ratio inside a
//! round. `cargo xtask bench fenced [postgres|sqlite|redis|file|http] [--rounds N] [--json FILE]`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark reads the monotonic clock and may fail"
)]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::put;
use http::Request;
use rusqlite::{Connection, TransactionBehavior};
use syncguard_core::{Fence, Key};
use syncguard_fenced::file::FencedFile;
use syncguard_fenced::http::FenceLayer;
use syncguard_fenced::redis::fenced_set;
use syncguard_fenced::{MemoryMarks, postgres, sqlite};
use syncguard_testkit::bench::{Figure, Options, Report, median};
use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use tower::ServiceExt;

/// The time of one round of each contender.
const SLICE: Duration = Duration::from_millis(400);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Options::new("fenced")
        .rounds(7)
        .part("postgres", "a transaction")
        .part("sqlite", "a transaction")
        .part("redis", "a SET")
        .part("file", "a file that is replaced")
        .part("http", "a request, without a network")
        .read();
    let rounds = arguments.rounds();
    let mut report = Report::start(&arguments, rounds);
    println!("microseconds for one write (median of {rounds} rounds), and its ratio to the same write without a guard");
    if arguments.wants("postgres") {
        of_postgres(rounds).await.tell("PostgreSQL, fsync on, one connection", &mut report);
    }
    if arguments.wants("sqlite") {
        of_sqlite(rounds).await.tell("SQLite, WAL, synchronous = FULL", &mut report);
    }
    if arguments.wants("redis") {
        of_redis(rounds).await.tell("Redis, one connection, no persistence", &mut report);
    }
    if arguments.wants("file") {
        of_file(rounds).await.tell("File", &mut report);
    }
    if arguments.wants("http") {
        let table = of_http(rounds).await;
        table.tell("HTTP, in process", &mut report);
        let (plain, guarded) = (table.times_of(0), table.times_of(1));
        let added: Vec<f64> = guarded.iter().zip(plain).map(|(guarded, plain)| guarded - plain).collect();
        println!("  the layer adds {:.2} µs to a request", median(&added));
    }
    report.finish()
}

/// The next fence: a new one for every tenth write, as a holder that writes ten times under one lock.
struct Fences(u64);

impl Fences {
    fn next(&mut self) -> Fence {
        self.0 += 1;
        Fence::new(self.0 / 10 + 1).unwrap()
    }
}

fn key() -> Key {
    Key::new("ledger").unwrap()
}

/// Repeats a write for a slice of time; microseconds each.
async fn timed(mut write: impl AsyncFnMut()) -> f64 {
    let start = Instant::now();
    let mut writes = 0_u32;
    while start.elapsed() < SLICE {
        write().await;
        writes += 1;
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(writes)
}

/// Figures of all rounds; the first contender is the one without a guard.
struct Table {
    names: Vec<&'static str>,
    rounds: Vec<Vec<f64>>,
}

impl Table {
    fn new(names: &[&'static str]) -> Self {
        Self { names: names.to_vec(), rounds: Vec::new() }
    }

    /// What one contender took in each round but the first, which warms up.
    fn times_of(&self, number: usize) -> Vec<f64> {
        self.rounds[1..].iter().map(|round| round[number]).collect()
    }

    fn tell(&self, title: &str, report: &mut Report) {
        println!("\n== {title}");
        for (number, name) in self.names.iter().enumerate() {
            let figure = Figure::of("write", "µs", *name, &self.times_of(number)).setting(title);
            let figure = figure.beside(self.names[0], &self.times_of(0));
            println!("  {name:<44} {:>9.1}   {}", figure.median(), figure.ratio());
            report.note(figure);
        }
    }
}

async fn of_postgres(rounds: usize) -> Table {
    let server = PostgresServer::start(PostgresOptions::new().fsync());
    let (mut client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    postgres::install(&client).await.unwrap();
    client.batch_execute("CREATE TABLE t (n bigint); INSERT INTO t VALUES (0)").await.unwrap();
    let update = client.prepare("UPDATE t SET n = n + 1").await.unwrap();
    let mut fences = Fences(0);
    let mut table = Table::new(&["BEGIN, UPDATE, COMMIT", "begin(key, fence)", "check_with: sent with the UPDATE"]);
    for _ in 0..=rounds {
        let plain = timed(async || {
            let tx = client.transaction().await.unwrap();
            tx.execute(&update, &[]).await.unwrap();
            tx.commit().await.unwrap();
        });
        let plain = plain.await;
        let begun = timed(async || {
            let tx = postgres::begin(&mut client, &key(), fences.next()).await.unwrap();
            tx.execute(&update, &[]).await.unwrap();
            tx.commit().await.unwrap();
        });
        let begun = begun.await;
        let along = timed(async || {
            let tx = client.transaction().await.unwrap();
            let first = tx.execute(&update, &[]);
            postgres::check_with(&tx, &key(), fences.next(), first).await.unwrap().unwrap();
            tx.commit().await.unwrap();
        });
        table.rounds.push(vec![plain, begun, along.await]);
    }
    table
}

async fn of_sqlite(rounds: usize) -> Table {
    let folder = tempfile::tempdir().unwrap();
    let mut db = Connection::open(folder.path().join("data.db")).unwrap();
    db.pragma_update(None, "journal_mode", "WAL").unwrap();
    db.pragma_update(None, "synchronous", "FULL").unwrap();
    db.execute_batch("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (0)").unwrap();
    sqlite::install(&db).unwrap();
    let mut fences = Fences(0);
    let mut table = Table::new(&["BEGIN IMMEDIATE, UPDATE, COMMIT", "begin(key, fence)"]);
    for _ in 0..=rounds {
        let plain = timed(async || {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            tx.prepare_cached("UPDATE t SET n = n + 1").unwrap().execute([]).unwrap();
            tx.commit().unwrap();
        });
        let plain = plain.await;
        let begun = timed(async || {
            let tx = sqlite::begin(&mut db, &key(), fences.next()).unwrap();
            tx.prepare_cached("UPDATE t SET n = n + 1").unwrap().execute([]).unwrap();
            tx.commit().unwrap();
        });
        table.rounds.push(vec![plain, begun.await]);
    }
    table
}

async fn of_redis(rounds: usize) -> Table {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mut plain_connection = connection.clone();
    let mut fences = Fences(0);
    let mut table = Table::new(&["SET", "fenced_set"]);
    for _ in 0..=rounds {
        let plain = timed(async || {
            redis::cmd("SET").arg("plain").arg("value").query_async::<()>(&mut plain_connection).await.unwrap();
        });
        let plain = plain.await;
        let guarded = timed(async || fenced_set(&mut connection, "guarded", "value", fences.next()).await.unwrap());
        table.rounds.push(vec![plain, guarded.await]);
    }
    table
}

async fn of_file(rounds: usize) -> Table {
    let folder = tempfile::tempdir().unwrap();
    let file = FencedFile::new(folder.path().join("guarded"));
    let mut fences = Fences(0);
    let mut table = Table::new(&["temporary, fsync, rename, fsync", "FencedFile::write"]);
    for _ in 0..=rounds {
        let plain = timed(async || replace(folder.path(), b"contents")).await;
        let guarded = timed(async || file.write(fences.next(), b"contents").unwrap());
        table.rounds.push(vec![plain, guarded.await]);
    }
    table
}

fn replace(folder: &Path, contents: &[u8]) {
    let temporary = folder.join("plain-tmp");
    let mut file = File::create(&temporary).unwrap();
    file.write_all(contents).unwrap();
    file.sync_all().unwrap();
    fs::rename(temporary, folder.join("plain")).unwrap();
    File::open(folder).unwrap().sync_all().unwrap();
}

async fn of_http(rounds: usize) -> Table {
    let plain_service = Router::new().route("/", put(async || "done"));
    let service = plain_service.clone().layer(FenceLayer::new(MemoryMarks::new()));
    let request = |fence: Fence| {
        let builder = Request::put("/").header("Syncguard-Key", "ledger").header("Syncguard-Fence", fence.to_string());
        builder.body(Body::empty()).unwrap()
    };
    let mut fences = (Fences(0), Fences(0));
    let mut table = Table::new(&["axum, no network", "axum behind FenceLayer, MemoryMarks"]);
    for _ in 0..=rounds {
        let plain = timed(async || drop(plain_service.clone().oneshot(request(fences.0.next())).await.unwrap())).await;
        let guarded = timed(async || drop(service.clone().oneshot(request(fences.1.next())).await.unwrap()));
        table.rounds.push(vec![plain, guarded.await]);
    }
    table
}
