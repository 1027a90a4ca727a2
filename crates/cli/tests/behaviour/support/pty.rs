//! How does a test give the command a terminal?
//!
//! A pseudo-terminal of its own, controlling, with the command as the leader of its session. A thread reads what
//! appears on it, as a terminal does: nobody who writes to it has to wait.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;

use super::Said;

/// A command on a terminal.
pub(crate) struct OnTerminal {
    pub(crate) process: Child,
    keyboard: File,
    screen: JoinHandle<()>,
    shown: Arc<Mutex<Vec<u8>>>,
}

/// Starts a command on a terminal of its own.
pub(crate) fn spawn(command: &mut Command) -> OnTerminal {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
    let theirs = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    for stream in [Command::stdin, Command::stdout, Command::stderr] {
        stream(command, theirs.try_clone().unwrap());
    }
    let lead = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        Ok(())
    };
    #[allow(unsafe_code, reason = "only pre_exec runs between fork and exec")]
    // SAFETY: the closure makes two system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(lead);
    }
    let process = command.spawn().unwrap();
    // The command keeps copies of the terminal's other end, which would keep its screen from ever ending.
    for stream in [Command::stdin, Command::stdout, Command::stderr] {
        stream(command, std::process::Stdio::null());
    }
    let keyboard = File::from(ours);
    let mut screen = keyboard.try_clone().unwrap();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let pixels = Arc::clone(&shown);
    let screen = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // Ends with an error when the last process has closed the terminal.
        while let Ok(length @ 1..) = screen.read(&mut bytes) {
            pixels.lock().unwrap().extend_from_slice(&bytes[..length]);
        }
    });
    OnTerminal { process, keyboard, screen, shown }
}

impl OnTerminal {
    /// Makes the terminal this wide and high, as dragging its window does.
    pub(crate) fn resize(&self, columns: u16, lines: u16) {
        let size = rustix::termios::Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Takes nothing from the screen until the answer is dropped.
    pub(crate) fn look_away(&mut self) -> Away<'_> {
        Away { process: &mut self.process, keyboard: &self.keyboard, _shown: self.shown.lock().unwrap() }
    }

    /// Forgets what was shown so far.
    pub(crate) fn clear(&self) {
        self.shown.lock().unwrap().clear();
    }

    /// Presses keys.
    pub(crate) fn type_in(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Waits until a text has appeared.
    pub(crate) fn until_shown(&self, text: &str) {
        super::until(text, || String::from_utf8_lossy(&self.shown.lock().unwrap()).contains(text));
    }

    /// Waits for the end; all that was shown is in `stdout`.
    pub(crate) fn finish(mut self) -> Said {
        use std::os::unix::process::ExitStatusExt;
        let status = self.process.wait().unwrap();
        self.screen.join().unwrap();
        let stdout = String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        Said { code: status.code(), signal: status.signal(), stdout, stderr: String::new() }
    }
}

/// A terminal whose screen nobody reads: what is written to it stays in the kernel, until there is no more room.
pub(crate) struct Away<'a> {
    process: &'a mut Child,
    keyboard: &'a File,
    _shown: MutexGuard<'a, Vec<u8>>,
}

impl Away<'_> {
    pub(crate) fn type_in(&self, keys: &[u8]) {
        let mut keyboard = self.keyboard;
        keyboard.write_all(keys).unwrap();
    }

    pub(crate) fn process(&self) -> &Child {
        self.process
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }
}
