//! What becomes of the locks when the command has ended?
//!
//! They are given back, or kept for the rest of `--hold-at-least` or, after success, `--once-per`. Either may fail; that is a warning and never the
//! command's exit code. What becomes of them while something is left that could not be stopped is in [`super::keep`].

use std::time::Duration;

use syncguard::{BootTime, Clock, ErrorCode, ExtendOutcome, Guard, Locker, ReleaseOutcome, SystemClock};

use super::job::Job;
use super::locks::Locks;
use super::report::Outcome;
use crate::output::Output;

/// A release that hangs must not keep the command's result from its caller.
const LIMIT: Duration = Duration::from_secs(5);

pub(crate) async fn finish(
    job: &Job,
    locker: &Locker,
    locks: Locks,
    since: BootTime,
    outcome: &Outcome,
    output: Output,
) {
    if outcome.lost {
        // The message is out already, and the backend may be gone: try, shortly and quietly.
        for guard in locks.all() {
            let _ = tokio::time::timeout(Duration::from_millis(500), guard.release()).await;
        }
        return;
    }
    let held = SystemClock.boot().since(since);
    let rest = job.kept_for(outcome).map(|(time, flag)| (time.saturating_sub(held), flag));
    match rest.filter(|(rest, _)| *rest >= Duration::from_millis(1)) {
        Some((rest, flag)) => {
            for guard in locks.into_all() {
                hold(locker, guard, rest, flag, output).await;
            }
        }
        None => release_all(&locks, output).await,
    }
}

/// Leaves the lock behind for the rest of the time. Renewal ends first, or it would undo the extension.
async fn hold(locker: &Locker, guard: Guard, rest: Duration, flag: &str, output: Output) {
    let lock_id = guard.leak();
    match tokio::time::timeout(LIMIT, locker.extend_id(&lock_id, rest)).await {
        Ok(Ok(ExtendOutcome::Extended(_))) => {}
        Ok(Ok(ExtendOutcome::Absent(_))) => {
            let what = format!("the lock was gone before {flag} was over; it may have been taken elsewhere");
            output.warn(&what, None);
        }
        Ok(Err(error)) => {
            output.warn(&format!("the lock could not be kept for {flag}: {error}"), error.hint());
        }
        Err(_) => output.warn(&format!("the lock could not be kept for {flag}: no answer in time"), None),
    }
}

/// Gives all locks back, the last one first.
pub(crate) async fn release_all(locks: &Locks, output: Output) {
    for guard in locks.all().iter().rev() {
        release(guard, output).await;
    }
}

async fn release(guard: &Guard, output: Output) {
    match tokio::time::timeout(LIMIT, guard.release()).await {
        Ok(Ok(ReleaseOutcome::Released)) => output.detail("released"),
        Ok(Ok(ReleaseOutcome::Absent(_))) => {
            output
                .warn("the lock was gone when it was to be released: the end of the command may have overlapped", None);
        }
        Ok(Err(error)) if error.code() == ErrorCode::LockLost => {
            output.warn("the lock was lost just before it was to be released", None);
        }
        Ok(Err(error)) => {
            output.warn(&format!("the lock was not released: {error}"), Some("it ends with its lease"));
        }
        Err(_) => output.warn("the lock was not released: no answer in time", Some("it ends with its lease")),
    }
}
