//! What does a lock in Firestore cost in time and in calls?
//!
//! On the emulator inside this process, behind a link that makes every call take 20 ms longer, so that the figures are
//! about round trips and not about this machine. The contender is the same lock by server-side transactions, which is
//! what `runTransaction` of the high-level clients does: begin, read, commit. `--google` adds Google's own emulator.
//! `cargo xtask bench firestore [latency|contention|hand-off] [--rounds N] [--google] [--json FILE]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod pessimistic;
#[path = "../tests/behaviour/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use pessimistic::Pessimistic;
use support::{Project, key, request, take, ttl};
use syncguard_core::{LockBackend, LockId, Locker};
use syncguard_testkit::bench::{Figure, Options, Report, median, percentile};
use tokio::task::JoinSet;

const LINK: Duration = Duration::from_millis(20);
const WORKERS: usize = 8;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Options::new("firestore")
        .rounds(40)
        .part("latency", "each operation on a slow link, beside a server-side transaction")
        .part("contention", "eight clients on one key, beside server-side transactions")
        .part("hand-off", "from a release to the waiter")
        .switch("google", "contention on Google's own emulator as well")
        .read();
    let mut report = Report::start(&arguments, arguments.rounds());
    println!("Firestore, emulator inside the process, every call {} ms longer\n", LINK.as_millis());
    if arguments.wants("latency") {
        latencies(arguments.rounds(), &mut report).await;
    }
    if arguments.wants("contention") {
        contention("in-process", Project::start().await, 25, &mut report).await;
    }
    if arguments.wants("hand-off") {
        hand_off(&mut report).await;
    }
    if arguments.wants("contention") && arguments.has("google") {
        match syncguard_testkit::firestore_emulator() {
            Ok(address) => contention("google's", Project::on(address), 25, &mut report).await,
            Err(reason) => println!("google's emulator did not run: {reason:#}"),
        }
    }
    report.finish()
}

async fn latencies(rounds: usize, report: &mut Report) {
    let project = Project::start().await;
    let backend = project.backend().await;
    let contender = Pessimistic::connect(&project).await;
    take(&backend, "held").await;
    take(&backend, "owned").await;
    project.faults.set_link(LINK);
    println!("{:<34}{:>10}{:>10}{:>8}", "operation", "median ms", "worst ms", "calls");
    let table = &mut Table { project: &project, rounds, report };
    let mut ids = Vec::new();
    let mut number = 0;
    let own = async || ids.push(take(&backend, &format!("k{}", ids.len())).await.0);
    let theirs = async || {
        number += 1;
        assert!(contender.acquire(&format!("p{number}")).await.unwrap());
    };
    in_turn(table, ("acquire", own), ("acquire by server-side transaction", theirs)).await;
    measure(table, "acquire, held", async || {
        let _ = backend.acquire(request(&key("held"), &LockId::random(), 1_000)).await.unwrap();
    })
    .await;
    let kept = ids[0].clone();
    measure(table, "extend", async || assert!(backend.extend(&kept, ttl(30_000)).await.unwrap().is_extended())).await;
    measure(table, "is_locked", async || assert!(backend.is_locked(&key("held")).await.unwrap())).await;
    measure(table, "release", async || assert!(backend.release(&ids.pop().unwrap()).await.unwrap().is_released()))
        .await;
    println!();
}

/// Where the latencies come from and where they go.
struct Table<'a> {
    project: &'a Project,
    rounds: usize,
    report: &'a mut Report,
}

impl Table<'_> {
    /// How long one call of an operation takes, and how many calls to the server that is.
    async fn time(&self, operation: &mut impl AsyncFnMut()) -> (f64, f64) {
        self.project.faults.reset_calls();
        let started = Instant::now();
        operation().await;
        (millis(started.elapsed()), f64::from(self.project.faults.total()))
    }

    fn line(&mut self, figure: Figure, name: &str, rounds: &[(f64, f64)]) {
        let (mut times, calls): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
        let (middle, calls) = (figure.median(), Figure::of("calls", "calls", name, &calls));
        println!("{name:<34}{middle:>10.1}{:>10.1}{:>8.1}", percentile(&mut times, 100.0).unwrap(), calls.median());
        self.report.note(figure);
        self.report.note(calls);
    }
}

