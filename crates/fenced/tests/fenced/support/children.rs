//! How does a test become many processes?
//!
//! It starts its own binary again, asking for the same test and giving it a role. A child talks by lines that start
//! with `@`; what the test framework prints around them is not for us.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "SYNCGUARD_FENCED_TEST_ROLE";

/// What this process is to do, if it is a child.
pub(crate) fn role() -> Option<Vec<String>> {
    Some(std::env::var(ROLE).ok()?.split('\n').map(str::to_owned).collect())
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

/// A child of this test, killed when dropped.
pub(crate) struct Worker {
    child: Child,
    lines: BufReader<ChildStdout>,
    input: ChildStdin,
}

impl Worker {
    /// Starts the test `test` of this binary again, in a role.
    pub(crate) fn start(test: &str, role: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take().unwrap();
        Self { child, lines, input }
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
        writeln!(self.input, "{word}").unwrap();
    }

    /// Ends it with no chance to tidy up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Stops it, and returns when every one of its threads stands still: the signal alone only asks for that.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        for _ in 0..60_000 {
            if threads(self.child.id()).all(|state| state == 'T') {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the child did not stop within a minute");
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

/// The states of a process's threads, as the kernel shows them.
fn threads(process: u32) -> impl Iterator<Item = char> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.map(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
