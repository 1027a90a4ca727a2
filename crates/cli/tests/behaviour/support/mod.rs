//! How is the real command run in a test?
//!
//! As a process with an environment of its own and an embedded store in a directory of its own. Waits are loops with a
//! bound; what a test waits for is named, so that a failure says what did not happen.

#![allow(dead_code, reason = "each test file uses its part")]

#[cfg(feature = "firestore")]
mod emulator;
pub(crate) mod pty;
pub(crate) mod sudo;
pub(crate) mod tree;
pub(crate) mod witness;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use syncguard::{Clock, SystemClock};
use tempfile::TempDir;

/// A directory, with a store in it unless the locks are elsewhere.
pub(crate) struct Lab {
    pub(crate) dir: TempDir,
    url: Option<String>,
    #[cfg(feature = "firestore")]
    emulator: Option<emulator::Emulator>,
}

/// The command that is tested.
pub(crate) fn own() -> &'static str {
    env!("CARGO_BIN_EXE_syncguard")
}

/// How a command ended and what it said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            url: None,
            #[cfg(feature = "firestore")]
            emulator: None,
        }
    }

    /// A lab whose locks are on a server.
    pub(crate) fn on(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::new() }
    }

    /// A lab on every backend whose server can be had everywhere, each in a place of its own.
    pub(crate) fn on_each_backend() -> Vec<(&'static str, Self)> {
        vec![
            ("sqlite", Self::new()),
            #[cfg(feature = "redis")]
            ("redis", Self::on_redis()),
            #[cfg(feature = "postgres")]
            ("postgres", Self::on(syncguard_testkit::fresh_postgres_database())),
            #[cfg(feature = "firestore")]
            ("firestore", Self::on_firestore()),
        ]
    }

    /// A lab on an emulator of its own, which ends with the lab.
    #[cfg(feature = "firestore")]
    fn on_firestore() -> Self {
        let emulator = emulator::Emulator::start();
        Self { url: Some(emulator.url()), emulator: Some(emulator), ..Self::new() }
    }

    /// A lab on the shared Redis, under a prefix that nobody else has.
    #[cfg(feature = "redis")]
    pub(crate) fn on_redis() -> Self {
        let lab = Self::new();
        let name = lab.dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
        Self::on(format!("{}?prefix=cli-{}-{name}", syncguard_testkit::redis_url(), std::process::id()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("locks.db")
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("sqlite:{}", self.store().display()))
    }

    pub(crate) fn is_on_a_server(&self) -> bool {
        self.url.is_some()
    }

    /// The command, on this lab's store, seeing nothing of the tester's environment.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        self.program(own(), arguments)
    }

    /// The command without a URL.
    pub(crate) fn bare<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(arguments);
        command.env_remove("SYNCGUARD_URL");
        command
    }

    /// A shell, or what else starts the command, with the surroundings of [`command`](Self::command): the one place that
    /// makes them. Neither the tester's environment nor their home, configuration and stores, nor those of the machine.
    pub(crate) fn program<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.dir.path())
            .env("USER", "ci")
            .env("TERM", "xterm")
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("SYNCGUARD_TEST_ROOT", self.path("machine"))
            .env("SYNCGUARD_URL", self.url())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn say<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        finish(self.command(arguments).spawn().unwrap())
    }

    /// Starts a holder whose child lives until it is told otherwise, and waits until it runs.
    pub(crate) fn hold(&self, arguments: &[&str], key: &str) -> Running {
        let started = self.path(&format!("started-{key}").replace(':', "-"));
        let script = format!("echo $$ >{0}.tmp && mv {0}.tmp {0}; exec sleep 60", started.display());
        let all = [&["run"], arguments, &[key, "--", "sh", "-c", &script]].concat();
        let process = self.command(all).spawn().unwrap();
        let child = read_when_there(&started).trim().parse().unwrap();
        Running { process, child: Pid::from_raw(child).unwrap() }
    }

    /// Takes many locks, without commands.
    pub(crate) fn hold_many(&self, count: usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locker = syncguard::connect(&self.url()).await.unwrap();
            let take = |number| locker.lock(format!("many:{number}")).ttl(Duration::from_secs(3600)).acquire();
            let numbers: Vec<usize> = (0..count).collect();
            for some in numbers.chunks(100) {
                let taken = futures_util::future::join_all(some.iter().map(take)).await;
                for guard in taken {
                    let _ = guard.unwrap().leak();
                }
            }
        });
    }

    /// The answer of a command as JSON: every line of it.
    pub(crate) fn json<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Vec<serde_json::Value> {
        let said = self.say(arguments.into_iter().chain(["--json"]));
        said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn is_locked(&self, key: &str) -> bool {
        self.say(["status", key]).code == Some(0)
    }
}

/// A `run` under way.
pub(crate) struct Running {
    pub(crate) process: Child,
    pub(crate) child: Pid,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn finish(self) -> Said {
        finish(self.process)
    }
}

pub(crate) fn finish(process: Child) -> Said {
    let output = process.wait_with_output().unwrap();
    Said {
        code: output.status.code(),
        signal: output.status.signal(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits for something, for a minute at most.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = SystemClock.boot();
    // Looking at every process of the machine is work, and takes time from those that are waited for.
    let mut pause = Duration::from_millis(3);
    while !holds() {
        assert!(SystemClock.boot().since(start) < Duration::from_secs(60), "did not happen: {what}");
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(50));
    }
}

pub(crate) fn read_when_there(path: &Path) -> String {
    until(&format!("{} appears", path.display()), || path.exists());
    std::fs::read_to_string(path).unwrap()
}

/// Whether a process exists and is more than an entry that nobody has collected.
pub(crate) fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// The processes of a group that are alive.
pub(crate) fn members(group: Pid) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(')') else { return false };
        let fields: Vec<&str> = rest.split_whitespace().collect();
        !matches!(fields.first(), Some(&("Z" | "X")) | None)
            && fields.get(2) == Some(&group.as_raw_nonzero().to_string().as_str())
    })
    .collect()
}