fn latency(name: &str, rounds: &[(f64, f64)]) -> Figure {
    Figure::of("latency", "ms", name, &rounds.iter().map(|(time, _)| *time).collect::<Vec<_>>())
}

async fn measure(table: &mut Table<'_>, name: &str, mut operation: impl AsyncFnMut()) {
    let mut rounds = Vec::new();
    for _ in 0..table.rounds {
        rounds.push(table.time(&mut operation).await);
    }
    table.line(latency(name, &rounds), name, &rounds);
}

/// Two contenders take turns, and the first is measured by the second.
async fn in_turn(
    table: &mut Table<'_>,
    (name, mut own): (&str, impl AsyncFnMut()),
    (beside, mut theirs): (&str, impl AsyncFnMut()),
) {
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for _ in 0..table.rounds {
        ours.push(table.time(&mut own).await);
        others.push(table.time(&mut theirs).await);
    }
    let times: Vec<f64> = others.iter().map(|(time, _)| *time).collect();
    let figure = latency(name, &ours).beside(beside, &times);
    println!("{name}, of that by a server-side transaction in the same round: {}", figure.ratio());
    table.line(figure, name, &ours);
    table.line(latency(beside, &others), beside, &others);
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Eight clients, one key.
async fn contention(place: &str, project: Project, cycles: usize, report: &mut Report) {
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let locker = Locker::new(project.backend().await);
        workers.spawn(async move {
            for _ in 0..cycles {
                let guard = locker.lock("k").timeout(Duration::from_secs(300)).unlimited_retries().acquire().await;
                guard.unwrap().release().await.unwrap();
            }
        });
    }
    workers.join_all().await;
    let took = started.elapsed();
    println!("{place} emulator, {WORKERS} clients x {cycles} cycles on one key: {:.2} s", took.as_secs_f64());
    note_contention(report, place, "syncguard", cycles, Some(took));
    if project.faults.total() > 0 {
        println!("  calls: {:?}", project.faults.calls());
    }
    pessimistic_contention(place, &project, report).await;
}

/// By cycle: the contenders do not make equally many. Who gave up has no figure.
fn note_contention(report: &mut Report, place: &str, contender: &str, cycles: usize, took: Option<Duration>) {
    let all = f64::from(u32::try_from(WORKERS * cycles).unwrap());
    let each: Vec<f64> = took.into_iter().map(|took| millis(took) / all).collect();
    let figure = Figure::of("contention", "ms/cycle", contender, &each);
    report.note(figure.at("clients", WORKERS).setting(format!("{place} emulator")));
}

/// The same by server-side transactions, with fewer cycles: they wait for each other on the server.
async fn pessimistic_contention(place: &str, project: &Project, report: &mut Report) {
    const CYCLES: usize = 3;
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let contender = Pessimistic::connect(project).await;
        workers.spawn(async move {
            for _ in 0..CYCLES {
                while !contender.acquire("p").await.unwrap_or(false) {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                while contender.release("p").await.is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
    }
    let done = tokio::time::timeout(Duration::from_secs(60), workers.join_all()).await;
    let (took, end) = (started.elapsed(), if done.is_ok() { "" } else { ", given up" });
    let seconds = took.as_secs_f64();
    println!("{place} emulator, {WORKERS} clients x {CYCLES} cycles by server-side transactions: {seconds:.2} s{end}");
    note_contention(report, place, "server-side transactions", CYCLES, done.is_ok().then_some(took));
}

/// From the call of release to the waiter having the lock.
async fn hand_off(report: &mut Report) {
    let project = Project::start().await;
    let (holder, waiter) = (project.backend().await, Locker::new(project.backend().await));
    let mut times = Vec::new();
    let patient = Duration::from_secs(60);
    for _ in 0..20 {
        let (id, _) = take(&holder, "k").await;
        let locker = waiter.clone();
        let waiting = tokio::spawn(async move {
            let guard =
                locker.lock("k").retry_delay(patient).max_delay(patient).wait_forever().acquire().await.unwrap();
            (Instant::now(), guard)
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let released = Instant::now();
        holder.release(&id).await.unwrap();
        let (got, guard) = waiting.await.unwrap();
        times.push(millis(got.duration_since(released)));
        guard.release().await.unwrap();
    }
    println!("\nhand-off to a waiter that would sleep for a minute: median {:.1} ms", median(&times));
    report.note(Figure::of("hand-off", "ms", "syncguard", &times));
}
