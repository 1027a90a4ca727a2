//! What does a listing cost those who lock beside it?
//!
//! Included by the benchmarks of the backends. A storage with many live locks; rounds with a listing that never rests
//! take turns with rounds without one, and what counts is the ratio of their pairs per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use syncguard_core::{AcquireRequest, Inspector, Key, ListRequest, LockBackend, Ttl};
use syncguard_testkit::bench::{Figure, Report};

/// Prints and notes the figures, under the name of a setting if the storage has several. `onlooker` is another client
/// than the one that locks; `pairs` measures pairs per second of so many tasks.
pub(crate) async fn report<B: LockBackend + Clone>(
    backend: &B,
    onlooker: &Inspector,
    (locks, rounds): (usize, usize),
    pairs: impl AsyncFn(usize) -> f64,
    (report, setting): (&mut Report, Option<&str>),
) {
    let mut note = |figure: Figure| match setting {
        Some(setting) => report.note(figure.setting(setting)),
        None => report.note(figure),
    };
    println!("\nlocking beside a listing of {locks} live locks");
    fill(backend, locks).await;
    let before = resident_kilobytes();
    let start = Instant::now();
    let first = onlooker.list(ListRequest::new("")).await.unwrap();
    let took = start.elapsed().as_secs_f64() * 1000.0;
    println!("  first page: {} locks after {took:.1} ms", first.locks.len());
    note(Figure::of("first page of a listing", "ms", "syncguard", &[took]).at("locks", locks));
    let start = Instant::now();
    let (found, pages) = whole(onlooker, &AtomicBool::new(false)).await;
    assert!(found >= locks, "the listing shows {found} of {locks}");
    let took = start.elapsed().as_secs_f64();
    println!("  the whole listing: {found} locks in {pages} pages, {took:.1} s with nobody locking");
    note(Figure::of("whole listing", "s", "syncguard", &[took]).at("locks", locks));
    println!("  memory of this process: {before} KB before, {} KB after", resident_kilobytes());
    for tasks in [1, 16, 64] {
        let (without, with) = in_turn(onlooker, rounds, async || pairs(tasks).await).await;
        let rates = |who: &str, rates: &[f64]| Figure::of("throughput beside a listing", "pairs/s", who, rates);
        let alone = rates("alone", &without).at("tasks", tasks);
        let beside = rates("beside a listing", &with).at("tasks", tasks).beside("alone", &without);
        let (rate, share) = (alone.median(), beside.ratio());
        println!("  {tasks:>2} tasks: {rate:>6.0} pairs/s alone, {share} of it beside (≥ 0.95)");
        note(alone);
        note(beside);
    }
}

/// Pairs per second in rounds without a listing, and in those with one.
async fn in_turn(onlooker: &Inspector, rounds: usize, pairs: impl AsyncFn() -> f64) -> (Vec<f64>, Vec<f64>) {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        let alone = pairs().await;
        let stop = Arc::new(AtomicBool::new(false));
        let listing = tokio::spawn(endless(onlooker.clone(), stop.clone()));
        // What the listing saved while it rested is used up first.
        pairs().await;
        let beside = pairs().await;
        stop.store(true, Ordering::Relaxed);
        listing.await.unwrap();
        if round > 0 {
            without.push(alone);
            with.push(beside);
        }
    }
    (without, with)
}

async fn fill<B: LockBackend + Clone>(backend: &B, locks: usize) {
    let day = Ttl::from_millis(86_400_000).unwrap();
    let tasks = (0..64).map(|task| {
        let backend = backend.clone();
        tokio::spawn(async move {
            for number in (task..locks).step_by(64) {
                let key = Key::new(format!("held:{number}")).unwrap();
                let id = backend.new_lock_id(&key);
                let _ = backend.acquire(AcquireRequest::new(&key, &id, day)).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

async fn endless(onlooker: Inspector, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        whole(&onlooker, &stop).await;
    }
}

async fn whole(onlooker: &Inspector, stop: &AtomicBool) -> (usize, usize) {
    let (mut cursor, mut locks, mut pages) = (None, 0, 0);
    loop {
        let page = onlooker.list(ListRequest::new("").after(cursor.as_ref())).await.unwrap();
        locks += page.locks.len();
        pages += 1;
        cursor = page.next;
        if cursor.is_none() || stop.load(Ordering::Relaxed) {
            return (locks, pages);
        }
    }
}

fn resident_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
