//! Which signals reach us, and which of them mean "stop"?
//!
//! They are blocked before anything is acquired, so that none can end the process with a lock in its hands, and read
//! from a file, which also tells whether the terminal sent them or another process did. A signal that was ignored when
//! we started stays ignored, for us and for the child: that is what `nohup` and a shell's background jobs ask for.

use std::os::fd::OwnedFd;

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::run::orphans;
use crate::sys::{self, Arrived, Mask};

/// Ends a wait, and no child is started after it.
const STOPPING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
/// Passed on to a child, meaningless without one.
const OTHERS: [Signal; 4] = [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];

/// Signals that wait to be read. Made while no other thread exists: later ones inherit the mask.
pub(crate) struct Blocked {
    ours: Mask,
    /// The mask that we were started with; the command gets it back.
    pub(crate) original: Mask,
}

impl Blocked {
    pub(crate) fn new(more: &[Signal]) -> std::io::Result<Self> {
        let wanted = STOPPING.into_iter().chain(OTHERS).chain(more.iter().copied());
        let ours = Mask::of(wanted.filter(|signal| !sys::is_ignored(*signal)));
        Ok(Self { ours, original: ours.block()? })
    }
}

/// The signals that arrived and were not yet acted upon.
pub(crate) struct Signals {
    file: AsyncFd<OwnedFd>,
}

impl Signals {
    /// Blocks the signals of a command that has no child.
    pub(crate) fn install() -> std::io::Result<Self> {
        Self::read(&Blocked::new(&[])?)
    }

    pub(crate) fn read(blocked: &Blocked) -> std::io::Result<Self> {
        Ok(Self { file: sys::awaited(blocked.ours.file()?)? })
    }

    /// The next signal. Children that ended are collected on the way.
    pub(crate) async fn next(&mut self) -> Arrived {
        loop {
            let read = self.file.async_io(Interest::READABLE, sys::read_signal).await;
            match read {
                Ok(arrived) if arrived.signal == Signal::CHILD => {
                    orphans::reap();
                }
                Ok(arrived) => return arrived,
                // A number without a name; or a file that fails, which must not become a busy loop.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    }

    /// The next signal that means "stop".
    pub(crate) async fn next_stopping(&mut self) -> Signal {
        loop {
            let arrived = self.next().await;
            if is_stopping(arrived.signal) {
                return arrived.signal;
            }
        }
    }

    /// A signal to stop that has arrived already.
    pub(crate) fn pending_stop(&mut self) -> Option<Signal> {
        while let Ok(arrived) = sys::read_signal(self.file.get_ref()) {
            if is_stopping(arrived.signal) {
                return Some(arrived.signal);
            }
        }
        None
    }
}

pub(crate) fn is_stopping(signal: Signal) -> bool {
    STOPPING.contains(&signal)
}

/// Dies from a signal as if nobody had caught it, so that the parent sees the truth.
pub(crate) fn die_from(signal: Signal) -> ! {
    sys::set_default(signal);
    let _ = Mask::of([signal]).unblock();
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    // Only as process 1, which the kernel protects from its own signals.
    std::process::exit(i32::from(crate::exit::from_signal(signal.as_raw())));
}
