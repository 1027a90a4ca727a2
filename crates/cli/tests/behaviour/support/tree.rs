//! A run around a tree of processes of every kind, and the ways in which it loses its lock.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use syncguard_testkit::{Fault, FaultProxy};

use super::pty::{self, OnTerminal};
use super::witness::{Marked, marked};
use super::{Lab, Said, finish, own, read_when_there, until};

/// The kinds of processes, each with the shell line that starts one in the background.
pub(crate) const KINDS: [(&str, &str); 8] = [
    ("plain", "sleep 1000 &"),
    ("deaf", "(trap '' TERM HUP INT; sleep 1000; sleep 1000) &"),
    ("timeout", "timeout 1000 sleep 1000 &"),
    ("job", "sh -c 'set -m; sleep 1000 & wait' &"),
    ("session", "setsid sleep 1000 &"),
    ("nohup", "nohup sleep 1000 >/dev/null 2>&1 &"),
    ("orphan", "setsid sh -c '(sleep 1000 &) ; exit 0' &"),
    ("nested", "\"$SYNCGUARD\" run --ttl 60s inner -- sleep 1000 &"),
];

const HIDE: &str = "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surrounding {
    Pipe,
    Terminal,
    Process1,
    /// `/proc` hides the processes of other users.
    Hidden,
    /// The work mounts something else over `/proc`.
    OverMounted,
}

impl Surrounding {
    /// Whether this user may make it; said where not.
    pub(crate) fn is_possible(self) -> bool {
        let arguments: &[&str] = match self {
            Self::Pipe | Self::Terminal => return true,
            Self::Process1 => &["--pid", "--fork", "--mount-proc", "true"],
            Self::Hidden => &["--mount", "mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc"],
            Self::OverMounted => &["--mount", "mount", "-t", "tmpfs", "none", "/proc"],
        };
        let status = Command::new("unshare").args(arguments).stderr(Stdio::null()).status();
        let is_possible = status.is_ok_and(|status| status.success());
        if !is_possible {
            eprintln!("SKIPPED: this user may not make the surrounding {self:?} (unshare {})", arguments.join(" "));
        }
        is_possible
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The store is taken away: no renewal gets through.
    Loss,
    /// The lock is released by somebody else.
    Theft,
    Kill,
    Stop,
    Term,
}

/// What we started ourselves.
pub(crate) enum Outer {
    Piped(Child),
    OnTerminal(OnTerminal),
}

impl Outer {
    pub(crate) fn finish(self) -> Said {
        match self {
            Self::Piped(child) => finish(child),
            Self::OnTerminal(terminal) => terminal.finish(),
        }
    }
}

/// A run around a tree of all kinds.
pub(crate) struct Tree {
    pub(crate) lab: Lab,
    mark: String,
    pub(crate) outer: Outer,
    /// The command, as seen from outside.
    pub(crate) command: Pid,
    /// The store, as everybody but the run reaches it.
    url: String,
    /// What the run reaches its server through, where there is one.
    link: Option<FaultProxy>,
}

impl Tree {
    /// Starts one and waits until every kind is there.
    pub(crate) fn start(surrounding: Surrounding) -> Self {
        Self::start_on(surrounding, None)
    }

    /// On a server: its port and its URL.
    pub(crate) fn start_on(surrounding: Surrounding, server: Option<(u16, String)>) -> Self {
        let lab = Lab::new();
        let link = server.as_ref().map(|(port, _)| FaultProxy::start(*port));
        let url = server.map_or_else(|| lab.url(), |(_, url)| url);
        let url_of_run = link.as_ref().map_or_else(|| url.clone(), |link| link.url(&url));
        let mark = format!("{}-{}", std::process::id(), lab.dir.path().file_name().unwrap().to_str().unwrap());
        let script = script(&lab);
        let run =
            [own(), "run", "--ttl", "9s", "--pass-lock-id", "k", "--", "env", &format!("TREE={mark}"), "sh", &script]
                .map(str::to_owned);
        let outer = surround(&lab, &url_of_run, surrounding, &run, &mark);
        until("every kind is there", || {
            let alive = marked("TREE", &mark);
            KINDS.iter().all(|(kind, _)| alive.iter().any(|one| one.kind == *kind && one.name == "sleep"))
        });
        let ours = marked("OUTER", &mark).into_iter().filter(|one| one.name == "syncguard" && one.kind.is_empty());
        let command = Pid::from_raw(ours.map(|one| one.pid).min().unwrap()).unwrap();
        Self { lab, mark, outer, command, url, link }
    }

