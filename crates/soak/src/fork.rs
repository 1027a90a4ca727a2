//! What does a child do to the guards of its parent?
//!
//! A program that forks without `exec` has a copy of every guard. The lock is the parent's: the child's drop must not
//! release it, and must not touch the parent's connections.

use std::io;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Forks, drops the child's copy of `held`, ends the child and returns the parent's. Blocks until the child is gone.
///
/// # Errors
/// When the process cannot be forked.
pub fn drop_in_a_child<T>(held: T) -> io::Result<T> {
    #[allow(unsafe_code, reason = "there is no safe fork; the child runs one drop under a time limit and ends")]
    // SAFETY: the child has this thread alone. It drops one value, allocates at most through an allocator that is made
    // for forks, and ends without running any destructor. Should the drop wait for a lock that another thread held at
    // this moment, the alarm ends the child.
    let pid = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(5);
            drop(held);
            libc::_exit(0);
        }
        pid
    };
    let Some(child) = Pid::from_raw(pid).filter(|_| pid > 0) else { return Err(io::Error::last_os_error()) };
    waitpid(Some(child), WaitOptions::empty())?;
    Ok(held)
}
