//! What does `syncguard run` cost beside `flock(1)`?
//!
//! `cargo xtask bench cli [ROUNDS]`: the whole life of a command that does nothing, one of each in turn, so that all of them meet the
//! same machine; then the memory of a `run` whose command sleeps and whose lease is renewed.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use syncguard_testkit::{RedisOptions, RedisServer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_syncguard");

fn main() {
    let rounds = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(200);
    let folder = tempfile::tempdir().expect("a folder can be made");
    let redis = RedisServer::start(RedisOptions::new());
    let (store, file) = (folder.path().join("locks.db"), folder.path().join("flock"));
    let contenders: Vec<(&str, Vec<String>)> = vec![
        ("flock(1)", words(&["flock", &file.display().to_string(), "true"])),
        ("syncguard --version", words(&[PROGRAM, "--version"])),
        ("syncguard run, sqlite", run(&format!("sqlite:{}", store.display()), &["true"])),
        ("syncguard run, redis", run(&redis.url(), &["true"])),
    ];
    let mut times = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..rounds + 5 {
        for (contender, times) in contenders.iter().zip(&mut times) {
            let elapsed = life_of(&contender.1);
            // The first rounds fill caches and make the store.
            if round >= 5 {
                times.push(elapsed);
            }
        }
    }
    let base = median(&mut times[0]);
    for ((name, _), times) in contenders.iter().zip(&mut times) {
        let half = median(times);
        println!("{name:24} p50 {:6.2} ms  {:5.2} × flock(1)", millis(half), half.as_secs_f64() / base.as_secs_f64());
    }
    for (name, url) in [("sqlite", format!("sqlite:{}", store.display())), ("redis", redis.url())] {
        let words = words(&[PROGRAM, "--url", &url, "run", "--ttl", "3s", "bench", "--", "sleep", "30"]);
        println!("memory of a run that has renewed its lease, {name}: {}", memory_of(&words));
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn run(url: &str, command: &[&str]) -> Vec<String> {
    [words(&[PROGRAM, "--url", url, "run", "bench", "--"]), words(command)].concat()
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
fn life_of(words: &[String]) -> Duration {
    let started = Instant::now();
    let status = command(words).status().expect("the contender runs");
    assert!(status.success(), "{} failed", words[0]);
    started.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The resident memory of the command and of its watchdog, as /proc tells it: all of it, and what no other process shares.
fn memory_of(words: &[String]) -> String {
    let mut process = command(words).spawn().expect("the command runs");
    // Until it has settled, and renewed its lease of three seconds a few times.
    std::thread::sleep(Duration::from_secs(5));
    let of = |pid: &str| -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
        Some(format!("{} {} ({} of its own)", field("Name:")?, field("VmRSS:")?, field("RssAnon:")?))
    };
    let pid = process.id().to_string();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let all: Vec<String> = std::iter::once(pid.as_str()).chain(children.split_whitespace()).filter_map(of).collect();
    let _ = process.kill();
    let _ = process.wait();
    all.join(", ")
}
