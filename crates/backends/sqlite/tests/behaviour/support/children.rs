//! How does a test become many processes?
//!
//! It starts its own binary again, asking for the same test and giving it a role. A child talks by lines that start
//! with `@`; what the test framework prints around them is not for us.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

const ROLE: &str = "SYNCGUARD_TEST_CHILD";
const FILE: &str = "SYNCGUARD_TEST_FILE";

/// The file that this process works on, if it is a child.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, PathBuf::from(std::env::var_os(FILE)?)))
}

/// Says something to the parent.
pub(crate) fn say(words: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{words}").unwrap();
    out.flush().unwrap();
}

/// Waits for a word from the parent.
pub(crate) fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// A child of this test.
pub(crate) struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
    /// The copy that another user runs.
    binary: Option<TempDir>,
}

/// Another user of this machine: a user and group of its own, and a member of the group `group`.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

impl Worker {
    /// Starts the test `test` of this binary again, in a role.
    pub(crate) fn start(test: &str, role: &str, file: &Path) -> Self {
        Self::spawn(Command::new(std::env::current_exe().unwrap()), test, role, file)
    }

    /// The same as another user, who can read little of this machine: the binary goes into a directory open to all.
    /// Its umask would close new files to everybody else.
    pub(crate) fn start_as(user: User, test: &str, role: &str, file: &Path) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        let binary = place.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={}", user.id), format!("--regid={}", user.id), format!("--groups={}", user.group)])
            .args(["sh", "-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(&binary)
            .current_dir("/");
        let mut worker = Self::spawn(command, test, role, file);
        worker.binary = Some(place);
        worker
    }

    /// The same in another boot of the machine, as far as the child can see; an empty file hides which boot it is. It takes
    /// root. The file must stay until the child has ended.
    pub(crate) fn start_in_boot(boot_id: &Path, test: &str, role: &str, file: &Path) -> Self {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\""])
            .arg(boot_id)
            .arg(std::env::current_exe().unwrap());
        Self::spawn(command, test, role, file)
    }

    fn spawn(mut command: Command, test: &str, role: &str, file: &Path) -> Self {
        let mut child = command
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        Self { child, lines, input, binary: None }
    }

    /// The next line the child says; none when it ended.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            // A child that was killed in the middle of a line did not say it.
            if let Some(words) = line.strip_prefix('@').and_then(|words| words.strip_suffix('\n')) {
                return Some(words.to_owned());
            }
        }
    }

    pub(crate) fn tell(&mut self, word: &str) {
        writeln!(self.input.as_mut().unwrap(), "{word}").unwrap();
    }

    /// Ends it with no chance to tidy up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Stops it, and returns when every one of its threads stands still: the signal alone only asks for that.
    pub(crate) fn stop(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        for _ in 0..10_000 {
            if threads(self.child.id()).all(|state| state == 'T') {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("the child did not stop within ten seconds");
    }

    /// Waits until it is gone and says whether it ended well.
    pub(crate) fn ended_well(&mut self) -> bool {
        drop(self.input.take());
        self.child.wait().unwrap().success()
    }
}

/// The states of a process's threads, as the kernel shows them.
fn threads(process: u32) -> impl Iterator<Item = char> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let after_name = stat.rsplit_once(") ").unwrap().1;
        after_name.chars().next().unwrap()
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
