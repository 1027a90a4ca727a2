//! Which system calls have no safe interface?
//!
//! Signal masks, `signalfd`, dispositions and `fork`: a few lines each, so that everything above them can stay safe.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The signals of a mask, as the kernel keeps them.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Mask {
    pub(crate) fn of(signals: impl IntoIterator<Item = Signal>) -> Self {
        let mut set = MaybeUninit::uninit();
        #[allow(unsafe_code, reason = "libc's signal sets have no safe interface")]
        // SAFETY: sigemptyset initialises the set before anything reads it; the numbers are those of real signals.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
            }
            Self(set.assume_init())
        }
    }

    pub(crate) fn full() -> Self {
        let mut set = MaybeUninit::uninit();
        #[allow(unsafe_code, reason = "libc's signal sets have no safe interface")]
        // SAFETY: sigfillset initialises the set.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }

    /// Blocks these signals in addition, and returns the mask as it was.
    pub(crate) fn block(&self) -> io::Result<Self> {
        self.change(libc::SIG_BLOCK)
    }

    pub(crate) fn unblock(&self) -> io::Result<Self> {
        self.change(libc::SIG_UNBLOCK)
    }

    /// Makes this the mask. One system call and no allocation: it also runs between fork and exec.
    pub(crate) fn restore(&self) -> io::Result<Self> {
        self.change(libc::SIG_SETMASK)
    }

    fn change(&self, how: libc::c_int) -> io::Result<Self> {
        let mut old = MaybeUninit::uninit();
        #[allow(unsafe_code, reason = "no safe interface changes a signal mask")]
        // SAFETY: both pointers are to signal sets; the old one is written before it is read.
        let (code, old) = unsafe {
            libc::sigemptyset(old.as_mut_ptr());
            let code = libc::pthread_sigmask(how, &raw const self.0, old.as_mut_ptr());
            (code, old.assume_init())
        };
        if code == 0 { Ok(Self(old)) } else { Err(io::Error::from_raw_os_error(code)) }
    }

    /// A file that becomes readable when one of these signals, which must be blocked, arrives.
    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        #[allow(unsafe_code, reason = "no safe interface makes a signalfd")]
        // SAFETY: the set is initialised, and the file that comes back belongs to nobody else.
        unsafe {
            let file = libc::signalfd(-1, &raw const self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if file < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(file)) }
        }
    }
}

/// A file whose readability the runtime can wait for.
pub(crate) fn awaited(file: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[allow(unsafe_code, reason = "the runtime wants to be promised that the file stays the same one")]
    // SAFETY: the file is owned by the value that is registered, and nothing closes or replaces it before that is
    // dropped.
    unsafe {
        Ok(AsyncFd::register_with_interest(file, Interest::READABLE)?)
    }
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) signal: Signal,
    /// From the kernel, as the terminal's keys are, and not from a process that called `kill`.
    pub(crate) is_from_kernel: bool,
}

/// Takes one signal out of a `signalfd`.
pub(crate) fn read_signal(file: &OwnedFd) -> io::Result<Arrived> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    #[allow(unsafe_code, reason = "the kernel fills a struct of its own")]
    // SAFETY: the buffer has the size that is passed, and every bit pattern is a valid value of its integer fields.
    let (length, info) = unsafe {
        let length = libc::read(file.as_raw_fd(), info.as_mut_ptr().cast(), SIZE);
        (length, info.assume_init())
    };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let number = i32::try_from(info.ssi_signo).unwrap_or(0);
    let signal = Signal::from_named_raw(number).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Arrived { signal, is_from_kernel: info.ssi_code == libc::SI_KERNEL })
}

/// Whether a signal was ignored when we started; nothing of ours has changed it then.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    #[allow(unsafe_code, reason = "no safe interface reads a disposition")]
    // SAFETY: without a new action nothing changes; the old one is written into a buffer of its type.
    unsafe {
        libc::sigaction(signal.as_raw(), std::ptr::null(), old.as_mut_ptr()) == 0
            && old.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Gives a signal its default meaning.
pub(crate) fn set_default(signal: Signal) {
    #[allow(unsafe_code, reason = "no safe interface resets a handler; SIG_DFL runs no code of ours")]
    // SAFETY: `signal` is a valid signal number and SIG_DFL a valid disposition.
    unsafe {
        libc::signal(signal.as_raw(), libc::SIG_DFL);
    }
}

/// Makes a second process of this one: the new process's id here, `None` there.
///
/// Only while no other thread exists: a lock that one of them holds would stay closed for ever in the new process.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    #[allow(unsafe_code, reason = "the second process must not cost a second start of the program")]
    // SAFETY: the caller is the only thread, so the new process is an ordinary one.
    let pid = unsafe { libc::fork() };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Pid::from_raw(pid)) }
}

/// Shows a name in the place of the arguments that this process was started with (`ps`, `pkill -f`).
pub(crate) fn show_as(name: &str) {
    let Some((start, end)) = arguments() else { return };
    let room = end.saturating_sub(start);
    let shown = name.len().min(room.saturating_sub(1));
    let place: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    #[allow(unsafe_code, reason = "the kernel shows the memory that it put the arguments into, and nothing else")]
    // SAFETY: these bytes are our own, writable, and as many as the kernel says. Whoever still reads them as arguments
    // finds every one of them ended: the rest is zeros. The caller is the only thread.
    unsafe {
        std::ptr::write_bytes(place, 0, room);
        std::ptr::copy_nonoverlapping(name.as_ptr(), place, shown);
    }
}

/// Where our arguments are in memory. The kernel tells nobody else.
fn arguments() -> Option<(usize, usize)> {
    let line = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything, stand the fields from the third on; these are the 48th and 49th.
    let mut fields = line.rsplit_once(')')?.1.split_whitespace().skip(45);
    let mut next = || fields.next()?.parse::<usize>().ok().filter(|place| *place != 0);
    let (start, end) = (next()?, next()?);
    (start < end).then_some((start, end))
}
