//! What does the command cost before yours begins?
//!
//! The time from the start of `syncguard run` to the first moment of its child, beside `flock(1)`, one of each in turn,
//! so that all of them meet the same machine. The child is `date`, which says when it ran.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use syncguard_testkit::{RedisOptions, RedisServer};

const ROUNDS: usize = 200;
/// The first ones fill caches and make the store.
const WARM_UP: usize = 10;

pub(crate) fn run(program: &Path) -> Result<()> {
    let place = std::env::temp_dir().join(format!("syncguard-measure-{}", std::process::id()));
    std::fs::create_dir_all(&place)?;
    let redis = RedisServer::try_start(RedisOptions::new())?;
    let program = program.display().to_string();
    let run = |url: &str| [&*program, "--url", url, "run", "start-up", "--"].map(str::to_owned).to_vec();
    let contenders = [
        ("no lock", Vec::new()),
        ("flock(1)", vec!["flock".to_owned(), place.join("flock").display().to_string()]),
        ("syncguard, sqlite", run(&format!("sqlite:{}", place.join("locks.db").display()))),
        ("syncguard, redis", run(&redis.url())),
    ];
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..WARM_UP + ROUNDS {
        for ((_, words), times) in contenders.iter().zip(&mut times) {
            let microseconds = until_the_child(words)?;
            if round >= WARM_UP {
                times.push(microseconds);
            }
        }
    }
    for ((name, _), times) in contenders.iter().zip(&mut times) {
        times.sort_unstable();
        let of = |hundredths: usize| times[times.len() * hundredths / 100];
        println!("{name:18} to the child: p50 {} µs, p95 {} µs ({ROUNDS} starts)", of(50), of(95));
    }
    std::fs::remove_dir_all(place).map_err(Into::into)
}

#[allow(clippy::disallowed_methods, reason = "a measurement compares this process's clock with its child's")]
fn until_the_child(words: &[String]) -> Result<u128> {
    let line: Vec<&str> = words.iter().map(String::as_str).chain(["date", "+%s%N"]).collect();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env("SYNCGUARD_REQUIRE", "local");
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let output = command.output().with_context(|| format!("cannot run {}", line[0]))?;
    ensure!(output.status.success(), "{}: {}", line[0], String::from_utf8_lossy(&output.stderr).trim());
    let ran: u128 = String::from_utf8(output.stdout)?.trim().parse().context("date prints nanoseconds")?;
    Ok(ran.saturating_sub(started) / 1000)
}
