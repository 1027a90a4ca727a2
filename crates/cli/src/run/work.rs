//! How does the command speak with its watchdog, and what if nobody answers?
//!
//! Orders go out, events come in; the work itself is a child of the watchdog. When the watchdog is gone, or does not do
//! in time what it was told, everything below it has come home to us (or does so when we kill it), and we end it
//! ourselves.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use syncguard::{BootTime, Clock, SystemClock};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::orphans;
use super::proc;
use super::protocol::{self, Event, Order};
use super::tree::{self, Killing, Process};
use super::watchdog::{self, Plan};
use crate::exit::{self, Failure};
use crate::output::escape;

/// The watchdog before the runtime exists.
pub(crate) struct Forked {
    socket: OwnedFd,
    /// Children that we had before: not ours to end.
    strangers: Vec<i32>,
}

/// Forks the watchdog. The caller is the only thread of this process.
pub(crate) fn fork(plan: Plan) -> std::io::Result<Forked> {
    // Both of us keep it, whatever the work mounts over it.
    proc::open();
    // A caller that ignored SIGCHLD would let the kernel collect our children before we could.
    crate::sys::set_default(Signal::CHILD);
    let strangers = if orphans::reap() { tree::children() } else { Vec::new() };
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let (ours, theirs) = protocol::pair()?;
    match crate::sys::fork()? {
        Some(pid) => {
            orphans::watch(pid);
            Ok(Forked { socket: ours, strangers })
        }
        None => {
            drop(ours);
            watchdog::guard(theirs, plan)
        }
    }
}

/// What would keep the promise from being whole, if anything does.
pub(crate) fn shortcoming() -> Option<&'static str> {
    if !tree::can_be_listed() {
        return Some(
            "/proc is not there, or is of another process namespace, so processes that leave the command's group cannot be found",
        );
    }
    if proc::hides() {
        return Some("/proc hides processes of other users (hidepid), so not all of them can be found");
    }
    match rustix::process::child_subreaper() {
        Ok(Some(_)) => None,
        _ => Some("this system has no child subreapers, so processes that become daemons cannot be found"),
    }
}

/// Our end of the pair.
pub(crate) struct Work {
    socket: AsyncFd<OwnedFd>,
    strangers: Vec<i32>,
    /// Whether anything may be running below the watchdog.
    is_working: bool,
    /// The process that was started.
    pub(crate) pid: Option<i32>,
}

impl Work {
    pub(crate) fn new(forked: Forked) -> std::io::Result<Self> {
        let Forked { socket, strangers } = forked;
        Ok(Self { socket: crate::sys::awaited(socket)?, strangers, is_working: false, pid: None })
    }

    fn tell(&self, order: &Order) {
        // A watchdog that does not listen is noticed by what does not happen.
        let _ = protocol::send(self.socket.get_ref(), order);
    }

    pub(crate) fn start(&mut self, lease_left: Option<Duration>, variables: Vec<(String, String)>) {
        self.is_working = true;
        self.pid = None;
        self.tell(&Order::Start { lease_ends: lease_left.map(in_millis), variables });
    }

    pub(crate) fn renewed(&self, lease_left: Duration) {
        self.tell(&Order::Renewed { lease_ends: in_millis(lease_left) });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.tell(&Order::Signal(signal.as_raw()));
    }

    /// Tells everything to stop, and kills it after that long.
    pub(crate) fn end(&self, kill_in: Duration) {
        self.tell(&Order::End { kill_at: in_millis(kill_in) });
    }

    /// What happened next; `None` when the watchdog is gone.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        let event = self.socket.async_io(Interest::READABLE, |socket| match protocol::receive(socket) {
            Err(Errno::WOULDBLOCK) => Err(std::io::ErrorKind::WouldBlock.into()),
            other => Ok(other),
        });
        let event = event.await.ok()?.ok()?;
        match &event {
            Some(Event::Started { pid }) => self.pid = Some(*pid),
            Some(Event::Empty | Event::Failed { .. } | Event::Survivors(_)) => self.is_working = false,
            _ => {}
        }
        event
    }

    /// Ends everything without the watchdog, and returns what could not be ended.
    pub(crate) async fn take_over(&mut self) -> Vec<Process> {
        let mut killing = Killing::new();
        let survivors = loop {
            // The watchdog is below us too, and when it is gone its children are ours.
            if let Some(survivors) = killing.round(&self.strangers) {
                break survivors;
            }
            if !tree::can_be_listed() {
                self.kill_the_group();
            }
            if !orphans::reap() {
                break Vec::new();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        self.is_working = false;
        survivors
    }

    /// Sends the watchdog away for good: what is left below it becomes ours, and we see it end.
    pub(crate) fn bring_home(&mut self) {
        self.is_working = false;
        orphans::dismiss();
    }

    /// Kills what is left once more, and says whether anything is.
    pub(crate) fn kill_what_is_left(&self) -> bool {
        tree::signal_below_us(Signal::KILL, &self.strangers);
        orphans::reap() && (self.strangers.is_empty() || tree::is_anybody_below_us(&self.strangers))
    }

    fn kill_the_group(&self) {
        orphans::dismiss();
        if let Some(group) = self.pid.and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }

    /// Sends the watchdog away, if nothing is left for it to watch and nothing will be started any more. It ends while the
    /// locks are given back, and whoever waits for us does not wait for that.
    pub(crate) fn no_more(&self) {
        if !self.is_working {
            orphans::send_away();
        }
    }

    /// Lets go of whatever is still running.
    pub(crate) fn leave(&mut self) {
        self.is_working = false;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // While something runs the watchdog must live: it sees the socket close, and ends the work.
        if !self.is_working {
            orphans::dismiss();
        }
    }
}

/// Why the work was not started.
pub(crate) fn not_started(program: &str, errno: i32) -> Failure {
    let program = escape(program);
    let error = std::io::Error::from_raw_os_error(errno);
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(exit::NOT_FOUND, "not-found", format!("{program}: command not found"))
                .hint("there is no shell in between: use -c 'COMMAND …' for shell syntax")
        }
        std::io::ErrorKind::TimedOut => {
            Failure::new(exit::LOST, "lost", "the lease ended before the command could be started")
        }
        _ => Failure::new(exit::NOT_EXECUTABLE, "not-executable", format!("{program}: cannot be executed: {error}")),
    }
}

fn in_millis(left: Duration) -> u64 {
    let moment: BootTime = SystemClock.boot() + left;
    u64::try_from(moment.since_start().as_millis()).unwrap_or(u64::MAX)
}
