//! Who ends the work when the command cannot?
//!
//! A second process, forked from the command before it has threads or a backend. It is the parent of the work and a
//! child subreaper, so that every descendant comes home to it. It knows when the lease ends and ends the work before
//! that unless it hears of a renewal, also when the command was killed (the socket closes) or stopped. If it is killed
//! itself, the command, a subreaper above it, inherits the work and ends it ([`super::work`]).
//!
//! It needs no backend and keeps no secret; it blocks every signal, leads a group of its own, and never waits for
//! anybody.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use syncguard::{BootTime, Clock, SystemClock};

use super::environment;
use super::protocol::{self, Event, Order};
use super::tree::{self, Killing, Process};
use crate::exit::{self, Failure};
use crate::messages;
use crate::output::Output;
use crate::sys::{self, Mask};

/// How often those that were killed are looked for again.
const ROUND: Duration = Duration::from_millis(10);

/// What is known before the fork and never changes.
pub(crate) struct Plan {
    pub(crate) command: Vec<OsString>,
    /// Whether the work is not to see what leads to the backend.
    pub(crate) clear_backend_env: bool,
    /// The group that the work joins; `None` for one of its own.
    pub(crate) group: Option<Pid>,
    /// The signal mask that the work starts with: the one that we were given.
    pub(crate) mask: Mask,
    pub(crate) kill_after: Duration,
    pub(crate) output: Output,
}

/// What is kept of the lease beyond the KILL: a busy machine takes its time to carry out a signal.
pub(crate) fn margin(kill_after: Duration) -> Duration {
    (kill_after / 5).min(Duration::from_millis(200))
}

/// The life of the second process.
pub(crate) fn guard(socket: OwnedFd, plan: Plan) -> ! {
    let code = match Guarding::new(socket, plan) {
        Ok(mut guarding) => guarding.stand(),
        Err(_) => exit::INTERNAL,
    };
    std::process::exit(i32::from(code))
}

struct Guarding {
    socket: OwnedFd,
    timer: OwnedFd,
    children: OwnedFd,
    plan: Plan,
    /// The process that was started, until it has ended.
    child: Option<Pid>,
    /// The group that it leads, if it leads one; for machines where processes cannot be listed.
    group: Option<Pid>,
    /// Whether anything of the work may be left.
    is_working: bool,
    lease_ends: Option<BootTime>,
    /// When the work, told to stop, is killed.
    kill_at: Option<BootTime>,
    killing: Option<Killing>,
    command_is_gone: bool,
}

impl Guarding {
    fn new(socket: OwnedFd, plan: Plan) -> std::io::Result<Self> {
        // The mask first: from here on only KILL and STOP can touch us.
        Mask::full().block()?;
        // Whatever is sent to the command's group, we outlive it.
        let _ = rustix::process::setpgid(None, None);
        // `pkill -9 syncguard` shall not find both of us at once, nor `pkill -9 -f` with a word of the command line.
        let _ = rustix::thread::set_name(c"lock-watchdog");
        sys::show_as("lock-watchdog");
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let children = Mask::of([Signal::CHILD]).file()?;
        Ok(Self {
            socket,
            timer,
            children,
            plan,
            child: None,
            group: None,
            is_working: false,
            lease_ends: None,
            kill_at: None,
            killing: None,
            command_is_gone: false,
        })
    }

    /// Watches until the command needs us no longer.
    fn stand(&mut self) -> u8 {
        loop {
            self.hear();
            self.reap();
            self.act();
            if self.command_is_gone && !self.is_working {
                return exit::OK;
            }
            self.sleep();
        }
    }

    fn tell(&self, event: &Event) {
        let _ = protocol::send(&self.socket, event);
    }

