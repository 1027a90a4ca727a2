//! Who stops the child when we cannot?
//!
//! If `run` is killed, the kernel kills the child (`PR_SET_PDEATHSIG`) but not what the child started. If `run` is *stopped*
//! (SIGSTOP, a frozen cgroup), nobody renews and nobody kills: the child would run on past its lease. So `run` starts a
//! second process of itself that holds the other end of a pipe and knows the end of the lease. It kills the process group when the
//! pipe closes without a farewell, and when the lease ends without news. It needs no backend and holds no secret.
//!
//! It is there before the child, and the child tells it its group before it becomes the command: there is no moment in
//! which the command runs unguarded.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use syncguard::{BootTime, Clock, Guard, SystemClock};
use tokio::time::MissedTickBehavior;

use super::Job;
use crate::exit;
use crate::output::Output;
use crate::values::OnLost;

/// The hidden command.
pub(crate) const COMMAND: &str = "__watchdog";

/// One message through the pipe. Records have one size and are written whole, so they cannot mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The child leads this process group.
    Group(i64),
    /// The lease ends then: milliseconds on the boot clock.
    End(i64),
    /// The child has ended: exit without harm.
    Farewell,
}

const RECORD: usize = 9;

impl News {
    fn encode(self) -> [u8; RECORD] {
        let (tag, value) = match self {
            Self::Group(pid) => (b'g', pid),
            Self::End(millis) => (b'e', millis),
            Self::Farewell => (b'f', 0),
        };
        let mut record = [tag; RECORD];
        record[1..].copy_from_slice(&value.to_le_bytes());
        record
    }

    fn decode(record: [u8; RECORD]) -> Option<Self> {
        let [tag, value @ ..] = record;
        let value = i64::from_le_bytes(value);
        match tag {
            b'g' => Some(Self::Group(value)),
            b'e' => Some(Self::End(value)),
            b'f' => Some(Self::Farewell),
            _ => None,
        }
    }
}

/// Our end of it.
pub(crate) struct Watchdog {
    running: Option<(Child, ChildStdin)>,
    feeding: tokio::time::Interval,
}

impl Watchdog {
    /// Starts it where it can help: the child will lead a group, and a loss means that it must stop.
    pub(crate) fn start(job: &Job, lock: &Guard, output: Output) -> Self {
        let every = (lock.ttl().duration() / 6).clamp(Duration::from_millis(50), Duration::from_secs(5));
        let mut feeding = tokio::time::interval(every);
        feeding.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watchdog = Self { running: None, feeding };
        if job.own_group && job.on_lost == OnLost::Kill {
            match spawn() {
                Ok(running) => watchdog.running = Some(running),
                Err(error) => output.detail(&format!("no watchdog: {error}")),
            }
            watchdog.feed(lock);
        }
        watchdog
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// A way for the child to introduce itself.
    pub(crate) fn introduction(&self) -> Option<Introduction> {
        use std::os::fd::AsFd;
        let (_, pipe) = self.running.as_ref()?;
        pipe.as_fd().try_clone_to_owned().ok().map(Introduction)
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
        let end = (SystemClock.boot() + left).since_start().as_millis();
        self.say(News::End(i64::try_from(end).unwrap_or(i64::MAX)));
    }

    /// Sends it home: the child has ended.
    pub(crate) fn dismiss(mut self) {
        self.say(News::Farewell);
        if let Some((mut process, pipe)) = self.running.take() {
            drop(pipe);
            let _ = process.wait();
        }
    }

    fn say(&mut self, news: News) {
        let Some((_, pipe)) = &mut self.running else { return };
        if pipe.write_all(&news.encode()).is_err() {
            self.running = None;
        }
    }
}

/// The child's end of the pipe between fork and exec; exec closes it.
pub(crate) struct Introduction(OwnedFd);

impl Introduction {
    /// Tells the watchdog the caller's process group. Allocates nothing and takes no lock: it runs after a fork.
    pub(crate) fn of_this_process(&self) -> std::io::Result<()> {
        let pid = i64::from(rustix::process::getpid().as_raw_nonzero().get());
        rustix::io::write(&self.0, &News::Group(pid).encode())?;
        Ok(())
    }
}

fn spawn() -> std::io::Result<(Child, ChildStdin)> {
    use std::os::unix::process::CommandExt;
    // The link leads to this very program even if its file was replaced meanwhile.
    let linux = std::path::Path::new("/proc/self/exe");
    let program = if linux.exists() { linux.to_owned() } else { std::env::current_exe()? };
    let mut process = Command::new(program)
        .arg0("syncguard")
        .arg(COMMAND)
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
pub(crate) fn guard() -> ExitCode {
    let mut heard = Heard::default();
    if !heard.listen() {
        // 0 and 1 would mean our own group and everybody.
        let group = heard.group.filter(|group| *group > 1).and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
    ExitCode::from(exit::OK)
}

/// What the second process knows.
#[derive(Default)]
struct Heard {
    group: Option<i32>,
    end: Option<BootTime>,
}

impl Heard {
    /// Listens until all is over, and says whether it went well.
    fn listen(&mut self) -> bool {
        let mut text = Vec::new();
        loop {
            if self.group.is_some() && self.end.is_some_and(|end| SystemClock.boot() >= end) {
                return false;
            }
            if !self.is_readable() {
                continue;
            }
            let mut bytes = [0; 256];
            match std::io::stdin().read(&mut bytes) {
                Ok(0) | Err(_) => return false,
                Ok(length) => text.extend_from_slice(&bytes[..length]),
            }
            while let Some(record) = text.first_chunk::<RECORD>().copied() {
                text.drain(..RECORD);
                match News::decode(record) {
                    Some(News::Farewell) => return true,
                    Some(News::Group(pid)) => self.group = i32::try_from(pid).ok(),
                    Some(News::End(millis)) => {
                        let millis = u64::try_from(millis).unwrap_or(0);
                        self.end = Some(BootTime::from_start(Duration::from_millis(millis)));
                    }
                    None => {}
                }
            }
        }
    }

    /// Waits for news, for the lease's end, and never for long: the timer does not count a suspend, the boot clock does.
    fn is_readable(&self) -> bool {
        let left = self.end.map_or(Duration::from_secs(1), |end| end.since(SystemClock.boot()));
        // A moment is added, or the last sleep would end just before the end and be followed by a burst of empty ones.
        let wait = left.min(Duration::from_secs(1)) + Duration::from_millis(1);
        let seconds = i64::try_from(wait.as_secs()).unwrap_or(1);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: i64::from(wait.subsec_nanos()) };
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_survive_the_pipe() {
        for news in [News::Group(41_877), News::End(i64::MAX), News::Farewell] {
            assert_eq!(News::decode(news.encode()), Some(news));
        }
        assert_eq!(News::decode([b'x'; RECORD]), None);
    }
}
