//! What does a listing cost those who lock beside it?
//!
//! Included by the benchmarks of the backends. A storage with many live locks; rounds with a listing that never rests
//! take turns with rounds without one, and what counts is the ratio of their pairs per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use syncguard_core::{AcquireRequest, Fence, Inspector, Key, ListRequest, LockBackend, Ttl};

/// Prints the report. `onlooker` is another client than the one that locks; `pairs` measures pairs per second of so many
/// tasks.
pub(crate) async fn report<B: LockBackend<Fence = Fence> + Clone>(
    backend: &B,
    onlooker: &Inspector,
    (locks, rounds): (usize, usize),
    pairs: impl AsyncFn(usize) -> f64,
) {
    println!("\nlocking beside a listing of {locks} live locks");
    fill(backend, locks).await;
    let before = resident_kilobytes();
    let start = Instant::now();
    let first = onlooker.list(ListRequest::new("")).await.unwrap();
    println!("  first page: {} locks after {:.1} ms", first.locks.len(), start.elapsed().as_secs_f64() * 1000.0);
    let start = Instant::now();
    let (found, pages) = whole(onlooker, &AtomicBool::new(false)).await;
    assert!(found >= locks, "the listing shows {found} of {locks}");
    let took = start.elapsed().as_secs_f64();
    println!("  the whole listing: {found} locks in {pages} pages, {took:.1} s with nobody locking");
    println!("  memory of this process: {before} KB before, {} KB after", resident_kilobytes());
    for tasks in [1, 16, 64] {
        let (mut without, mut ratios) = (Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=rounds {
            let alone = pairs(tasks).await;
            let stop = Arc::new(AtomicBool::new(false));
            let listing = tokio::spawn(endless(onlooker.clone(), stop.clone()));
            // What the listing saved while it rested is used up first.
            pairs(tasks).await;
            let beside = pairs(tasks).await;
            stop.store(true, Ordering::Relaxed);
            listing.await.unwrap();
            if round > 0 {
                without.push(alone);
                ratios.push(beside / alone);
            }
        }
        without.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        let (alone, share) = (without[without.len() / 2], ratios[ratios.len() / 2]);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        println!(
            "  {tasks:>2} tasks: {alone:>6.0} pairs/s alone, {share:.2} ({low:.2}..{high:.2}) of it beside (≥ 0.95)"
        );
    }
}

async fn fill<B: LockBackend<Fence = Fence> + Clone>(backend: &B, locks: usize) {
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
