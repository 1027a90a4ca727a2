//! How do processes fare with each other?
//!
//! The benchmark starts itself again in a role; children answer with lines of numbers on their standard output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use syncguard_core::{AcquireOutcome, AcquireRequest, Clock, Key, LockBackend, LockId, SystemClock, Ttl};
use syncguard_sqlite::SqliteBackend;
use syncguard_testkit::bench::{Figure, Report};

use crate::baseline::Plain;
use crate::{Plan, micros, pair, tell};

const ROLE: &str = "SYNCGUARD_BENCH_ROLE";
const FILE: &str = "SYNCGUARD_BENCH_FILE";
const PROCESSES: usize = 8;

/// Does a child's work, if this process is a child.
pub(crate) fn play_a_role() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    let path = PathBuf::from(std::env::var_os(FILE).unwrap());
    let key = format!("process:{}", std::process::id());
    let (kind, millis) = role.split_once(' ').unwrap();
    let sample = Duration::from_millis(millis.parse().unwrap());
    match kind {
        "ours" => {
            let backend = runtime().block_on(SqliteBackend::builder(path).connect()).unwrap();
            let key = Key::new(key).unwrap();
            let runtime = runtime();
            time_pairs(sample, || runtime.block_on(pair(&backend, &key)));
        }
        "plain" => {
            let plain = Plain::open(&path);
            time_pairs(sample, || plain.pair(&key));
        }
        "wait" => wait_for_hand_offs(&path),
        other => panic!("no role {other}"),
    }
    true
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn time_pairs(sample: Duration, mut pair: impl FnMut()) {
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < sample {
        let before = Instant::now();
        pair();
        times.push(before.elapsed().as_micros().to_string());
    }
    println!("{}", times.join(" "));
}

fn start(role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .env(FILE, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Pairs of eight processes on their own keys in one file.
pub(crate) fn latency(directory: &Path, plan: Plan, report: &mut Report) {
    println!("\n| {PROCESSES} processes, a pair | p50 | p99 | worst | pairs/s |\n|---|---|---|---|---|");
    for (kind, title) in [("plain", "SQLite's busy handler"), ("ours", "ours: queue + writer thread")] {
        let path = directory.join(format!("{kind}-processes.db"));
        // Made before the race: making it is measured elsewhere.
        if kind == "ours" {
            drop(runtime().block_on(SqliteBackend::builder(&path).connect()).unwrap());
        } else {
            drop(Plain::open(&path));
        }
        let sample = plan.sample * 3;
        let children: Vec<_> =
            (0..PROCESSES).map(|_| start(&format!("{kind} {}", sample.as_millis()), &path)).collect();
        let mut times: Vec<f64> = Vec::new();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).unwrap();
            times.extend(text.split_whitespace().map(|number| number.parse::<f64>().unwrap()));
        }
        let per_second = f64::from(u32::try_from(times.len()).unwrap()) / sample.as_secs_f64();
        let (half, slow) = tell(report, "pair of eight processes", title, &mut times);
        let worst = times.last().unwrap();
        println!("| {title} | {half:.0} µs | {slow:.0} µs | {worst:.0} µs | {per_second:.0} |");
        report.note(Figure::of("throughput", "pairs/s", title, &[per_second]).at("processes", PROCESSES));
    }
}

async fn try_acquire(backend: &SqliteBackend, key: &Key, lock_id: &LockId) -> bool {
    let request = AcquireRequest::new(key, lock_id, Ttl::DEFAULT);
    matches!(backend.acquire(request).await.unwrap(), AcquireOutcome::Acquired(_))
}

fn wait_for_hand_offs(path: &Path) {
    let backend = runtime().block_on(SqliteBackend::builder(path).connect()).unwrap();
    let (key, lock_id) = (Key::new("handed over").unwrap(), LockId::random());
    let mut input = std::io::stdin().lines();
    runtime().block_on(async {
        while input.next().is_some_and(|line| line.is_ok()) {
            let hint = backend.subscribe(&key).await;
            assert!(!try_acquire(&backend, &key, &lock_id).await);
            println!("waiting");
            hint.woken().await;
            let woken = SystemClock.boot().since_start().as_nanos();
            while !try_acquire(&backend, &key, &lock_id).await {
                hint.woken().await;
            }
            let held = SystemClock.boot().since_start().as_nanos();
            backend.release(&lock_id).await.unwrap();
            println!("{woken} {held}");
        }
    });
}

/// From the call of release in one process to the holder in another.
pub(crate) fn hand_off(directory: &Path, plan: Plan, report: &mut Report) {
    let path = directory.join("hand-off.db");
    let backend = runtime().block_on(SqliteBackend::builder(&path).connect()).unwrap();
    let (key, lock_id) = (Key::new("handed over").unwrap(), LockId::random());
    let runtime = runtime();
    let mut child = start("wait 0", &path);
    let mut orders = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut woken, mut held) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds * 100 {
        assert!(runtime.block_on(try_acquire(&backend, &key, &lock_id)));
        writeln!(orders, "wait").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "waiting");
        let freed = SystemClock.boot().since_start().as_nanos();
        runtime.block_on(backend.release(&lock_id)).unwrap();
        let line = lines.next().unwrap().unwrap();
        let (at_woken, at_held) = line.split_once(' ').unwrap();
        let since = |at: &str| {
            let nanos = at.parse::<u128>().unwrap() - freed;
            micros(Duration::from_nanos(u64::try_from(nanos).unwrap()))
        };
        woken.push(since(at_woken));
        held.push(since(at_held));
    }
    drop(orders);
    assert!(child.wait().unwrap().success());
    println!("\n| release in one process to … in another | p50 | p99 |\n|---|---|---|");
    let (half, slow) = tell(report, "hand-off until woken", "syncguard", &mut woken);
    println!("| the waiter is woken | {half:.0} µs | {slow:.0} µs |");
    let (half, slow) = tell(report, "hand-off", "syncguard", &mut held);
    println!("| it holds the lock (one fsync more) | {half:.0} µs | {slow:.0} µs |");
}
