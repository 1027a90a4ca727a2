//! What happened, who, since, until, what to do?
//!
//! The texts that people meet at three in the morning, in one place and tested word by word. Times of a holder are on
//! the backend's clock, so a skewed clock of the reader cannot make them lie.

use std::time::{Duration, UNIX_EPOCH};

use rustix::process::Signal;
use syncguard::{HashId, Key, LockInfo, LossReason};

use crate::exit::{self, Failure};
use crate::output::{escape, human, tenths, typed};
use crate::run::tree::Process;

/// What was seen of the present holder.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) info: LockInfo,
    /// The lease was seen to move while we watched.
    pub(crate) renewed: bool,
}

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
        failure.details = describe(holder);
    }
    let name = typed(key.as_str());
    let again = match asking {
        Asking::Run => format!("syncguard run --wait 10m {name} -- …"),
        Asking::Acquire => format!("syncguard acquire --wait 10m {name}"),
        Asking::Wait => format!("syncguard wait {name}"),
    };
    failure.hint(format!("wait longer:  {again}\nlook at it:   syncguard status {name}"))
}

/// The two lines about a holder.
pub(crate) fn describe(holder: &Holder) -> Vec<String> {
    let info = &holder.info;
    let lock = short(info.lock_id_hash());
    let who = match info.label() {
        Some(label) => format!("held by   {}   (lock {lock}, fence {})", escape(label.as_str()), info.fence),
        None => format!("held by   lock {lock}   (fence {})", info.fence),
    };
    let held = info.held_for();
    let since = format!("since     {} ({} ago); {}", clock_time(info), human(held), lease(holder));
    vec![who, since]
}

fn lease(holder: &Holder) -> String {
    let left = holder.info.expires_at.since(holder.info.observed_at);
    if left.is_zero() {
        return "lease is over".to_owned();
    }
    let renewed = if holder.renewed { " and is being renewed" } else { "" };
    format!("lease ends in {}{renewed}", human(left))
}

// The date only where the hour alone would mislead.
fn clock_time(info: &LockInfo) -> String {
    let millis = u64::try_from(info.acquired_at.as_millis()).unwrap_or(0);
    let full = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis)).to_string();
    if info.held_for() >= Duration::from_hours(24) {
        return full;
    }
    full.split_once('T').map_or(full.clone(), |(_, time)| time.to_owned())
}

/// `9c1f…e2a4`
pub(crate) fn short(hash: HashId) -> String {
    let text = hash.to_string();
    match (text.get(..4), text.get(text.len() - 4..)) {
        (Some(first), Some(last)) => format!("{first}…{last}"),
        _ => text,
    }
}

/// One line about who is waited for; the spinner's text, and what a log gets every 30 seconds.
pub(crate) fn waiting(key: &Key, holder: Option<&Holder>, waited: Duration) -> String {
    let key = escape(key.as_str());
    let Some(holder) = holder else {
        return format!("waiting for {key} (waited {})", tenths(waited));
    };
    let info = &holder.info;
    let who =
        info.label().map_or_else(|| format!("lock {}", short(info.lock_id_hash())), |label| escape(label.as_str()));
    format!(
        "waiting for {key}: held by {who} (fence {}) for {}; {} (waited {})",
        info.fence,
        human(info.held_for()),
        lease(holder),
        tenths(waited)
    )
}

/// The same for the one line of a spinner: what changes stands in front, where 80 columns show it.
pub(crate) fn waiting_briefly(key: &Key, holder: Option<&Holder>, waited: Duration) -> String {
    let (key, waited) = (escape(key.as_str()), human(waited));
    let Some(holder) = holder else { return format!("waited {waited} for {key}") };
    let info = &holder.info;
    let who =
        info.label().map_or_else(|| format!("lock {}", short(info.lock_id_hash())), |label| escape(label.as_str()));
    format!("waited {waited}, {} · {key}: held by {who} for {}", lease(holder), human(info.held_for()))
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

/// Somebody killed the watchdog.
pub(crate) fn watchdog_died(survivors: &[Process]) -> Failure {
    let what = "the watchdog was killed: the command was stopped, because nobody could have stopped it in time";
    let what = if survivors.is_empty() { what } else { "the watchdog was killed" };
    survivors
        .iter()
        .fold(Failure::new(exit::INTERNAL, "watchdog", what), |failure, process| failure.detail(survivor(process)))
}

/// What could not be stopped, and what that means for the lock.
pub(crate) fn still_running(survivors: &[Process], lease: Duration) -> Failure {
    let what =
        format!("not everything could be stopped; the lock is not given back, its lease ends in {}", human(lease));
    let failure = Failure::new(exit::LOST, "still-running", what)
        .hint("stop them as their own user, or as root, before the work is started elsewhere");
    survivors.iter().fold(failure, |failure, process| failure.detail(survivor(process)))
}

/// Somebody who could not be ended.
pub(crate) fn survivor(process: &Process) -> String {
    format!(
        "process {} ({}) could not be stopped by this user and is still running",
        process.pid,
        escape(&process.name)
    )
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
    use syncguard::{Fence, Label, LockId, Timestamp};

    fn holder(label: Option<&str>) -> Holder {
        let start = 1_794_751_331_000; // 14:02:11Z
        let id = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").unwrap();
        let at = Timestamp::from_millis;
        let info = LockInfo::new(
            Key::new("deploy:prod").unwrap(),
            id,
            Fence::new(41).unwrap(),
            at(start),
            at(start + 90_000),
            at(start + 77_000),
        );
        Holder { info: info.with_label(label.map(|label| Label::new(label).unwrap())), renewed: true }
    }

    fn text(failure: &Failure) -> String {
        let rendered = crate::output::render(failure);
        anstream::adapter::strip_str(&rendered).to_string()
    }

    #[test]
    fn a_locked_key_says_who_since_until_and_what_to_do() {
        let key = Key::new("deploy:prod").unwrap();

        let failure = locked(&key, Some(&holder(Some("ci@runner-7"))), Some(Duration::from_secs(5)), Asking::Run);

        let lock = short(LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").unwrap().hash());
        assert_eq!(
            text(&failure),
            format!(
                "error: deploy:prod is locked (waited 5.0s)\n  \
                   held by   ci@runner-7   (lock {lock}, fence 000000000000041)\n  \
                   since     14:02:11Z (1m 17s ago); lease ends in 13s and is being renewed\n\
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
    fn eighty_columns_show_the_lease_and_the_wait() {
        let key = Key::new("a-rather-long-key-as-people-have-them:production:eu-central-1").unwrap();
        let line = waiting_briefly(&key, Some(&holder(Some("ci@runner-7"))), Duration::from_secs(75));
        let shown: String = line.chars().take(78).collect();
        assert!(shown.starts_with("waited 1m 15s, lease ends in 13s and is being renewed"), "{shown}");
    }

    #[test]
    fn a_hostile_key_and_label_are_shown_escaped() {
        let key = Key::new("a\x1b[2Jb").unwrap();
        let failure = locked(&key, Some(&holder(Some("\x1b]0;pwned\x07"))), None, Asking::Acquire);

        let shown = text(&failure) + &waiting(&key, Some(&holder(Some("x\ny"))), Duration::ZERO);

        assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");
        assert!(shown.contains("a\\u{1b}[2Jb") && shown.contains("x\\ny"), "{shown}");
    }
}
