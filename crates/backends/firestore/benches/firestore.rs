//! What does a lock in Firestore cost in time and in calls?
//!
//! On the emulator inside this process, behind a link that makes every call take 20 ms longer, so that the figures are
//! about round trips and not about this machine. The contender is the same lock by server-side transactions, which is
//! what `runTransaction` of the high-level clients does: begin, read, commit. `--google` adds Google's own emulator.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod pessimistic;
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use pessimistic::Pessimistic;
use support::{Project, key, request, take, ttl};
use syncguard_core::{LockBackend, LockId, Locker};
use tokio::task::JoinSet;

const LINK: Duration = Duration::from_millis(20);
const ROUNDS: u32 = 40;
const WORKERS: usize = 8;

#[tokio::main]
async fn main() {
    println!("Firestore, emulator inside the process, every call {} ms longer\n", LINK.as_millis());
    latencies().await;
    contention("in-process", Project::start().await, 25).await;
    hand_off().await;
    if std::env::args().any(|argument| argument == "--google") {
        match syncguard_testkit::firestore_emulator() {
            Ok(address) => contention("google's", Project::on(address), 25).await,
            Err(reason) => println!("google's emulator did not run: {reason:#}"),
        }
    }
}

async fn latencies() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let contender = Pessimistic::connect(&project).await;
    take(&backend, "held").await;
    take(&backend, "owned").await;
    project.faults.set_link(LINK);
    println!("{:<34}{:>10}{:>10}{:>8}", "operation", "median ms", "worst ms", "calls");
    let mut ids = Vec::new();
    measure(&project, "acquire", async || ids.push(take(&backend, &format!("k{}", ids.len())).await.0)).await;
    measure(&project, "acquire, held", async || {
        let _ = backend.acquire(request(&key("held"), &LockId::random(), 1_000)).await.unwrap();
    })
    .await;
    let kept = ids[0].clone();
    measure(&project, "extend", async || assert!(backend.extend(&kept, ttl(30_000)).await.unwrap().is_extended()))
        .await;
    measure(&project, "is_locked", async || assert!(backend.is_locked(&key("held")).await.unwrap())).await;
    measure(&project, "release", async || assert!(backend.release(&ids.pop().unwrap()).await.unwrap().is_released()))
        .await;
    let mut number = 0;
    measure(&project, "acquire by server-side transaction", async || {
        number += 1;
        assert!(contender.acquire(&format!("p{number}")).await.unwrap());
    })
    .await;
    println!();
}

async fn measure(project: &Project, name: &str, mut operation: impl AsyncFnMut()) {
    let mut times = Vec::new();
    project.faults.reset_calls();
    for _ in 0..ROUNDS {
        let started = Instant::now();
        operation().await;
        times.push(started.elapsed());
    }
    let calls = f64::from(project.faults.total()) / f64::from(ROUNDS);
    times.sort_unstable();
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{name:<34}{:>10.1}{:>10.1}{calls:>8.1}", millis(times[times.len() / 2]), millis(times[times.len() - 1]));
}

/// Eight clients, one key.
async fn contention(place: &str, project: Project, cycles: usize) {
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
    if project.faults.total() > 0 {
        println!("  calls: {:?}", project.faults.calls());
    }
    pessimistic_contention(place, &project).await;
}

/// The same by server-side transactions, with fewer cycles: they wait for each other on the server.
async fn pessimistic_contention(place: &str, project: &Project) {
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
    let took = started.elapsed().as_secs_f64();
    let end = if done.is_ok() { "" } else { ", given up" };
    println!("{place} emulator, {WORKERS} clients x {CYCLES} cycles by server-side transactions: {took:.2} s{end}");
}

/// From the call of release to the waiter having the lock.
async fn hand_off() {
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
        times.push(got.duration_since(released));
        guard.release().await.unwrap();
    }
    times.sort_unstable();
    println!("\nhand-off to a waiter that would sleep for a minute: median {:.1} ms", times[10].as_secs_f64() * 1e3);
}
