//! What if not everything could be stopped?
//!
//! Whoever is still at work keeps the lock: it is renewed until the last of them has ended, or until somebody decides
//! otherwise (`--give-up-after`, another signal to stop).

use std::time::Duration;

use tokio::time::Instant;

use super::finish;
use super::job::Job;
use super::locks::Locks;
use super::tree::Process;
use super::work::Work;
use crate::messages;
use crate::output::Output;
use crate::signals::Signals;

const LOOK_EVERY: Duration = Duration::from_millis(500);
const SAY_EVERY: Duration = Duration::from_mins(1);

/// Keeps the locks for those that could not be ended.
pub(crate) async fn keep(
    job: &Job,
    locks: Locks,
    survivors: &[Process],
    work: &mut Work,
    signals: &mut Signals,
    output: Output,
) {
    work.bring_home();
    let until = job.give_up_after.map(|after| Instant::now() + after);
    let mut say = tokio::time::interval(SAY_EVERY);
    let mut look = tokio::time::interval(LOOK_EVERY);
    while locks.are_held() {
        tokio::select! {
            biased;
            _ = signals.next_stopping() => break,
            () = super::supervise::at(until) => break,
            _ = say.tick() => output.failure_if_heard(&messages::kept_for(survivors)),
            _ = look.tick() => if !work.kill_what_is_left() {
                output.note_if_heard("everything has ended now; the lock is given back");
                return finish::release_all(&locks, output).await;
            }
        }
    }
    let left = locks.remaining();
    for guard in locks.into_all() {
        guard.leak();
    }
    output.failure(&messages::still_running(survivors, left));
}
