//! Who stops the child when we cannot?
//!
//! If `run` is killed, the kernel kills the child (`PR_SET_PDEATHSIG`) but not what the child started. If `run` is *stopped*
//! (SIGSTOP, a frozen cgroup), nobody renews and nobody kills: the child would run on past its lease. So `run` starts a
//! second process of itself that holds the other end of a pipe and knows the end of the lease. It kills the process group when the
//! pipe closes without a farewell, and when the lease ends without news. It needs no backend and holds no secret.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use syncguard::{BootTime, Clock, Guard, SystemClock};
use tokio::time::MissedTickBehavior;

use super::child::Target;
use super::supervise::Watched;
use crate::exit;
use crate::values::OnLost;

/// The hidden command.
pub(crate) const COMMAND: &str = "__watchdog";

/// All is well: exit without harm. Any other line is the lease's end on the boot clock, in milliseconds.
const FAREWELL: &str = "farewell";

/// Our end of it.
pub(crate) struct Watchdog {
    running: Option<(Child, ChildStdin)>,
    feeding: tokio::time::Interval,
}

impl Watchdog {
    /// Starts it where it can help: the child leads a group, and a loss means that it must stop.
    pub(crate) fn start(watched: &Watched<'_>, target: Target) -> Self {
        let every = (watched.lock.ttl().duration() / 6).clamp(Duration::from_millis(50), Duration::from_secs(5));
        let mut feeding = tokio::time::interval(every);
        feeding.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watchdog = Self { running: None, feeding };
        if let (OnLost::Kill, Target::Group(group)) = (watched.job.on_lost, target) {
            match spawn(group) {
                Ok(running) => watchdog.running = Some(running),
                Err(error) => watched.output.detail(&format!("no watchdog: {error}")),
            }
            watchdog.feed(watched.lock);
        }
        watchdog
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Resolves when it wants to be fed.
    pub(crate) async fn tick(&mut self) {
        self.feeding.tick().await;
    }

    /// Tells it how long the lease lasts now.
    pub(crate) fn feed(&mut self, lock: &Guard) {
        self.kill_in(lock.remaining());
    }

    /// Tells it when to kill unless it hears more.
    pub(crate) fn kill_in(&mut self, left: Duration) {
        let end = SystemClock.boot() + left;
        self.say(&end.since_start().as_millis().to_string());
    }

    /// Sends it home: the child has ended.
    pub(crate) fn dismiss(mut self) {
        self.say(FAREWELL);
        if let Some((mut process, pipe)) = self.running.take() {
            drop(pipe);
            let _ = process.wait();
        }
    }

    fn say(&mut self, line: &str) {
        let Some((_, pipe)) = &mut self.running else { return };
        if writeln!(pipe, "{line}").is_err() {
            self.running = None;
        }
    }
}

fn spawn(group: Pid) -> std::io::Result<(Child, ChildStdin)> {
    use std::os::unix::process::CommandExt;
    // The link leads to this very program even if its file was replaced meanwhile.
    let linux = std::path::Path::new("/proc/self/exe");
    let program = if linux.exists() { linux.to_owned() } else { std::env::current_exe()? };
    let mut process = Command::new(program)
        .arg0("syncguard")
        .arg(COMMAND)
        .arg(group.as_raw_nonzero().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Whatever is sent to our group, the watchdog outlives it.
        .process_group(0)
        .spawn()?;
    let pipe = process.stdin.take().ok_or_else(|| std::io::Error::other("no pipe"))?;
    Ok((process, pipe))
}

/// The second process: waits for news, and kills the group when there are none.
pub(crate) fn guard(group: i32) -> ExitCode {
    // 0 and 1 would mean our own group and everybody.
    let Some(group) = Pid::from_raw(group).filter(|_| group > 1) else { return ExitCode::from(exit::USAGE) };
    if listen() == News::Bad {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    ExitCode::from(exit::OK)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Good,
    Bad,
}

fn listen() -> News {
    let mut end: Option<BootTime> = None;
    let mut text = Vec::new();
    loop {
        if end.is_some_and(|end| SystemClock.boot() >= end) {
            return News::Bad;
        }
        if !is_readable(end) {
            continue;
        }
        let mut bytes = [0; 256];
        match std::io::stdin().read(&mut bytes) {
            Ok(0) | Err(_) => return News::Bad,
            Ok(length) => text.extend_from_slice(&bytes[..length]),
        }
        while let Some(newline) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=newline).collect();
            let line = String::from_utf8_lossy(&line);
            match line.trim_end() {
                FAREWELL => return News::Good,
                millis => {
                    end = millis.parse().ok().map(|millis| BootTime::from_start(Duration::from_millis(millis))).or(end);
                }
            }
        }
    }
}

/// Waits for news, for the lease's end, and never for long: the timer does not count a suspend, the boot clock does.
fn is_readable(end: Option<BootTime>) -> bool {
    let left = end.map_or(Duration::from_secs(1), |end| end.since(SystemClock.boot()));
    // A moment is added, or the last sleep would end just before the end and be followed by a burst of empty ones.
    let wait = left.min(Duration::from_secs(1)) + Duration::from_millis(1);
    let timeout =
        Timespec { tv_sec: i64::try_from(wait.as_secs()).unwrap_or(1), tv_nsec: i64::from(wait.subsec_nanos()) };
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => ready > 0,
        Err(_) => false,
    }
}
