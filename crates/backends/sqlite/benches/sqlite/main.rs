//! How fast is the embedded backend, and what does each idea in it gain?
//!
//! `cargo xtask bench sqlite [-- --quick] [listing]`. Machines are shared and noisy: contenders take turns over several rounds,
//! and what counts is the median of the ratios inside a round. A pair is an acquire and a release.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark reads clocks and may stop")]

mod baseline;
#[path = "../../../../testkit/bench/listing.rs"]
mod listing;
mod processes;

use std::path::Path;
use std::time::{Duration, Instant};

use syncguard_core::{AcquireOutcome, AcquireRequest, Key, LockBackend, LockId, Ttl};
use syncguard_sqlite::{SqliteBackend, Synchronous};

/// How long and how often to measure.
#[derive(Clone, Copy)]
struct Plan {
    rounds: usize,
    sample: Duration,
}

fn main() {
    if processes::play_a_role() {
        return;
    }
    let quick = std::env::args().any(|argument| argument == "--quick");
    let plan = if quick {
        Plan { rounds: 1, sample: Duration::from_millis(300) }
    } else {
        Plan { rounds: 5, sample: Duration::from_secs(1) }
    };
    let only_listing = std::env::args().any(|argument| argument == "listing");
    let directory = tempfile::tempdir().unwrap();
    println!("idle share at the start: {:.0} %", idle_share() * 100.0);
    println!("fsync of 4 KiB: p50 {} µs", fsync_p50(directory.path()));
    beside_a_listing(directory.path(), plan, if quick { 2_000 } else { 100_000 });
    if only_listing {
        return;
    }
    throughput(directory.path(), plan);
    processes::latency(directory.path(), plan);
    processes::hand_off(directory.path(), plan);
    cold_open(plan);
}

fn throughput(directory: &Path, plan: Plan) {
    println!(
        "\n| one process, tasks | one tx per operation, pairs/s | full | ratio | normal | ratio | normal / full |"
    );
    println!("|---|---|---|---|---|---|---|");
    for tasks in [1, 16, 64] {
        let mut rates: [Vec<f64>; 3] = Default::default();
        let mut ratios: [Vec<f64>; 3] = Default::default();
        for round in 0..plan.rounds {
            let name = |contender: &str| directory.join(format!("{contender}-{tasks}-{round}.db"));
            let slow = baseline::pairs_per_second(&name("baseline"), tasks, plan.sample);
            let full = pairs_per_second(&name("full"), Synchronous::Full, tasks, plan.sample);
            let normal = pairs_per_second(&name("normal"), Synchronous::Normal, tasks, plan.sample);
            for (all, one) in rates.iter_mut().zip([slow, full, normal]) {
                all.push(one);
            }
            for (all, one) in ratios.iter_mut().zip([full / slow, normal / slow, normal / full]) {
                all.push(one);
            }
        }
        let [slow, full, normal] = rates.map(|mut rates| median(&mut rates));
        let [careful, promised, gain] = ratios.map(|mut ratios| {
            let ratio = median(&mut ratios);
            format!("**{ratio:.1}** ({:.1}..{:.1})", ratios[0], ratios[ratios.len() - 1])
        });
        println!("| {tasks} | {slow:.0} | {full:.0} | {careful} | {normal:.0} | {promised} | {gain} |");
    }
}

/// With every commit on the disk, and without waiting for it, when the processor is what counts.
fn beside_a_listing(directory: &Path, plan: Plan, locks: usize) {
    for (name, synchronous) in [("full", Synchronous::Full), ("normal", Synchronous::Normal)] {
        println!("\nsynchronous={name}");
        let path = directory.join(format!("listing-{name}.db"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let backend = SqliteBackend::builder(&path).synchronous(synchronous).connect().await.unwrap();
            let onlooker = backend.inspector().unwrap();
            let pairs = async |tasks| pairs_on(&backend, tasks, plan.sample).await;
            listing::report(&backend, &onlooker, (locks, plan.rounds), pairs).await;
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

fn cold_open(plan: Plan) {
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
            times.push(start.elapsed().as_micros());
        }
    }
    println!("\n| open + first pair | p50 | p99 |\n|---|---|---|");
    println!("| a new file | {} µs | {} µs |", share(&mut fresh, 50), share(&mut fresh, 99));
    println!("| an existing file | {} µs | {} µs |", share(&mut existing, 50), share(&mut existing, 99));
}

/// The value below which a share of them lies.
fn share(values: &mut [u128], percent: usize) -> u128 {
    values.sort_unstable();
    values[(values.len() - 1) * percent / 100]
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn fsync_p50(directory: &Path) -> u128 {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(directory.join("fsync")).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    file.sync_all().unwrap();
    let mut times: Vec<_> = (0..100_u8)
        .map(|byte| {
            file.write_all_at(&[byte; 4096], 0).unwrap();
            let start = Instant::now();
            file.sync_data().unwrap();
            start.elapsed().as_micros()
        })
        .collect();
    share(&mut times, 50)
}

fn idle_share() -> f64 {
    let read = || -> Vec<f64> {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        line.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect()
    };
    let before = read();
    std::thread::sleep(Duration::from_millis(500));
    let spent: Vec<f64> = read().iter().zip(&before).map(|(after, before)| after - before).collect();
    spent.get(3).copied().unwrap_or(0.0) / spent.iter().sum::<f64>().max(1.0)
}
