//! What happened, who, since, until, what to do?
//!
//! The texts that people meet at three in the morning, in one place and tested word by word. What is said about a holder
//! is in [`crate::holder`].

use std::time::Duration;

use rustix::process::Signal;
use syncguard::{Key, LossReason};

use crate::exit::{self, Failure};
use crate::holder::{self, Holder};
use crate::output::{escape, human, tenths, typed};
use crate::run::tree::Process;

/// Who asks for the lock: the hints differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    Run,
    Acquire,
    Wait,
}

/// `deploy:prod is locked`
pub(crate) fn locked(key: &Key, holder: Option<&Holder>, waited: Option<Duration>, asking: Asking) -> Failure {
    let waited = waited.map_or(String::new(), |waited| format!(" (waited {})", tenths(waited)));
    let mut failure = Failure::new(exit::NOT_ACQUIRED, "locked", format!("{} is locked{waited}", escape(key.as_str())));
    if let Some(holder) = holder {
        failure.details = holder::describe(holder);
        failure.holder = Some(Box::new(holder.info.clone()));
    }
    failure.key_hash = Some(key.hash());
    let name = typed(key.as_str());
    let again = match asking {
        Asking::Run => format!("syncguard run --wait 10m {name} -- …"),
        Asking::Acquire => format!("syncguard acquire --wait 10m {name}"),
        Asking::Wait => format!("syncguard wait {name}"),
    };
    failure.hint(format!("wait longer:  {again}\nlook at it:   syncguard status {name}"))
}

/// Why the command is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No renewal got through, and the lease runs out.
    Unreachable { left: Duration },
    /// `--no-renew`, and the lease runs out.
    NotRenewed { left: Duration },
    /// We were stopped or starved, and the watchdog acted.
    Stalled { left: Duration },
    /// Known to be gone.
    Gone(LossReason),
}

/// What was done about a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Nothing: `--on-lost warn`.
    None,
    /// A signal, and KILL after this long unless it is none.
    Signalled { signal: Signal, kill_in: Option<Duration> },
}

/// `LOST the lock deploy:prod after 4m 10s: …`
pub(crate) fn lost(key: &Key, held: Duration, cause: Cause, target: &str, measure: Measure, fence: &str) -> Failure {
    let why = match cause {
        Cause::Unreachable { left } => format!("backend unreachable, lease ends in {}", tenths(left)),
        Cause::NotRenewed { left } => format!("not renewed (--no-renew), lease ends in {}", tenths(left)),
        Cause::Stalled { left } if left.is_zero() => "syncguard was stopped until the lease had ended".to_owned(),
        Cause::Stalled { left } => format!("syncguard was stopped for too long, lease ends in {}", tenths(left)),
        Cause::Gone(LossReason::Absent) => "the backend no longer has it; another owner may hold it now".to_owned(),
        Cause::Gone(LossReason::Expired) => "the lease has ended; another owner may hold it now".to_owned(),
        Cause::Gone(_) => "it was given up; another owner may hold it now".to_owned(),
    };
    let done = match measure {
        Measure::None => format!("{target} go on (--on-lost warn)"),
        Measure::Signalled { signal, kill_in: None } => format!("sent {} to {target}", signal_name(signal)),
        Measure::Signalled { signal, kill_in: Some(after) } => {
            format!("sent {} to {target}; SIGKILL in {}", signal_name(signal), tenths(after))
        }
    };
    let message = format!("LOST the lock {} after {}: {why}", escape(key.as_str()), human(held));
    Failure::new(exit::LOST, "lost", message)
        .detail(done)
        .detail(format!("fence {fence} is now stale; writes that check it are safe, others may overlap"))
}

/// Renewals fail, and what will come of it.
pub(crate) fn renewal_is_late(key: &Key, left: Duration, stop_in: Option<Duration>) -> String {
    let stop = stop_in.map_or(String::new(), |stop| format!("; the command will be stopped in {}", tenths(stop)));
    format!("the lock {} cannot be renewed at present: its lease ends in {}{stop}", escape(key.as_str()), tenths(left))
}

/// Somebody asks for a lock that a command holds.
pub(crate) fn asked(key: &Key, signal: Option<Signal>) -> String {
    let done = match signal {
        Some(signal) => format!("sent {} to the command", signal_name(signal)),
        None => "the command goes on (--on-asked SIG would tell it)".to_owned(),
    };
    format!("somebody asks for the lock {}: {done}", escape(key.as_str()))
}

