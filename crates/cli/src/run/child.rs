//! How is the child started, and whom do our signals reach?
//!
//! Without a terminal the child leads a process group of its own, so that a signal reaches all it started. On a terminal it
//! shares ours, because the terminal's keys go to the foreground group; then the child and its descendants are
//! signalled one by one. On Linux the kernel kills the child when we die, whatever we die of.

use std::collections::HashMap;
use std::io::ErrorKind;

use rustix::process::{Pid, Signal};
use syncguard::Guard;
use tokio::process::{Child, Command};

use super::Job;
use super::environment;
use super::watchdog::Introduction;
use crate::exit::{self, Failure};
use crate::output::escape;

/// Whom a signal is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A process group that the child leads.
    Group(Pid),
    /// The child and what it started, in a group that is also ours.
    Tree(Pid),
}

/// A running child.
pub(crate) struct Started {
    pub(crate) process: Child,
    pub(crate) target: Target,
}

pub(crate) fn start(job: &Job, guard: &Guard, introduction: Option<Introduction>) -> Result<Started, Failure> {
    let (program, arguments) = job.command.split_first().ok_or_else(|| Failure::usage("COMMAND is missing"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env_remove(environment::NOT_INHERITED);
    command.envs(environment::variables(guard, &job.held, &job.backend_name, job.pass_lock_id));
    if job.own_group {
        command.process_group(0);
    }
    before_exec(&mut command, introduction);
    let process = command.spawn().map_err(|error| not_started(&program.to_string_lossy(), &error))?;
    let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(exit::INTERNAL, "internal", "the child has no process id"))?;
    let target = if job.own_group { Target::Group(pid) } else { Target::Tree(pid) };
    Ok(Started { process, target })
}

/// What the child does between fork and exec: it ties its life to ours and introduces itself to the watchdog.
fn before_exec(command: &mut Command, introduction: Option<Introduction>) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        die_with(parent)?;
        introduction.as_ref().map_or(Ok(()), Introduction::of_this_process)
    };
    #[allow(unsafe_code, reason = "only pre_exec runs between fork and exec")]
    // SAFETY: the closure makes three system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Asks the kernel to kill this process when the thread that started it, our main one, ends.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent died before the line above, nobody will send the signal any more.
    if rustix::process::getppid() != Some(parent) {
        return Err(std::io::Error::from(ErrorKind::NotConnected));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> std::io::Result<()> {
    Ok(())
}

fn not_started(program: &str, error: &std::io::Error) -> Failure {
    let program = escape(program);
    match error.kind() {
        ErrorKind::NotFound => Failure::new(exit::NOT_FOUND, "not-found", format!("{program}: command not found"))
            .hint("there is no shell in between: use `sh -c '…'` for shell syntax"),
        _ => Failure::new(exit::NOT_EXECUTABLE, "not-executable", format!("{program}: cannot be executed: {error}")),
    }
}

impl Target {
    /// Sends a signal. A target that is gone already is no error.
    pub(crate) fn signal(self, signal: Signal) {
        match self {
            Self::Group(leader) => {
                let _ = rustix::process::kill_process_group(leader, signal);
            }
            Self::Tree(root) => {
                for pid in descendants(root) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        }
    }

    /// Whether nobody is left to be signalled.
    pub(crate) fn is_gone(self) -> bool {
        match self {
            Self::Group(leader) => rustix::process::test_kill_process_group(leader).is_err(),
            // Once the root is reaped its descendants belong to init and cannot be told from strangers.
            Self::Tree(root) => rustix::process::test_kill_process(root).is_err(),
        }
    }

    /// For messages.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Group(leader) => format!("process group {}", leader.as_raw_nonzero()),
            Self::Tree(root) => format!("process {} and its children", root.as_raw_nonzero()),
        }
    }
}

/// The process and all it started, parents first. Without `/proc`, the process alone.
fn descendants(root: Pid) -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for (pid, parent) in processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut found = vec![root.as_raw_nonzero().get()];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    found.into_iter().filter_map(Pid::from_raw).collect()
}

/// Every process and its parent.
fn processes() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: i32| Some((pid, parent_of(pid)?))).collect()
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, so count from the last one: `) S PARENT`.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_a_process_holds_its_grandchildren() {
        let mut shell = std::process::Command::new("sh").args(["-c", "sh -c 'sleep 30; :' & wait"]).spawn().unwrap();
        let root = Pid::from_raw(i32::try_from(shell.id()).unwrap()).unwrap();
        let mut tries = 0;
        while descendants(root).len() < 3 {
            tries += 1;
            assert!(tries < 1_000, "the grandchild did not appear");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }

        let tree = descendants(root);
        Target::Tree(root).signal(Signal::KILL);

        assert_eq!(tree[0], root);
        shell.wait().unwrap();
        let mut tries = 0;
        while parent_of(tree[2].as_raw_nonzero().get()).is_some_and(|parent| parent != 1) {
            tries += 1;
            assert!(tries < 1_000, "the grandchild lives on");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
