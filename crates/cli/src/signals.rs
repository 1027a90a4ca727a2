//! Which signals reach us, and which of them mean "stop"?
//!
//! Handlers are installed before anything is acquired, so that no signal can end the process with a lock in its hands.
//! A signal that was ignored when we started stays ignored, for us and for the child: that is what `nohup` and
//! a shell's background jobs ask for.

use std::future::poll_fn;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix;

/// Ends a wait, and no child is started after it.
const STOPPING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
/// Passed on to a child, meaningless without one.
const OTHERS: [Signal; 4] = [Signal::USR1, Signal::USR2, Signal::WINCH, Signal::CONT];

/// The signals that arrived and were not yet acted upon.
pub(crate) struct Signals {
    sources: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Installs the handlers. `with_stop` also catches the terminal's stop key, to stop a child that the terminal does not know.
    pub(crate) fn install(with_stop: bool) -> std::io::Result<Self> {
        let ignored = ignored_at_start();
        let stop = with_stop.then_some(Signal::TSTP);
        let mut sources = Vec::new();
        for signal in STOPPING.into_iter().chain(OTHERS).chain(stop) {
            let number = signal.as_raw();
            if ignored & (1 << (number - 1)) == 0 {
                sources.push((signal, unix::signal(unix::SignalKind::from_raw(number))?));
            }
        }
        Ok(Self { sources })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, source) in &mut self.sources {
                if source.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that means "stop".
    pub(crate) async fn next_stopping(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_stopping(signal) {
                return signal;
            }
        }
    }

    /// A signal to stop that has arrived already.
    pub(crate) async fn pending_stop(&mut self) -> Option<Signal> {
        // The handler's byte travels through the runtime's pipe: let it be read before looking.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            signal = self.next_stopping() => Some(signal),
            () = std::future::ready(()) => None,
        }
    }
}

pub(crate) fn is_stopping(signal: Signal) -> bool {
    STOPPING.contains(&signal)
}

/// The mask of ignored signals: bit n-1 for signal n. Read from the kernel's own words, which needs no unsafe call.
fn ignored_at_start() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Dies from a signal as if nobody had caught it, so that the parent sees the truth.
pub(crate) fn die_from(signal: Signal) -> ! {
    #[allow(unsafe_code, reason = "no safe interface resets a handler; SIG_DFL runs no code of ours")]
    // SAFETY: `signal` is a valid signal number and SIG_DFL a valid disposition.
    unsafe {
        libc::signal(signal.as_raw(), libc::SIG_DFL);
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    // Only if the signal is blocked.
    std::process::exit(i32::from(crate::exit::from_signal(signal.as_raw())));
}