    fn hear(&mut self) {
        while !self.command_is_gone {
            match protocol::receive(&self.socket) {
                Ok(Some(order)) => self.obey(order),
                Err(Errno::WOULDBLOCK | Errno::INTR) => return,
                Ok(None) | Err(_) => {
                    self.command_is_gone = true;
                    if self.is_working {
                        self.end_by(now() + self.plan.kill_after);
                    }
                }
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start { lease_ends, variables } => self.start(lease_ends.map(moment), variables),
            Order::Renewed { lease_ends } => self.lease_ends = Some(moment(lease_ends)),
            Order::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.pass_on(signal);
                }
            }
            Order::End { kill_at } if self.is_working => self.end_by(moment(kill_at)),
            Order::End { .. } => {}
        }
    }

    /// The last moment for a KILL.
    fn latest(&self) -> Option<BootTime> {
        self.lease_ends.map(|end| end - margin(self.plan.kill_after))
    }

    fn start(&mut self, lease_ends: Option<BootTime>, variables: Vec<(String, String)>) {
        self.lease_ends = lease_ends;
        self.kill_at = None;
        self.killing = None;
        if self.latest().is_some_and(|latest| latest <= now()) {
            return self.tell(&Event::Failed { errno: Errno::TIMEDOUT.raw_os_error() });
        }
        match self.spawn(variables) {
            Ok(pid) => {
                self.child = Some(pid);
                self.group = self.plan.group.is_none().then_some(pid);
                self.is_working = true;
                self.tell(&Event::Started { pid: pid.as_raw_nonzero().get() });
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
                self.tell(&Event::Failed { errno });
            }
        }
    }

    fn spawn(&self, variables: Vec<(String, String)>) -> std::io::Result<Pid> {
        let (program, arguments) = self.plan.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments);
        for name in environment::not_inherited(self.plan.clear_backend_env) {
            command.env_remove(name);
        }
        command.envs(variables);
        command.process_group(self.plan.group.map_or(0, |group| group.as_raw_nonzero().get()));
        let (mask, parent) = (self.plan.mask, rustix::process::getpid());
        let prepare = move || {
            // The third line of defence, if both of us are killed at once: the process itself dies, though not what it
            // started.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            if rustix::process::getppid() != Some(parent) {
                return Err(std::io::Error::from(std::io::ErrorKind::NotConnected));
            }
            mask.restore().map(|_| ())
        };
        #[allow(unsafe_code, reason = "only pre_exec runs between fork and exec")]
        // SAFETY: the closure makes three system calls, allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(prepare);
        }
        let child = command.spawn()?;
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::InvalidData.into())
    }

    /// Passes a signal on: to the work's group, or to all of the work where it shares a group with strangers.
    fn pass_on(&self, signal: Signal) {
        match self.group {
            Some(group) => {
                let _ = rustix::process::kill_process_group(group, signal);
            }
            None => self.signal_all(signal),
        }
    }

    fn signal_all(&self, signal: Signal) {
        if tree::can_be_listed() {
            tree::signal_below_us(signal, &[]);
        } else if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, signal);
        } else if let Some(child) = self.child {
            let _ = rustix::process::kill_process(child, signal);
        }
    }

    /// Tells everything to stop, and kills it then or before the lease ends, whichever is first.
    fn end_by(&mut self, kill_at: BootTime) {
        let kill_at = self.latest().map_or(kill_at, |latest| kill_at.min(latest));
        let is_first = self.kill_at.is_none();
        let kill_at = self.kill_at.map_or(kill_at, |before| before.min(kill_at));
        self.kill_at = Some(kill_at);
        if is_first && kill_at > now() {
            self.signal_all(Signal::TERM);
            // A stopped process sees TERM only when it goes on.
            self.signal_all(Signal::CONT);
        }
    }

    /// Collects everybody who has ended, ours and orphans alike.
    fn reap(&mut self) {
        while sys::read_signal(&self.children).is_ok() {}
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.child => {
                    self.child = None;
                    self.tell(&exited(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    // No child is left, so no descendant is: each of them has one of our children above it.
                    if self.is_working {
                        self.finish();
                        self.tell(&Event::Empty);
                    }
                    return;
                }
            }
        }
    }

    fn finish(&mut self) {
        self.is_working = false;
        self.child = None;
        self.group = None;
        self.kill_at = None;
        self.killing = None;
        if self.command_is_gone {
            self.say_what_was_done(&[]);
        }
    }

    /// Does what the clock asks for.
    fn act(&mut self) {
        if !self.is_working {
            return;
        }
        if self.kill_at.is_none() && self.last_call().is_some_and(|moment| moment <= now()) {
            self.tell(&Event::Overdue);
            // `end_by` cuts it to what is left of the lease.
            self.end_by(now() + self.plan.kill_after);
        }
        if self.kill_at.is_some_and(|moment| moment <= now()) {
            self.kill();
        }
    }

    /// When we stop waiting for the command: it should have acted a whole `--kill-after` before the end.
    fn last_call(&self) -> Option<BootTime> {
        self.latest().map(|latest| latest - self.plan.kill_after / 2)
    }

    fn kill(&mut self) {
        if !tree::can_be_listed() {
            self.signal_all(Signal::KILL);
        }
        let killing = self.killing.get_or_insert_with(Killing::new);
        if let Some(survivors) = killing.round(&[]) {
            if self.command_is_gone {
                self.say_what_was_done(&survivors);
            }
            self.tell(&Event::Survivors(survivors));
            self.is_working = false;
            self.child = None;
        }
    }

    /// The command is dead, so nobody else will say it.
    fn say_what_was_done(&self, survivors: &[Process]) {
        let failure = Failure::new(exit::LOST, "lost", "syncguard was killed, and its lock ends with the lease");
        let failure = if survivors.is_empty() {
            failure.detail("the command and everything it started were stopped before that")
        } else {
            survivors.iter().fold(failure, |failure, process| failure.detail(messages::survivor(process)))
        };
        self.plan.output.failure_if_heard(&failure);
    }

    /// Sleeps until there is something to do.
    fn sleep(&self) {
        let next = match self.kill_at {
            _ if !self.is_working => None,
            Some(kill_at) if self.killing.is_none() => Some(kill_at),
            Some(_) => Some(now() + ROUND),
            None => self.last_call(),
        };
        // Zero would switch the timer off.
        let value = next.map_or(Duration::ZERO, |next| next.since_start().max(Duration::from_nanos(1)));
        let value = Timespec {
            tv_sec: i64::try_from(value.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(value.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once);
        let mut files = vec![PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
        if !self.command_is_gone {
            files.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        let _ = poll(&mut files, None);
    }
}

fn exited(status: WaitStatus) -> Event {
    Event::Exited { code: status.exit_status(), signal: status.terminating_signal() }
}

fn now() -> BootTime {
    SystemClock.boot()
}

fn moment(millis: u64) -> BootTime {
    BootTime::from_start(Duration::from_millis(millis))
}
