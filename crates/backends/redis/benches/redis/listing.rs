//! What does a listing cost those who lock beside it?
//!
//! A server with a hundred thousand live locks. Rounds with a listing that never rests take turns with rounds without
//! one; what counts is the ratio of their pairs per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use syncguard_core::{AcquireRequest, Inspector, Key, ListRequest, LockBackend, Ttl};
use syncguard_redis::RedisBackend;

use crate::pairs::of_backend;
use crate::{Effort, median, server, spread};

const LOCKS: usize = 100_000;

pub(crate) async fn run(effort: Effort) {
    println!("\n== locking beside a listing of {LOCKS} live locks");
    let server = server();
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    fill(&backend).await;
    let onlooker = RedisBackend::connect(&server.url()).await.unwrap().inspector().unwrap();
    let before = resident_kilobytes();
    let start = Instant::now();
    let first = onlooker.list(ListRequest::new("")).await.unwrap();
    println!("  first page: {} locks after {:.1} ms", first.locks.len(), start.elapsed().as_secs_f64() * 1000.0);
    let (locks, pages) = whole(&onlooker, &AtomicBool::new(false)).await;
    let took = start.elapsed().as_secs_f64();
    println!("  the whole listing: {locks} locks in {pages} pages, {took:.1} s on an idle server");
    println!("  memory of this process: {before} KB before, {} KB after", resident_kilobytes());
    for tasks in [1, 16, 64] {
        let (mut without, mut ratios) = (Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=effort.rounds {
            let alone = of_backend(&backend, tasks, effort.slice).await;
            let stop = Arc::new(AtomicBool::new(false));
            let listing = tokio::spawn(endless(onlooker.clone(), stop.clone()));
            // What the listing saved while it rested is used up first.
            of_backend(&backend, tasks, effort.slice).await;
            let beside = of_backend(&backend, tasks, effort.slice).await;
            stop.store(true, Ordering::Relaxed);
            listing.await.unwrap();
            if round > 0 {
                without.push(alone);
                ratios.push(beside / alone);
            }
        }
        let (alone, share) = (median(without), spread(ratios));
        println!("  {tasks:>2} tasks: {alone:>6.0} pairs/s alone, {share} of it beside the listing   (reach: ≥ 0.95)");
    }
}

async fn fill(backend: &RedisBackend) {
    let day = Ttl::from_millis(86_400_000).unwrap();
    let tasks = (0..64).map(|task| {
        let backend = backend.clone();
        tokio::spawn(async move {
            for number in (task..LOCKS).step_by(64) {
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