/// Somebody killed the watchdog.
pub(crate) fn watchdog_died(survivors: &[Process]) -> Failure {
    let what = "the watchdog was killed: the command was stopped, because nobody could have stopped it in time";
    let what = if survivors.is_empty() { what } else { "the watchdog was killed" };
    survivors
        .iter()
        .fold(Failure::new(exit::INTERNAL, "watchdog", what), |failure, process| failure.detail(survivor(process)))
}

/// What could not be stopped, and keeps the lock.
pub(crate) fn kept_for(survivors: &[Process]) -> Failure {
    survived(survivors, "the lock is kept until it ends")
        .hint("end it as its own user, or as root; another signal, or --give-up-after, leaves the lock to its lease")
}

/// What could not be stopped, and what that means for a lock that is no longer kept for it.
pub(crate) fn still_running(survivors: &[Process], lease: Duration) -> Failure {
    survived(survivors, &format!("the lock is not given back, its lease ends in {}", human(lease)))
        .hint("end it, as its own user or as root, before the work is started elsewhere")
}

fn survived(survivors: &[Process], lock: &str) -> Failure {
    let what = format!("not everything could be stopped; {lock}");
    let failure = Failure::new(exit::LOST, "still-running", what);
    survivors.iter().fold(failure, |failure, process| failure.detail(survivor(process)))
}

/// Somebody who could not be ended.
pub(crate) fn survivor(process: &Process) -> String {
    let who = match process.pid {
        0 => "a process that is not shown here".to_owned(),
        pid => format!("process {pid} ({})", escape(&process.name)),
    };
    if rustix::process::geteuid().is_root() {
        return format!(
            "{who} was killed but does not end: it hangs in the kernel (state D), or may not be killed from here"
        );
    }
    format!("{who} could not be stopped by this user and is still running")
}

/// The name of a signal as people write it.
pub(crate) fn signal_name(signal: Signal) -> &'static str {
    const NAMES: [(Signal, &str); 16] = [
        (Signal::TERM, "SIGTERM"),
        (Signal::INT, "SIGINT"),
        (Signal::HUP, "SIGHUP"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::STOP, "SIGSTOP"),
        (Signal::TSTP, "SIGTSTP"),
        (Signal::CONT, "SIGCONT"),
        (Signal::WINCH, "SIGWINCH"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::BUS, "SIGBUS"),
    ];
    NAMES.iter().find(|(known, _)| *known == signal).map_or("a signal", |(_, name)| name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::holder::tests::holder;

    fn text(failure: &Failure) -> String {
        let rendered = crate::output::render(failure);
        anstream::adapter::strip_str(&rendered).to_string()
    }

    #[test]
    fn a_locked_key_says_who_since_until_and_what_to_do() {
        let key = Key::new("deploy:prod").unwrap();

        let failure = locked(&key, Some(&holder(Some("ci@runner-7"))), Some(Duration::from_secs(5)), Asking::Run);

        let lock = holder::short(holder(None).info.lock_id_hash());
        assert_eq!(
            text(&failure),
            format!(
                "error: deploy:prod is locked (waited 5.0s)\n  \
                   held by   ci@runner-7   (lock {lock}, fence 000000000000041)\n  \
                   since     14:02:11Z: held for 1m 17s, lease ends in 13s, renewed 17s ago\n\
                 hint: wait longer:  syncguard run --wait 10m deploy:prod -- …\n      \
                       look at it:   syncguard status deploy:prod"
            )
        );
    }

    #[test]
    fn a_lost_lock_says_what_was_done_and_which_fence_is_stale() {
        let key = Key::new("deploy:prod").unwrap();
        let ten = Duration::from_secs(10);
        let measure = Measure::Signalled { signal: Signal::TERM, kill_in: Some(ten) };

        let cause = Cause::Unreachable { left: ten };
        let failure =
            lost(&key, Duration::from_secs(250), cause, "process 41877 and all it started", measure, "000000000000042");

        assert_eq!(
            text(&failure),
            "error: LOST the lock deploy:prod after 4m 10s: backend unreachable, lease ends in 10.0s\n  \
               sent SIGTERM to process 41877 and all it started; SIGKILL in 10.0s\n  \
               fence 000000000000042 is now stale; writes that check it are safe, others may overlap"
        );
    }

    #[test]
    fn a_hostile_key_and_label_are_shown_escaped() {
        let key = Key::new("a\x1b[2Jb").unwrap();
        let failure = locked(&key, Some(&holder(Some("\x1b]0;pwned\x07"))), None, Asking::Acquire);

        let shown = text(&failure) + &holder::waiting(&key, Some(&holder(Some("x\ny"))), Duration::ZERO);

        assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");
        assert!(shown.contains("a\\u{1b}[2Jb") && shown.contains("x\\ny"), "{shown}");
    }
}
