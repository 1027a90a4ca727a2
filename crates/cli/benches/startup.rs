//! What does `syncguard run` cost beside `flock(1)`?
//!
//! `cargo xtask bench cli [--rounds N] [--json FILE]`: the whole life of a command that does nothing, one of each in
//! turn, so that all of them meet the same machine; then the memory of a `run` whose command sleeps and whose lease is
//! renewed.

use std::fmt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use syncguard_testkit::bench::{Figure, Options, Report};
use syncguard_testkit::{RedisOptions, RedisServer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_syncguard");

fn main() -> ExitCode {
    // Before there were flags, a bare number was that of the rounds.
    let arguments = Options::new("cli").rounds(200).bare_rounds().read();
    let rounds = arguments.rounds();
    let mut report = Report::start(&arguments, rounds);
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
                times.push(millis(elapsed));
            }
        }
    }
    for ((name, _), own) in contenders.iter().zip(&times) {
        let figure = Figure::of("life of a command", "ms", *name, own).beside("flock(1)", &times[0]);
        println!("{name:24} p50 {:6.2} ms  {} × flock(1)", figure.median(), figure.ratio());
        report.note(figure);
    }
    for (name, url) in [("sqlite", format!("sqlite:{}", store.display())), ("redis", redis.url())] {
        let words = words(&[PROGRAM, "--url", &url, "run", "--ttl", "3s", "bench", "--", "sleep", "30"]);
        let memory = memory_of(&words);
        let shown: Vec<String> = memory.iter().map(Memory::to_string).collect();
        println!("memory of a run that has renewed its lease, {name}: {}", shown.join(", "));
        for process in memory {
            let figure = |measure: &str, kilobytes| Figure::of(measure, "kB", process.name.as_str(), &[kilobytes]);
            report.note(figure("resident memory", process.resident).setting(name));
            report.note(figure("resident memory of its own", process.own).setting(name));
        }
    }
    report.finish()
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

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// What a process takes, in kilobytes.
struct Memory {
    name: String,
    resident: f64,
    /// What no other process shares.
    own: f64,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} kB ({} kB of its own)", self.name, self.resident, self.own)
    }
}

/// The memory of the command and of its watchdog, as /proc tells it.
fn memory_of(words: &[String]) -> Vec<Memory> {
    let mut process = command(words).spawn().expect("the command runs");
    // Until it has settled, and renewed its lease of three seconds a few times.
    std::thread::sleep(Duration::from_secs(5));
    let of = |pid: &str| -> Option<Memory> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let kilobytes = |name: &str| field(name)?.split(' ').next()?.parse().ok();
        Some(Memory { name: field("Name:")?.to_owned(), resident: kilobytes("VmRSS:")?, own: kilobytes("RssAnon:")? })
    };
    let pid = process.id().to_string();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let all = std::iter::once(pid.as_str()).chain(children.split_whitespace()).filter_map(of).collect();
    let _ = process.kill();
    let _ = process.wait();
    all
}