    pub(crate) fn alive(&self) -> Vec<Marked> {
        marked("TREE", &self.mark)
    }

    fn on_our_store(&self, arguments: &[&str]) -> Child {
        self.lab.command(arguments).env("SYNCGUARD_URL", &self.url).spawn().unwrap()
    }

    /// The watchdog, unless the run is over.
    pub(crate) fn watchdog(&self) -> Option<Pid> {
        let all = marked("OUTER", &self.mark).into_iter();
        let ours = all.filter(|one| one.name == "lock-watchdog" && one.kind.is_empty()).map(|one| one.pid).next();
        ours.and_then(Pid::from_raw)
    }

    /// All processes with the mark among their arguments, which the command has and the work has not.
    pub(crate) fn found_by_their_words(&self) -> Vec<Pid> {
        let all = marked("OUTER", &self.mark).into_iter().filter(|one| {
            let words = std::fs::read(format!("/proc/{}/cmdline", one.pid)).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&format!("TREE={}", self.mark))
        });
        all.filter_map(|one| Pid::from_raw(one.pid)).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.command, signal).unwrap();
    }

    /// Runs a holder that gets the lock next and counts who is alive then; its answer is the count.
    pub(crate) fn next_holder(&self, url: &str) -> Child {
        let count =
            format!("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c '^TREE={}$'; :", self.mark);
        let mut command = self.lab.command(["run", "-q", "-w", "60s", "k", "--", "sh", "-c", &count]);
        command.env("SYNCGUARD_URL", url).spawn().unwrap()
    }

    /// Brings the loss about, and returns the count of the next holder where there is one.
    pub(crate) fn lose(&self, cause: Cause) -> Option<Child> {
        match cause {
            Cause::Loss if self.link.is_some() => {
                self.link.iter().for_each(|link| link.set(Fault::BlackHole));
                Some(self.next_holder(&self.url))
            }
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
    text.push_str("[ -z \"$OVER_MOUNT\" ] || mount -t tmpfs none /proc\n");
    for (kind, line) in KINDS {
        let _ = writeln!(text, "export KIND={kind}; {line}");
    }
    text.push_str("wait\nsleep 1000\n");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

pub(crate) fn surround(lab: &Lab, url: &str, surrounding: Surrounding, run: &[String], mark: &str) -> Outer {
    let mut command = match surrounding {
        Surrounding::Pipe | Surrounding::Terminal => lab.program(&run[0], &run[1..]),
        Surrounding::Process1 => lab.program("unshare", ["--pid", "--fork", "--kill-child", "--mount-proc"]),
        Surrounding::Hidden => lab.program("unshare", ["--mount", "sh", "-c", HIDE, "sh"]),
        Surrounding::OverMounted => lab.program("unshare", ["--mount"]),
    };
    if !matches!(surrounding, Surrounding::Pipe | Surrounding::Terminal) {
        command.args(run);
    }
    if surrounding == Surrounding::OverMounted {
        command.env("OVER_MOUNT", "1");
    }
    command.env("SYNCGUARD_URL", url).env("OUTER", mark).env("SYNCGUARD", own());
    if surrounding == Surrounding::Terminal {
        return Outer::OnTerminal(pty::spawn(&mut command));
    }
    Outer::Piped(command.spawn().unwrap())
}
