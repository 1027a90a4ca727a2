//! Does work stand still for good when its process was stopped past the lease?
//!
//! A real process under a real lock does a step every tenth of a second and is stopped for three leases. The ticks that
//! it missed are all due when it goes on, so nothing but the clock keeps it from doing them.
#![cfg(all(feature = "sqlite", feature = "redis", feature = "blocking"))]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread::{scope, sleep};
use std::time::Duration;

use syncguard::time::{Clock, SystemClock};
use syncguard::{ErrorCode, LockError, Locker};
use tokio::runtime::Builder;

const TEST: &str = "paused::no_step_is_begun_after_the_deadline_by_a_process_that_was_stopped";
const ROLE: &str = "SYNCGUARD_PAUSED_TEST_ROLE";
const TTL: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

#[test]
fn no_step_is_begun_after_the_deadline_by_a_process_that_was_stopped() {
    if let Ok(role) = std::env::var(ROLE) {
        return work(&role);
    }
    let folder = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", folder.path().join("locks.db").display());
    let redis = format!("{}?prefix=paused-{}", syncguard_testkit::redis_url(), std::process::id());
    let mut late = Vec::new();
    scope(|scope| {
        let mut trials = Vec::new();
        for url in [&sqlite, &redis] {
            for way in ["run", "lead", "lock_all", "select", "blocking"] {
                let runtimes: &[&str] = if way == "blocking" { &["-"] } else { &["one-thread", "threads"] };
                trials.extend(runtimes.iter().map(|runtime| scope.spawn(move || stop(way, runtime, url))));
            }
        }
        late.extend(trials.into_iter().map(|trial| trial.join().unwrap()).filter(|(_, steps)| *steps > 0));
    });
    assert!(late.is_empty(), "steps begun after the deadline: {late:?}");
}

/// Stops a child amid two of its steps, and returns how many it did when it went on.
fn stop(way: &str, runtime: &str, url: &str) -> (String, usize) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{way} {runtime} {url}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let process = child.id().to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    let mut steps = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("@step ")?.parse::<i64>().ok());
    assert!(steps.by_ref().take(5).count() == 5, "{way} {runtime}: the lock was lost before the pause");
    sleep(TICK / 2);
    signal("-STOP");
    sleep(3 * TTL);
    let resumed = SystemClock.wall().as_millis();
    signal("-CONT");
    let late = steps.filter(|at| *at >= resumed).count();
    assert!(child.wait().unwrap().success());
    println!("{way}, {runtime}, {}: {late} steps after the deadline", &url[..6]);
    (format!("{way} {runtime} {url}"), late)
}

fn step() {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@step {}", SystemClock.wall().as_millis()).unwrap();
    out.flush().unwrap();
}

fn work(role: &str) {
    let (way, rest) = role.split_once(' ').unwrap();
    let (runtime, url) = rest.split_once(' ').unwrap();
    let lost = match runtime {
        "one-thread" => {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(work_async(way, runtime, url))
        }
        "threads" => Builder::new_multi_thread().enable_all().build().unwrap().block_on(work_async(way, runtime, url)),
        _ => work_blocking(url),
    };
    assert_eq!(lost.unwrap_err().code(), ErrorCode::LockLost);
}

fn work_blocking(url: &str) -> Result<(), LockError> {
    let locker = syncguard::blocking::connect(url)?;
    locker.lock("blocking").ttl(TTL).keep_alive().run(|lock| {
        let mut due = SystemClock.boot();
        loop {
            due = due + TICK;
            sleep(due.since(SystemClock.boot()));
            lock.check()?;
            step();
        }
    })?
}

async fn work_async(way: &str, runtime: &str, url: &str) -> Result<(), LockError> {
    let locker: Locker = syncguard::connect(url).await?;
    let key = format!("{way}-{runtime}");
    let request = locker.lock(&key).ttl(TTL).keep_alive();
    match way {
        "run" => request.run(async |_| steps().await).await,
        "lock_all" => locker.lock_all([&key, &format!("{key}-2")]).ttl(TTL).run(async |_| steps().await).await,
        "lead" => {
            let mut terms = 0;
            let election = locker.elect(&key).ttl(TTL);
            let led = election.lead(|lock| {
                terms += 1;
                let is_first = terms == 1;
                async move {
                    if is_first {
                        steps().await;
                    }
                    lock.fence()
                }
            });
            assert_eq!(led.await?.get(), 2, "it leads anew");
            Err(LockError::new(ErrorCode::LockLost, "the first leadership"))
        }
        _ => {
            let guard = request.acquire().await?;
            tokio::select! {
                biased;
                _ = guard.lost() => guard.check(),
                () = steps() => Ok(()),
            }
        }
    }
}

async fn steps() {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        ticks.tick().await;
        step();
    }
}
