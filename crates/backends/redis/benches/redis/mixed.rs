//! Do the original's waiters get their share beside ours?
//!
//! Four busy workers and one more go for one key for a while; each holds it for a moment and comes back at once. The one
//! is the TypeScript original as the specification describes it: its scripts, and a schedule of attempts instead of
//! wake-ups (100 ms that double, half of it random, ten retries, five seconds). Counted is who gets the lock how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use syncguard_core::retry::RetryPolicy;
use syncguard_core::{LockId, Locker};
use syncguard_redis::RedisBuilder;
use syncguard_testkit::RedisServer;
use syncguard_testkit::bench::{Figure, Report};
use syncguard_testkit::redis::RespClient;

use crate::server;

const HOLD: Duration = Duration::from_millis(10);
const TIME: Duration = Duration::from_secs(18);
const BUSY: usize = 4;

/// Who the four are.
#[derive(Clone, Copy)]
enum Busy {
    Originals,
    Ours { wake: bool },
}

pub(crate) async fn run(report: &mut Report) {
    println!("\n== a mixed fleet: {BUSY} busy workers and one of the original's, {TIME:?}, holds of {HOLD:?}");
    for (name, busy) in [
        ("the original's, too", Busy::Originals),
        ("ours", Busy::Ours { wake: true }),
        ("ours with wake=off", Busy::Ours { wake: false }),
    ] {
        let (one, longest, others) = fleet(busy).await;
        println!(
            "  beside four of {name:<20} the one got {one:>4} locks (longest wait {:>5.1} s), the four {others:>5}",
            longest.as_secs_f64()
        );
        let mut note = |measure: &str, unit, contender: &str, value: f64| {
            report.note(Figure::of(measure, unit, contender, &[value]).setting(format!("beside four of {name}")));
        };
        note("mixed fleet", "locks", "the one", one as f64);
        note("mixed fleet", "locks", "the four", others as f64);
        note("mixed fleet, longest wait", "s", "the one", longest.as_secs_f64());
    }
}

async fn fleet(busy: Busy) -> (u64, Duration, u64) {
    let server = Arc::new(server());
    let (stop, others) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..BUSY {
        let (server, stop, others) = (server.clone(), stop.clone(), others.clone());
        tasks.push(match busy {
            Busy::Originals => tokio::task::spawn_blocking(move || {
                original(&server, &stop, &others);
            }),
            Busy::Ours { wake } => tokio::spawn(async move { ours(&server, wake, &stop, &others).await }),
        });
    }
    let one = Arc::new(AtomicU64::new(0));
    let watched = tokio::task::spawn_blocking({
        let (server, stop, one) = (server.clone(), stop.clone(), one.clone());
        move || original(&server, &stop, &one)
    });
    tokio::time::sleep(TIME).await;
    stop.store(true, Ordering::Relaxed);
    let longest = watched.await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    (one.load(Ordering::Relaxed), longest, others.load(Ordering::Relaxed))
}

async fn ours(server: &RedisServer, wake: bool, stop: &AtomicBool, locks: &AtomicU64) {
    let locker = Locker::new(RedisBuilder::from_url(&server.url()).unwrap().wake(wake).connect().await.unwrap());
    while !stop.load(Ordering::Relaxed) {
        let Ok(guard) = locker.lock("k").acquire().await else { continue };
        tokio::time::sleep(HOLD).await;
        guard.release().await.unwrap();
        locks.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the longest time without a lock.
fn original(server: &RedisServer, stop: &AtomicBool, locks: &AtomicU64) -> Duration {
    let mut client = RespClient::connect(server.port()).unwrap();
    let acquire = server.command(&["SCRIPT", "LOAD", include_str!("spec/acquire.lua")]);
    let release = server.command(&["SCRIPT", "LOAD", include_str!("spec/release.lua")]);
    let (mut longest, mut since) = (Duration::ZERO, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let id = LockId::random();
        let index = format!("syncguard:id:{}", id.as_str());
        let names = ["syncguard:k", index.as_str(), "syncguard:fence:syncguard:k"];
        let mut take = vec!["EVALSHA", &acquire, "3"];
        take.extend(names);
        take.extend([id.as_str(), "30000", "1000", names[0], "k"]);
        if !wait_for(&mut client, &take, stop) {
            continue;
        }
        longest = longest.max(since.elapsed());
        thread::sleep(HOLD);
        client.command(&["EVALSHA", &release, "1", &index, id.as_str(), "1000"]).unwrap();
        locks.fetch_add(1, Ordering::Relaxed);
        since = Instant::now();
    }
    longest.max(since.elapsed())
}

/// Asks by the original's schedule. Whether it got the lock.
fn wait_for(client: &mut RespClient, take: &[&str], stop: &AtomicBool) -> bool {
    let (policy, started) = (RetryPolicy::default(), Instant::now());
    for retry in 1..=RetryPolicy::DEFAULT_MAX_RETRIES + 1 {
        // What the script answers when somebody holds the lock.
        if client.command(take).unwrap().to_string() != "0" {
            return true;
        }
        let chance = f64::from(started.elapsed().subsec_micros() % 1_000) / 1_000.0;
        let delay = policy.delay(retry, chance);
        if started.elapsed() + delay > RetryPolicy::DEFAULT_TIMEOUT || stop.load(Ordering::Relaxed) {
            return false;
        }
        thread::sleep(delay);
    }
    false
}
