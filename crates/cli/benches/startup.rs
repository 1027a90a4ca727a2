//! What does `syncguard run` cost beside `flock(1)`?
//!
//! `cargo xtask bench cli [--rounds N] [--json FILE]`: how long from the start of the command to that of its child, and
//! to its own end, when the child does nothing. One of each in turn, so that all of them meet the same machine: the
//! program that cargo builds, and that of the packages, which needs no dynamic linker. Then the memory of a `run` whose
//! command sleeps and whose lease is renewed.

use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify;
use syncguard_testkit::bench::{Figure, Options, Report, median};
use syncguard_testkit::{RedisOptions, RedisServer};

const PROGRAM: &str = env!("CARGO_BIN_EXE_syncguard");
const PEER: &str = "flock(1)";
/// How often everybody is started in a round, in turn; their median counts.
const STARTS: usize = 20;
/// They fill caches and make the store.
const WARM_UP: usize = 5;

fn main() -> ExitCode {
    let arguments = Options::new("cli").rounds(10).read();
    let starts = arguments.rounds() * STARTS;
    let mut report = Report::start(&arguments, arguments.rounds());
    let folder = tempfile::tempdir().expect("a folder can be made");
    let redis = RedisServer::start(RedisOptions::new());
    let urls = [("sqlite", format!("sqlite:{}", folder.path().join("locks.db").display())), ("redis", redis.url())];
    let child = Child::new(folder.path());
    let contenders = contenders(&child, &urls, &folder.path().join("flock"));
    let mut lives = vec![Vec::with_capacity(starts); contenders.len()];
    for start in 0..starts + WARM_UP {
        for (contender, lives) in contenders.iter().zip(&mut lives) {
            let life = contender.life(&child);
            if start >= WARM_UP {
                lives.push(life);
            }
        }
    }
    tell(&contenders, &lives, &mut report);
    for (name, url) in urls {
        tell_memory(name, &url, &mut report);
    }
    report.finish()
}

struct Contender {
    name: String,
    words: Vec<String>,
    runs_the_child: bool,
}

/// How long it took, in milliseconds.
#[derive(Clone, Copy)]
struct Life {
    to_the_child: f64,
    to_the_end: f64,
}

fn contenders(child: &Child, urls: &[(&str, String)], file: &Path) -> Vec<Contender> {
    let of = |name: String, before: &[&str], runs_the_child: bool| {
        let words = before.iter().copied().chain(runs_the_child.then_some(child.path.as_str()));
        Contender { name, words: words.map(str::to_owned).collect(), runs_the_child }
    };
    let mut all = vec![of(PEER.to_owned(), &["flock", &file.display().to_string()], true)];
    let packaged = std::env::var("SYNCGUARD_PACKAGED").ok();
    if packaged.is_none() {
        println!(
            "without the program of the packages: SYNCGUARD_PACKAGED names none, `cargo xtask bench cli` builds it"
        );
    }
    let programs = [(Some(PROGRAM.to_owned()), ""), (packaged, ", packaged")];
    for (program, made) in programs.iter().filter_map(|(program, made)| Some((program.as_deref()?, made))) {
        all.push(of(format!("syncguard --version{made}"), &[program, "--version"], false));
        all.extend(urls.iter().map(|(kind, url)| {
            of(format!("syncguard run, {kind}{made}"), &[program, "--url", url, "run", "bench", "--"], true)
        }));
    }
    all
}

impl Contender {
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
    fn life(&self, child: &Child) -> Life {
        let started = Instant::now();
        let status = command(&self.words).status().expect("the contender runs");
        let to_the_end = millis(started.elapsed());
        assert!(status.success(), "{} failed", self.name);
        let to_the_child = if self.runs_the_child { millis(child.started() - started) } else { f64::NAN };
        Life { to_the_child, to_the_end }
    }
}

/// A program that does nothing, and when it was run.
struct Child {
    path: String,
    moments: mpsc::Receiver<Instant>,
}

impl Child {
    fn new(folder: &Path) -> Self {
        let path = folder.join("true");
        let original = ["/usr/bin/true", "/bin/true"].into_iter().find(|path| Path::new(path).exists());
        std::fs::copy(original.expect("there is true(1)"), &path).expect("it can be copied");
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).expect("a file can be watched");
        inotify::add_watch(&watch, &path, inotify::WatchFlags::OPEN).expect("a file can be watched");
        let (sender, moments) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 512];
            let mut events = inotify::Reader::new(watch, &mut buffer);
            #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
            while events.next().is_ok() && sender.send(Instant::now()).is_ok() {}
        });
        Self { path: path.display().to_string(), moments }
    }

    /// When it was run: the kernel opened its file, and nobody else did.
    fn started(&self) -> Instant {
        let moment = self.moments.recv_timeout(Duration::from_secs(10)).expect("the child was run");
        assert!(self.moments.try_recv().is_err(), "the child was opened twice");
        moment
    }
}

fn tell(contenders: &[Contender], lives: &[Vec<Life>], report: &mut Report) {
    println!(
        "\n== from the start of the command to that of its child (ms, and relative to flock(1) in the same round)"
    );
    report.extend(figures("start of the child", contenders, lives, |life| life.to_the_child));
    println!("  reach: ≤ 2.5 (sqlite) and 2 (redis) × flock(1)");
    println!("\n== the whole life of the command, whose child does nothing");
    report.extend(figures("life of a command", contenders, lives, |life| life.to_the_end));
    println!();
}

/// One figure for each contender that has it; they are printed too.
fn figures(measure: &str, contenders: &[Contender], lives: &[Vec<Life>], of: fn(&Life) -> f64) -> Vec<Figure> {
    let by_round = |lives: &[Life]| {
        let medians = lives.chunks(STARTS).map(|round| median(&round.iter().map(of).collect::<Vec<_>>()));
        medians.collect::<Vec<f64>>()
    };
    let peer = by_round(&lives[0]);
    let all = contenders.iter().zip(lives).map(|(contender, lives)| {
        let figure = Figure::of(measure, "ms", contender.name.as_str(), &by_round(lives)).beside(PEER, &peer);
        (!figure.median().is_nan()).then(|| {
            println!("  {:32} {:6.2}   {} × flock(1)", contender.name, figure.median(), figure.ratio());
            figure
        })
    });
    all.flatten().collect()
}

fn tell_memory(name: &str, url: &str, report: &mut Report) {
    let words = [PROGRAM, "--url", url, "run", "--ttl", "3s", "bench", "--", "sleep", "30"].map(str::to_owned);
    let memory = memory_of(&words);
    let shown: Vec<String> = memory.iter().map(Memory::to_string).collect();
    println!("memory of a run that has renewed its lease, {name}: {}", shown.join(", "));
    for process in memory {
        let figure = |measure: &str, kilobytes| Figure::of(measure, "kB", process.name.as_str(), &[kilobytes]);
        report.note(figure("resident memory", process.resident).setting(name));
        report.note(figure("resident memory of its own", process.own).setting(name));
    }
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
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
