//! How fast is the embedded backend, and what does each idea in it gain?
//!
//! `cargo xtask bench sqlite [listing|pairs|processes|hand-off|open] [--quick] [--rounds N] [--json FILE]`. Machines are
//! shared and noisy: contenders take turns over several rounds, and what counts is the median of the ratios inside a
//! round. A pair is an acquire and a release.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark reads clocks and may stop")]

mod baseline;
#[path = "../../../../testkit/bench/listing.rs"]
mod listing;
mod processes;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use syncguard_core::{AcquireOutcome, AcquireRequest, Key, LockBackend, LockId, Ttl};
use syncguard_sqlite::{SqliteBackend, Synchronous};
use syncguard_testkit::bench::{Figure, Options, Report, Spread, median, percentile};

/// How long and how often to measure.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    sample: Duration,
}

fn main() -> ExitCode {
    if processes::play_a_role() {
        return ExitCode::SUCCESS;
    }
    let arguments = Options::new("sqlite")
        .rounds(5)
        .part("listing", "pairs beside a listing that never rests")
        .part("pairs", "acquire and release, beside one transaction per operation")
        .part("processes", "pairs of eight processes, beside SQLite's busy handler")
        .part("hand-off", "from a release in one process to the holder in another")
        .part("open", "to open the file, and the first pair")
        .switch("quick", "one short round and few locks")
        .read();
    let quick = arguments.has("quick");
    let (rounds, sample) = if quick { (arguments.rounds_or(1), 300) } else { (arguments.rounds(), 1_000) };
    let plan = Plan { rounds, sample: Duration::from_millis(sample) };
    let mut report = Report::start(&arguments, plan.rounds);
    let directory = tempfile::tempdir().unwrap();
    let fsync = fsync_p50(directory.path());
    println!("fsync of 4 KiB: p50 {fsync:.0} µs");
    report.note(Figure::of("fsync of 4 KiB p50", "µs", "the disk", &[fsync]));
    if arguments.wants("listing") {
        beside_a_listing(directory.path(), plan, if quick { 2_000 } else { 100_000 }, &mut report);
    }
    if arguments.wants("pairs") {
        throughput(directory.path(), plan, &mut report);
    }
    if arguments.wants("processes") {
        processes::latency(directory.path(), plan, &mut report);
    }
    if arguments.wants("hand-off") {
        processes::hand_off(directory.path(), plan, &mut report);
    }
    if arguments.wants("open") {
        cold_open(plan, &mut report);
    }
    report.finish()
}

fn throughput(directory: &Path, plan: Plan, report: &mut Report) {
    println!(
        "\n| one process, tasks | one tx per operation, pairs/s | full | ratio | normal | ratio | normal / full |"
    );
    println!("|---|---|---|---|---|---|---|");
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for round in 0..plan.rounds {
            let name = |contender: &str| directory.join(format!("{contender}-{tasks}-{round}.db"));
            rates[0].push(baseline::pairs_per_second(&name("baseline"), tasks, plan.sample));
            rates[1].push(pairs_per_second(&name("full"), Synchronous::Full, tasks, plan.sample));
            rates[2].push(pairs_per_second(&name("normal"), Synchronous::Normal, tasks, plan.sample));
        }
        let figure = |name: &str, rates: &[f64]| Figure::of("throughput", "pairs/s", name, rates).at("tasks", tasks);
        let slow = figure("one tx per operation", &rates[0]);
        let full = figure("full", &rates[1]).beside("one tx per operation", &rates[0]);
        let normal = figure("normal", &rates[2]).beside("one tx per operation", &rates[0]);
        let promised = bold(normal.ratio());
        let normal = normal.beside("full", &rates[1]);
        println!(
            "| {tasks} | {:.0} | {:.0} | {} | {:.0} | {promised} | {} |",
            slow.median(),
            full.median(),
            bold(full.ratio()),
            normal.median(),
            bold(normal.ratio())
        );
        report.extend([slow, full, normal]);
    }
}

fn bold(ratio: Spread) -> String {
    let Spread { median, low, high } = ratio;
    format!("**{median:.1}** ({low:.1}–{high:.1})")
}

/// With every commit on the disk, and without waiting for it, when the processor is what counts.
fn beside_a_listing(directory: &Path, plan: Plan, locks: usize, report: &mut Report) {
    for (name, synchronous) in [("full", Synchronous::Full), ("normal", Synchronous::Normal)] {
        println!("\nsynchronous={name}");
        let path = directory.join(format!("listing-{name}.db"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let setting = format!("synchronous {name}");
        runtime.block_on(async {
            let backend = SqliteBackend::builder(&path).synchronous(synchronous).connect().await.unwrap();
            let onlooker = backend.inspector().unwrap();
            let pairs = async |tasks| pairs_on(&backend, tasks, plan.sample).await;
            let noted = (&mut *report, Some(setting.as_str()));
            listing::report(&backend, &onlooker, (locks, plan.rounds), pairs, noted).await;
        });
    }
}

fn pairs_per_second(path: &Path, synchronous: Synchronous, tasks: usize, sample: Duration) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = SqliteBackend::builder(path).synchronous(synchronous).connect().await.unwrap();
        pairs_on(&backend, tasks, sample).await
    })
}

async fn pairs_on(backend: &SqliteBackend, tasks: usize, sample: Duration) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let key = Key::new(format!("task:{task}")).unwrap();
                let mut pairs = 0_u32;
                while start.elapsed() < sample {
                    pair(&backend, &key).await;
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await.unwrap();
    }
    f64::from(pairs) / start.elapsed().as_secs_f64()
}

/// One acquire and one release of a free lock.
async fn pair(backend: &SqliteBackend, key: &Key) {
    let lock_id = LockId::random();
    let request = AcquireRequest::new(key, &lock_id, Ttl::DEFAULT);
    let outcome = backend.acquire(request).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Acquired(_)));
    assert!(backend.release(&lock_id).await.unwrap().is_released());
}

fn cold_open(plan: Plan, report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = Key::new("k").unwrap();
    let (mut fresh, mut existing) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds * 10 {
        let directory = tempfile::tempdir().unwrap();
        for times in [&mut fresh, &mut existing] {
            let start = Instant::now();
            runtime.block_on(async {
                let backend = SqliteBackend::builder(directory.path().join("locks.db")).connect().await.unwrap();
                pair(&backend, &key).await;
            });
            times.push(micros(start.elapsed()));
        }
    }
    println!("\n| open + first pair | p50 | p99 |\n|---|---|---|");
    for (file, times) in [("a new file", &mut fresh), ("an existing file", &mut existing)] {
        let (half, slow) = tell(report, "open and first pair", file, times);
        println!("| {file} | {half:.0} µs | {slow:.0} µs |");
    }
}

/// Half of them take no longer, and ninety-nine in a hundred. Noted under the measure's name.
fn tell(report: &mut Report, measure: &str, contender: &str, times: &mut [f64]) -> (f64, f64) {
    let mut of = |name: &str, percent: f64| {
        let time = percentile(times, percent).unwrap();
        report.note(Figure::of(format!("{measure} {name}"), "µs", contender, &[time]));
        time
    };
    (of("p50", 50.0), of("p99", 99.0))
}

/// In microseconds.
fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn fsync_p50(directory: &Path) -> f64 {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(directory.join("fsync")).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    file.sync_all().unwrap();
    let times: Vec<f64> = (0..100_u8)
        .map(|byte| {
            file.write_all_at(&[byte; 4096], 0).unwrap();
            let start = Instant::now();
            file.sync_data().unwrap();
            micros(start.elapsed())
        })
        .collect();
    median(&times)
}
