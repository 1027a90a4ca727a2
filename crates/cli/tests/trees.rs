//! Does anything of the work outlive its lock, whatever the work does to get away?
//!
//! One script starts a process of every kind at once: in other groups and sessions, deaf to TERM, orphaned, under an
//! inner run. Each test is one way of losing the lock, in one surrounding; an outsider then counts who is left, and a
//! second holder counts at the very moment when it has the lock.

#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use support::pty::{self, OnTerminal};
use support::witness::{Marked, exists, marked};
use support::{Lab, Said, finish, read_when_there, until};

/// The kinds of processes, each with the shell line that starts one in the background.
const KINDS: [(&str, &str); 8] = [
    ("plain", "sleep 1000 &"),
    ("deaf", "(trap '' TERM HUP INT; sleep 1000; sleep 1000) &"),
    ("timeout", "timeout 1000 sleep 1000 &"),
    ("job", "sh -c 'set -m; sleep 1000 & wait' &"),
    ("session", "setsid sleep 1000 &"),
    ("nohup", "nohup sleep 1000 >/dev/null 2>&1 &"),
    ("orphan", "setsid sh -c '(sleep 1000 &) ; exit 0' &"),
    ("nested", "\"$SYNCGUARD\" run --ttl 60s inner -- sleep 1000 &"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Surrounding {
    Pipe,
    Terminal,
    Process1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The store is taken away: no renewal gets through.
    Loss,
    /// The lock is released by somebody else.
    Theft,
    Kill,
    Stop,
    Term,
}

/// What we started ourselves.
enum Outer {
    Piped(Child),
    OnTerminal(OnTerminal),
}

impl Outer {
    fn finish(self) -> Said {
        match self {
            Self::Piped(child) => finish(child),
            Self::OnTerminal(terminal) => terminal.finish(),
        }
    }
}

/// A run around a tree of all kinds.
struct Tree {
    lab: Lab,
    mark: String,
    outer: Outer,
    /// The command, as seen from outside.
    command: Pid,
    url: String,
}

impl Tree {
    /// Starts one and waits until every kind is there.
    fn start(surrounding: Surrounding) -> Self {
        Self::start_on(surrounding, None)
    }

    fn start_on(surrounding: Surrounding, url: Option<String>) -> Self {
        let lab = Lab::new();
        let url = url.unwrap_or_else(|| lab.url());
        let mark = format!("{}-{}", std::process::id(), lab.dir.path().file_name().unwrap().to_str().unwrap());
        let script = script(&lab);
        let run = [
            env!("CARGO_BIN_EXE_syncguard"),
            "run",
            "--ttl",
            "9s",
            "--pass-lock-id",
            "k",
            "--",
            "env",
            &format!("TREE={mark}"),
            "sh",
            &script,
        ]
        .map(str::to_owned);
        let outer = surround(&lab, &url, surrounding, &run, &mark);
        until("every kind is there", || {
            let alive = marked("TREE", &mark);
            KINDS.iter().all(|(kind, _)| alive.iter().any(|one| one.kind == *kind && one.name == "sleep"))
        });
        let ours = marked("OUTER", &mark).into_iter().filter(|one| one.name == "syncguard" && one.kind.is_empty());
        let command = Pid::from_raw(ours.map(|one| one.pid).min().unwrap()).unwrap();
        Self { lab, mark, outer, command, url }
    }

    fn alive(&self) -> Vec<Marked> {
        marked("TREE", &self.mark)
    }

    fn on_our_store(&self, arguments: &[&str]) -> Child {
        self.lab.command(arguments).env("SYNCGUARD_URL", &self.url).spawn().unwrap()
    }

    /// The watchdog, unless the run is over.
    fn watchdog(&self) -> Option<Pid> {
        let all = marked("OUTER", &self.mark).into_iter();
        let ours = all.filter(|one| one.name == "lock-watchdog" && one.kind.is_empty()).map(|one| one.pid).next();
        ours.and_then(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.command, signal).unwrap();
    }

    /// Runs a holder that gets the lock next and counts who is alive then; its answer is the count.
    fn next_holder(&self, url: &str) -> Child {
        let count =
            format!("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^TREE={}$'; :", self.mark);
        let mut command = self.lab.command(["run", "-q", "-w", "60s", "k", "--", "sh", "-c", &count]);
        command.env("SYNCGUARD_URL", url).spawn().unwrap()
    }

    /// Brings the loss about, and returns the count of the next holder where there is one.
    fn lose(&self, cause: Cause) -> Option<Child> {
        match cause {
            Cause::Loss => {
                // All of it: what was written last stands in a file beside the store.
                for part in ["", "-wal", "-shm", "-queue"] {
                    let (from, to) =
                        (self.lab.path(&format!("locks.db{part}")), self.lab.path(&format!("away.db{part}")));
                    assert!(std::fs::rename(from, to).is_ok() || !part.is_empty());
                }
                Some(self.next_holder(&format!("sqlite:{}", self.lab.path("away.db").display())))
            }
            Cause::Theft => {
                let id = read_when_there(&self.lab.path("id"));
                finish(self.on_our_store(&["release", id.trim()]));
                None
            }
            Cause::Kill => {
                self.signal(Signal::KILL);
                Some(self.next_holder(&self.url))
            }
            Cause::Stop => {
                self.signal(Signal::STOP);
                Some(self.next_holder(&self.url))
            }
            Cause::Term => {
                self.signal(Signal::TERM);
                Some(self.next_holder(&self.url))
            }
        }
    }
}

/// The file that starts one of each kind and waits.
fn script(lab: &Lab) -> String {
    let path = lab.path("tree.sh");
    let id = lab.path("id");
    let mut text = format!("printf %s \"$SYNCGUARD_LOCK_ID\" >{0}.tmp; mv {0}.tmp {0}\n", id.display());
    for (kind, line) in KINDS {
        let _ = writeln!(text, "export KIND={kind}; {line}");
    }
    text.push_str("wait\nsleep 1000\n");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn surround(lab: &Lab, url: &str, surrounding: Surrounding, run: &[String], mark: &str) -> Outer {
    let plain = lab.command::<&str>([]);
    let mut command = match surrounding {
        Surrounding::Pipe | Surrounding::Terminal => Command::new(&run[0]),
        Surrounding::Process1 => Command::new("unshare"),
    };
    match surrounding {
        Surrounding::Pipe | Surrounding::Terminal => command.args(&run[1..]),
        Surrounding::Process1 => command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).args(run),
    };
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
        .env("SYNCGUARD_URL", url)
        .env("OUTER", mark)
        .env("SYNCGUARD", env!("CARGO_BIN_EXE_syncguard"))
        .env("TERM", "xterm");
    if surrounding == Surrounding::Terminal {
        return Outer::OnTerminal(pty::spawn(&mut command));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Outer::Piped(command.spawn().unwrap())
}

/// One cell for every kind: nobody is left, nobody was alive when the next holder had the lock, nothing was left as a
/// zombie.
fn nobody_outlives(surrounding: Surrounding, cause: Cause) {
    if surrounding == Surrounding::Process1 && !can_be_process_1() {
        eprintln!("SKIPPED: this user may not make a process namespace (unshare --pid)");
        return;
    }
    let tree = Tree::start(surrounding);
    let before: Vec<i32> = tree.alive().iter().map(|one| one.pid).collect();
    assert!(before.len() >= KINDS.len(), "{before:?}");

    let next = tree.lose(cause);

    until("nobody of the tree is alive", || tree.alive().is_empty());
    let next = next.map(finish);
    if let Some(next) = &next {
        assert_eq!(
            (next.code, next.stdout.as_str()),
            (Some(0), "0\n"),
            "{cause:?}: alive beside the next holder: {next:?}"
        );
    }
    if cause == Cause::Stop {
        tree.signal(Signal::CONT);
    }
    until("no zombie is left", || before.iter().all(|pid| !exists(*pid)));
    check_ending(surrounding, cause, &tree.outer.finish());
}

fn check_ending(surrounding: Surrounding, cause: Cause, said: &Said) {
    let text = format!("{}{}", said.stdout, said.stderr);
    match cause {
        Cause::Loss | Cause::Theft | Cause::Stop => {
            assert_eq!(said.code, Some(79), "{surrounding:?} {cause:?}: {said:?}");
            assert!(text.contains("LOST the lock k after "), "{said:?}");
        }
        // The shell itself dies from TERM. Where it cannot be seen as a signal it is the code that shells make of it.
        Cause::Term => assert!(said.signal == Some(15) || said.code == Some(143), "{said:?}"),
        Cause::Kill => {}
    }
}

fn can_be_process_1() -> bool {
    let status = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).status();
    status.is_ok_and(|status| status.success() && status.signal().is_none())
}

macro_rules! cells {
    ($(fn $name:ident() $surrounding:ident $cause:ident;)*) => {
        $(#[test]
        fn $name() {
            nobody_outlives(Surrounding::$surrounding, Cause::$cause);
        })*
    };
}

cells! {
    fn in_a_pipe_nobody_outlives_an_unreachable_store() Pipe Loss;
    fn in_a_pipe_nobody_outlives_a_lock_that_was_taken_away() Pipe Theft;
    fn in_a_pipe_nobody_outlives_a_killed_run() Pipe Kill;
    fn in_a_pipe_nobody_outlives_a_stopped_run() Pipe Stop;
    fn in_a_pipe_nobody_outlives_a_term() Pipe Term;
    fn on_a_terminal_nobody_outlives_an_unreachable_store() Terminal Loss;
    fn on_a_terminal_nobody_outlives_a_lock_that_was_taken_away() Terminal Theft;
    fn on_a_terminal_nobody_outlives_a_killed_run() Terminal Kill;
    fn on_a_terminal_nobody_outlives_a_stopped_run() Terminal Stop;
    fn on_a_terminal_nobody_outlives_a_term() Terminal Term;
    fn as_process_1_nobody_outlives_an_unreachable_store() Process1 Loss;
    fn as_process_1_nobody_outlives_a_lock_that_was_taken_away() Process1 Theft;
    fn as_process_1_nobody_outlives_a_killed_run() Process1 Kill;
    fn as_process_1_nobody_outlives_a_stopped_run() Process1 Stop;
    fn as_process_1_nobody_outlives_a_term() Process1 Term;
}

#[test]
fn nobody_outlives_a_killed_watchdog_and_that_is_said() {
    let tree = Tree::start(Surrounding::Pipe);

    rustix::process::kill_process(tree.watchdog().unwrap(), Signal::KILL).unwrap();
    until("nobody of the tree is alive", || tree.alive().is_empty());
    let said = tree.outer.finish();

    assert_eq!(said.code, Some(70), "{said:?}");
    assert!(said.stderr.contains("error: the watchdog was killed: the command was stopped"), "{said:?}");
    assert!(!tree.lab.is_locked("k"), "nothing is left, so it was given back");
}

#[test]
fn a_watchdog_that_was_stopped_does_not_keep_the_work_alive() {
    let tree = Tree::start(Surrounding::Pipe);

    rustix::process::kill_process(tree.watchdog().unwrap(), Signal::STOP).unwrap();
    let next = tree.lose(Cause::Loss).unwrap();
    until("nobody of the tree is alive", || tree.alive().is_empty());

    assert_eq!(finish(next).stdout, "0\n");
    assert_eq!(tree.outer.finish().code, Some(79));
}

/// Rounds at random: who of {the lock, the command, the watchdog} goes, how, and when. `SYNCGUARD_CAMPAIGN_ROUNDS=1000`
/// for a long one.
fn campaign(url: impl Fn(usize) -> Option<String> + Sync) {
    const AT_ONCE: usize = 3;
    let rounds = std::env::var("SYNCGUARD_CAMPAIGN_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let round = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if round >= rounds {
                        return;
                    }
                    if let Err(what) = one_round(round, url(round)) {
                        failed.lock().unwrap().push(what);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!("{rounds} rounds, {} failed", failed.len());
    assert!(failed.is_empty(), "{} of {rounds} rounds: {failed:#?}", failed.len());
}

fn one_round(round: usize, url: Option<String>) -> Result<(), String> {
    // Any mixture of the number will do: a failed round can be repeated by it.
    let mut random = u64::try_from(round + 1).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let tree = Tree::start_on(Surrounding::Pipe, url);
    let mut pids: Vec<i32> = tree.alive().iter().map(|one| one.pid).collect();
    pids.extend(tree.watchdog().map(|pid| pid.as_raw_nonzero().get()));
    std::thread::sleep(std::time::Duration::from_millis(below(1_500)));
    let cause = below(5);
    let next = match cause {
        0 => tree.lose(Cause::Theft),
        1 => tree.lose(Cause::Kill),
        2 => tree.lose(Cause::Stop),
        3 => tree.lose(Cause::Term),
        _ => {
            let signal = if below(2) == 0 { Signal::KILL } else { Signal::STOP };
            // On a starved machine the run may have given up by itself: that is a round too.
            tree.watchdog().map(|pid| rustix::process::kill_process(pid, signal));
            tree.lose(Cause::Term)
        }
    };
    let counted = next.map(finish).map(|said| said.stdout);
    if cause == 2 {
        tree.signal(Signal::CONT);
    }
    until("nobody of the tree is alive", || tree.alive().is_empty());
    tree.outer.finish();
    until("no zombie is left", || pids.iter().all(|pid| !exists(*pid)));
    match counted.as_deref() {
        None | Some("0\n") => Ok(()),
        other => Err(format!("round {round}, cause {cause}: alive beside the next holder: {other:?}")),
    }
}

#[test]
fn random_rounds_leave_nobody_on_sqlite() {
    campaign(|_| None);
}

#[test]
fn random_rounds_leave_nobody_on_redis() {
    let server = syncguard_testkit::RedisServer::start(syncguard_testkit::RedisOptions::new());
    campaign(|round| Some(format!("{}?prefix=round{round}", server.url())));
}
