//! Who owns the server's process?
//!
//! The handle does: dropping it kills by pid and waits, so nothing outlives its test and no zombie is left. If the test
//! process is killed instead, the kernel kills the server (`PR_SET_PDEATHSIG`). That signal fires when the *thread*
//! that forked ends, and test threads end early; therefore one thread that lives as long as the process does all the
//! forking.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// How long a server may take to answer its first ping. Generous: a loaded machine with two cores starts a JVM in it.
pub const READY_WITHIN: Duration = Duration::from_mins(1);

/// A running server, killed by pid and waited for when dropped.
#[derive(Debug)]
pub struct ServerProcess {
    child: Child,
    name: String,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts `command` with its output appended to the file `log`. The kernel sends it `at_our_death` if this process
    /// dies first.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn spawn(name: &str, mut command: Command, log: &Path, at_our_death: Signal) -> Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        die_with_this_process(&mut command, at_our_death);
        let child = spawn_from_lasting_thread(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { child, name: name.to_owned(), log: log.to_owned() })
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the server still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal to the server, to this one process and nothing else.
    ///
    /// # Errors
    ///
    /// When the server is already gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Kills with SIGKILL and waits until the process is gone. Killing a dead server is fine.
    ///
    /// # Errors
    ///
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Asks with `signal` to end, waits up to `patience`, then kills.
    ///
    /// # Errors
    ///
    /// When the process cannot be waited for.
    pub fn stop(&mut self, signal: Signal, patience: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        // The error means that it is gone already, which the loop below sees.
        drop(self.signal(signal));
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill()
    }

    /// Repeats `ping` until it succeeds; fails early, with the end of the log, when the server exits first.
    ///
    /// # Errors
    ///
    /// When the server ended or did not answer within [`READY_WITHIN`].
    pub fn wait_ready(&mut self, mut ping: impl FnMut() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let Err(error) = ping() else { return Ok(()) };
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended while starting ({status})\n{}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                return Err(error).with_context(|| format!("{} did not become ready\n{}", self.name, self.log_tail()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The last lines the server wrote.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        drop(self.kill());
    }
}

/// Whether a process with this id exists; a zombie counts as gone.
pub fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

/// Repeats `probe` until it yields a value; the error after `patience` names `what`.
///
/// # Errors
///
/// When the time is over.
pub fn wait_for<T>(what: &str, patience: Duration, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        let outcome = probe();
        if let Ok(Some(value)) = outcome {
            return Ok(value);
        }
        if Instant::now() > deadline {
            let error = outcome.err().unwrap_or_else(|| anyhow::anyhow!("it has not happened"));
            return Err(error).with_context(|| format!("waited {patience:?} for {what}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Empties the log of a server that is about to start again.
pub(crate) fn truncate(log: &Path) -> Result<()> {
    File::create(log)?;
    Ok(())
}

/// Makes the kernel send `signal` to the child when this process dies first; more exactly, when the thread that calls
/// `spawn` ends.
#[allow(unsafe_code, reason = "pre_exec is the only way to set the death signal between fork and exec")]
pub fn die_with_this_process(command: &mut Command, signal: Signal) {
    let parent = rustix::process::getpid();
    let arm = move || {
        rustix::process::set_parent_process_death_signal(Some(signal))?;
        // The parent may have died before the line above armed the signal.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec and makes two system calls; it allocates nothing and takes no
    // lock.
    unsafe { command.pre_exec(arm) };
}

fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                // The one who ordered always waits for the reply.
                drop(reply.send(command.spawn()));
            }
        });
        orders
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).map_err(io::Error::other)?;
    answer.recv().map_err(io::Error::other)?
}
