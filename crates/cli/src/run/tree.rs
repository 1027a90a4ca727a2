//! Which processes belong to the command, and how do all of them end?
//!
//! Whatever a process does to leave us (another group, another session, a double fork), it stays below a *child
//! subreaper* above it: when its parent dies it becomes the subreaper's child. So the tree below one process is
//! everything, and it is empty exactly when that process has no child left. Whoever is killed is named by a file
//! (pidfd) and recognised by its start time: a number that was given to a stranger meanwhile is left alone.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use syncguard::{BootTime, Clock, SystemClock};

use super::proc;

/// How long a killed process may take to disappear before it is called a survivor: one that hangs in a driver may
/// never.
const PATIENCE: Duration = Duration::from_secs(5);
/// A list is read while processes come and go; only several equal ones in a row are believed.
const EQUAL_ROUNDS: u8 = 3;

/// A process as `/proc` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// What it calls itself.
    pub(crate) name: String,
    parent: i32,
    /// When it was started: with the number, this names one process for ever.
    start: u64,
    is_dead: bool,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &proc::text(&format!("{pid}/stat"))?)
    }

    /// A child of ours of which `/proc` shows nothing but the number.
    fn hidden(pid: i32) -> Self {
        Self { pid, name: "hidden".to_owned(), parent: own(), start: 0, is_dead: false }
    }

    /// Somebody is left, says the kernel, and nobody shows who.
    fn unseen() -> Self {
        Self::hidden(0)
    }

    /// Whether the number still means this process. A child's number is its own until we have collected it.
    fn is_still_there(&self) -> bool {
        match Self::read(self.pid) {
            Some(now) => self.start == 0 || now.start == self.start,
            None => self.start == 0 && proc::children().is_some_and(|children| children.contains(&self.pid)),
        }
    }

    fn parse(pid: i32, line: &str) -> Option<Self> {
        // The name stands in parentheses and may hold anything, so count from the last one: `) S PARENT …`.
        let (before, after) = line.rsplit_once(')')?;
        let name = before.split_once('(')?.1.to_owned();
        let mut fields = after.split_whitespace();
        let is_dead = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let start = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, name, parent, start, is_dead })
    }

    /// Sends a signal to this very process. One that is gone already is no error.
    fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        let sent = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(file) if self.is_still_there() => rustix::process::pidfd_send_signal(file, signal),
            Ok(_) => return Ok(()),
            Err(Errno::NOSYS | Errno::MFILE | Errno::NFILE | Errno::PERM) => rustix::process::kill_process(pid, signal),
            Err(error) => Err(error),
        };
        sent.or_else(|error| if error == Errno::SRCH { Ok(()) } else { Err(error) })
    }
}

/// Whether processes can be listed at all.
pub(crate) fn can_be_listed() -> bool {
    proc::is_ours() && Process::read(own()).is_some()
}

/// Our own children at this moment.
pub(crate) fn children() -> Vec<i32> {
    let own = own();
    all().into_iter().filter(|process| process.parent == own).map(|process| process.pid).collect()
}

/// Everything alive below this process, parents first, without what is below `except`.
fn below_us(except: &[i32]) -> Vec<Process> {
    let mut all = descendants(own(), &all(), except);
    all.retain(|process| !process.is_dead);
    all
}

fn own() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn all() -> Vec<Process> {
    if !proc::is_ours() {
        return Vec::new();
    }
    let mut all: Vec<Process> = proc::pids().into_iter().filter_map(Process::read).collect();
    for pid in proc::children().unwrap_or_default() {
        if all.iter().all(|process| process.pid != pid) {
            // Born since the list was read, or hidden.
            all.push(Process::read(pid).unwrap_or_else(|| Process::hidden(pid)));
        }
    }
    all
}

fn descendants(root: i32, all: &[Process], except: &[i32]) -> Vec<Process> {
    let mut roots = vec![root];
    let mut found = Vec::new();
    while let Some(parent) = roots.pop() {
        for process in all.iter().filter(|process| process.parent == parent && !except.contains(&process.pid)) {
            roots.push(process.pid);
            found.push(process.clone());
        }
    }
    found
}

/// Sends a signal to everything below this process, as far as it may.
pub(crate) fn signal_below_us(signal: Signal, except: &[i32]) {
    for process in below_us(except) {
        let _ = process.signal(signal);
    }
}

pub(crate) fn is_anybody_below_us(except: &[i32]) -> bool {
    !below_us(except).is_empty()
}

/// The end of a tree under way: called again and again until the caller has no child left.
pub(crate) struct Killing {
    since: BootTime,
    /// How often in a row nothing was left but what we may not kill.
    equal: u8,
}

impl Killing {
    pub(crate) fn new() -> Self {
        Self { since: SystemClock.boot(), equal: 0 }
    }

    /// Kills everything below this process once more; what will not end, once that is certain. The caller has collected
    /// the dead just before, and still has a child that is not in `except`, as far as it knows.
    pub(crate) fn round(&mut self, except: &[i32]) -> Option<Vec<Process>> {
        let mut alive = descendants(own(), &all(), except);
        // A dead one too: its first thread may have ended alone, and the others work on.
        let mut refused = alive.clone();
        refused.retain(|process| process.signal(Signal::KILL) == Err(Errno::PERM) && !process.is_dead);
        alive.retain(|process| !process.is_dead);
        self.equal = if refused.len() == alive.len() { self.equal.saturating_add(1) } else { 0 };
        let is_over = SystemClock.boot().since(self.since) >= PATIENCE;
        if !alive.is_empty() {
            return (self.equal >= EQUAL_ROUNDS || is_over).then_some(alive);
        }
        if !except.is_empty() && (proc::children().is_some() || !proc::hides()) {
            return (self.equal >= EQUAL_ROUNDS).then(Vec::new);
        }
        // An empty list is no proof that nobody is left: only the kernel knows, and it says that somebody is.
        (self.equal >= EQUAL_ROUNDS && is_over).then(|| vec![Process::unseen()])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "42 (a) S 1 (b) Z 7 5 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";

        let process = Process::parse(42, stat).unwrap();

        assert_eq!((process.name.as_str(), process.parent, process.start), ("a) S 1 (b", 7, 12_345));
        assert!(process.is_dead);
        assert_eq!(Process::parse(42, "42 (cut"), None);
    }

    #[test]
    fn a_tree_has_every_generation_and_not_what_is_excepted() {
        let process = |pid, parent, is_dead| Process { pid, name: String::new(), parent, start: 0, is_dead };
        let all = [
            process(5, 4, false),
            process(4, 3, true),
            process(3, 2, false),
            process(6, 2, false),
            process(7, 6, false),
            process(9, 1, false),
        ];

        let found = |except: &[i32]| {
            let mut pids: Vec<i32> = descendants(2, &all, except).iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };

        assert_eq!(found(&[]), [3, 4, 5, 6, 7], "a dead parent's child counts");
        assert_eq!(found(&[6]), [3, 4, 5]);
    }

    #[test]
    fn a_number_that_was_given_to_somebody_else_is_left_alone() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let real = Process::read(i32::try_from(sleeper.id()).unwrap()).unwrap();
        let former = Process { start: real.start - 1, ..real.clone() };

        assert_eq!(former.signal(Signal::KILL), Ok(()));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(sleeper.try_wait().unwrap(), None, "it is another process than the one that was meant");

        assert_eq!(real.signal(Signal::KILL), Ok(()));
        sleeper.wait().unwrap();
    }
}
