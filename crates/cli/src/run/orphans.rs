//! Who collects the dead that come home to the command?
//!
//! The command is a subreaper above its watchdog, and sometimes process 1 of a container: children arrive that it never
//! started. Every one of them is collected when SIGCHLD says so, and that the watchdog was among them is remembered.

use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

/// The watchdog's number while it has not been collected: later it may be a stranger's.
static WATCHDOG: AtomicI32 = AtomicI32::new(0);

pub(crate) fn watch(pid: Pid) {
    WATCHDOG.store(pid.as_raw_nonzero().get(), Ordering::Relaxed);
}

/// Collects whoever has ended, and says whether a child is left.
pub(crate) fn reap() -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, _))) => forget(pid),
            Ok(None) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn watchdog() -> Option<Pid> {
    Pid::from_raw(WATCHDOG.load(Ordering::Relaxed))
}

fn forget(pid: Pid) {
    let pid = pid.as_raw_nonzero().get();
    let _ = WATCHDOG.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
}

/// Ends the watchdog, which has nothing left to watch, without waiting for it.
pub(crate) fn send_away() {
    if let Some(pid) = watchdog() {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Ends the watchdog, which has nothing left to watch, and waits for it.
pub(crate) fn dismiss() {
    send_away();
    let Some(pid) = watchdog() else { return };
    while matches!(rustix::process::waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    forget(pid);
}
