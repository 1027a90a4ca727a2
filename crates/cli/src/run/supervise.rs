//! Who ends first, the command or its lock?
//!
//! Four things are watched at once: the child, our signals, the lease, and the clock of a loss under way. When a lease has
//! no more left than `--kill-after` although renewal should have kept it fuller, the command is told to stop while the lock
//! is still ours, and is killed before it is not. When the backend says that the lock is gone, it is told at once.

use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use syncguard::{BootTime, Clock, Guard, SystemClock};

use super::Job;
use super::child::{Started, Target};
use super::report::Outcome;
use super::watchdog::Watchdog;
use crate::exit::{self, Failure};
use crate::messages::{self, Cause, Measure};
use crate::output::Output;
use crate::signals::{self, Signals};
use crate::values::OnLost;

/// What is watched.
pub(crate) struct Watched<'a> {
    pub(crate) job: &'a Job,
    pub(crate) lock: &'a Guard,
    pub(crate) since: BootTime,
    pub(crate) output: Output,
}

/// A loss that was noticed, and what is still to be done about it.
struct Loss {
    /// When the group is killed; never for `warn` and `signal`.
    kill_at: Option<tokio::time::Instant>,
    grace: Option<Duration>,
    stops_the_command: bool,
}

pub(crate) async fn supervise(
    watched: &Watched<'_>,
    child: &mut Started,
    mut watchdog: Watchdog,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    let target = child.target;
    let mut loss: Option<Loss> = None;
    let mut was_asked_to_stop = false;
    let status = loop {
        let kill_at = loss.as_ref().and_then(|loss| loss.kill_at);
        tokio::select! {
            biased;
            status = child.process.wait() => break status,
            signal = signals.next() => {
                was_asked_to_stop |= signals::is_stopping(signal);
                pass_on(signal, target, watched);
            }
            cause = ending_lease(watched), if loss.is_none() => {
                let begun = begin(watched, target, cause);
                if let Some(grace) = begun.grace {
                    watchdog.kill_in(grace);
                }
                loss = Some(begun);
            }
            () = at(kill_at), if kill_at.is_some() => {
                target.signal(Signal::KILL);
                if let Some(loss) = &mut loss {
                    loss.kill_at = None;
                }
            }
            // A loss under way has its own time: what the lease says no longer counts.
            () = watchdog.tick(), if watchdog.is_running() && loss.is_none() => watchdog.feed(watched.lock),
        }
    };
    if let Some(loss) = loss.as_ref().filter(|loss| loss.stops_the_command) {
        clear_group(target, loss).await;
    }
    watchdog.dismiss();
    let status = status.map_err(|error| {
        target.signal(Signal::KILL);
        Failure::new(exit::INTERNAL, "internal", format!("cannot wait for the command: {error}"))
    })?;
    Ok(outcome(status, loss.is_some_and(|loss| loss.stops_the_command), was_asked_to_stop))
}

fn outcome(status: ExitStatus, lost: bool, was_asked_to_stop: bool) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    Outcome { code: status.code(), signal: status.signal(), lost, was_asked_to_stop }
}

async fn at(instant: Option<tokio::time::Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Resolves when the lock is lost, or when so little of it is left that the command must stop now.
async fn ending_lease(watched: &Watched<'_>) -> Cause {
    let lock = watched.lock;
    tokio::select! {
        biased;
        reason = lock.lost() => Cause::Gone(reason),
        () = lock.remaining_below(watched.job.kill_after + margin(watched.job.kill_after)) => match lock.loss() {
            Some(reason) => Cause::Gone(reason),
            None if watched.job.wanted.keep_alive => Cause::Unreachable { left: lock.remaining() },
            None => Cause::NotRenewed { left: lock.remaining() },
        },
    }
}

fn begin(watched: &Watched<'_>, target: Target, cause: Cause) -> Loss {
    let grace = grace(cause, watched.job.kill_after);
    let (signal, kill_in) = match watched.job.on_lost {
        OnLost::Warn => (None, None),
        OnLost::Signal(signal) => (Some(signal), None),
        // With nothing left of the lease there is no time to ask politely.
        OnLost::Kill if grace.is_zero() => (Some(Signal::KILL), None),
        OnLost::Kill => (Some(Signal::TERM), Some(grace)),
    };
    if let Some(signal) = signal {
        target.signal(signal);
        // A stopped process sees TERM only when it goes on.
        if signal == Signal::TERM {
            target.signal(Signal::CONT);
        }
    }
    let measure = signal.map_or(Measure::None, |signal| Measure::Signalled { signal, kill_in });
    let held = SystemClock.boot().since(watched.since);
    let fence = watched.lock.fence().to_string();
    let message = messages::lost(watched.lock.key(), held, cause, &target.name(), measure, &fence);
    watched.output.failure(&message);
    let kill_at = kill_in.map(|after| tokio::time::Instant::now() + after);
    Loss { kill_at, grace: kill_in, stops_the_command: signal.is_some() }
}

/// What is kept of the lease beyond the KILL: a busy machine takes its time to carry out a signal.
fn margin(kill_after: Duration) -> Duration {
    (kill_after / 5).min(Duration::from_millis(200))
}

/// How long the command may take to stop.
fn grace(cause: Cause, kill_after: Duration) -> Duration {
    match cause {
        Cause::Unreachable { left } | Cause::NotRenewed { left } => {
            left.saturating_sub(margin(kill_after)).min(kill_after)
        }
        // The lease itself is over: another owner may be at work already.
        Cause::Gone(syncguard::LossReason::Expired) => Duration::ZERO,
        Cause::Gone(_) => kill_after,
    }
}

/// The child is gone; what it started has the rest of its time, and not more.
async fn clear_group(target: Target, loss: &Loss) {
    const LOOK: Duration = Duration::from_millis(10);
    while let Some(kill_at) = loss.kill_at.filter(|kill_at| tokio::time::Instant::now() < *kill_at) {
        if target.is_gone() {
            return;
        }
        tokio::time::sleep_until(kill_at.min(tokio::time::Instant::now() + LOOK)).await;
    }
    target.signal(Signal::KILL);
}

fn pass_on(signal: Signal, target: Target, watched: &Watched<'_>) {
    match (signal, target) {
        // The terminal's keys reached the child already: it shares our group. Twice would be too much for many programs.
        (Signal::INT | Signal::QUIT | Signal::WINCH, Target::Tree(_)) => {}
        // We cannot renew while we are stopped, so the child must not run meanwhile.
        (Signal::TSTP, _) => {
            target.signal(Signal::STOP);
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
        }
        // Woken too late: the loss is handled next, and a child that goes on before that would write with a stale fence.
        (Signal::CONT, _) if watched.job.on_lost == OnLost::Kill && !watched.lock.is_held() => {}
        _ => target.signal(signal),
    }
}
