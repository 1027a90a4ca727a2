//! Who ends first, the command or its lock?
//!
//! Watched at once: the work, our signals, the lease, and the clock of an end under way. When a lease has no more left
//! than `--kill-after` although renewal should have kept it fuller, the work is told to stop while the lock is still
//! ours, and is killed before it is not. When the backend says that the lock is gone, it is told at once. It is over
//! when no process of the work is left, not when the first one ends.

use std::time::Duration;

use rustix::process::Signal;
use syncguard::{BootTime, Clock, Guard, LossReason, SystemClock};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::job::Job;
use super::locks::Locks;
use super::protocol::Event;
use super::report::Outcome;
use super::watchdog::margin;
use super::work::{self, Work};
use crate::exit::Failure;
use crate::messages::{self, Cause, Measure};
use crate::output::Output;
use crate::signals::{self, Signals};
use crate::sys::Arrived;
use crate::values::{Background, OnLost};

/// How long what the command left behind is waited for before that is said.
const SAY_WAITING: Duration = Duration::from_secs(5);

/// What is watched.
pub(crate) struct Watched<'a> {
    pub(crate) job: &'a Job,
    pub(crate) locks: &'a Locks,
    pub(crate) since: BootTime,
    pub(crate) output: Output,
}

pub(crate) async fn supervise(
    watched: &Watched<'_>,
    work: &mut Work,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    let job = watched.job;
    let mut course = Course::default();
    let mut feeding = feeding(watched);
    let run_until = job.max_runtime.map(|longest| Instant::now() + longest);
    work.start(job.stops_on_loss().then(|| watched.locks.remaining()), job.variables(watched.locks));
    loop {
        tokio::select! {
            biased;
            event = work.next() => match event {
                Some(Event::Failed { errno }) => return Err(work::not_started(&job.program(), errno)),
                Some(event) => course.hear(event, watched, work),
                None => course.lose_the_watchdog(work).await,
            },
            arrived = signals.next() => course.pass_on(arrived, watched, work),
            // Before the loss that may follow at once: who reads only the first line learns what it is about.
            () = late_renewal(watched), if course.lost.is_none() && !course.renewal_is_late => course.warn_of_renewal(watched),
            (guard, cause) = ending_lease(watched), if course.lost.is_none() => course.lose(guard, cause, watched, work),
            guard = watched.locks.asked_to_release(), if !course.is_asked && course.lost.is_none() => course.hear_the_question(guard, watched, work),
            () = at(course.take_over_at), if course.take_over_at.is_some() => course.take_over(work).await,
            () = at(run_until), if run_until.is_some() && !course.timed_out => course.time_out(watched, work),
            () = at(course.say_waiting_at), if course.say_waiting_at.is_some() => course.say_waiting(watched),
            // An end under way has its own time: what the lease says no longer counts.
            _ = feeding.tick(), if course.lost.is_none() && course.take_over_at.is_none() => {
                if job.stops_on_loss() {
                    work.renewed(watched.locks.remaining());
                }
                course.look_for_recovery(watched);
            }
        }
        if course.is_over {
            return Ok(course.end());
        }
    }
}

fn feeding(watched: &Watched<'_>) -> Interval {
    let ttl = watched.locks.main().ttl().duration();
    let mut feeding = tokio::time::interval((ttl / 6).clamp(Duration::from_millis(50), Duration::from_secs(5)));
    feeding.set_missed_tick_behavior(MissedTickBehavior::Delay);
    feeding
}

pub(crate) async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Resolves when a lock is lost, or when so little of it is left that the command must stop now.
async fn ending_lease<'a>(watched: &Watched<'a>) -> (&'a Guard, Cause) {
    let kill_after = watched.job.kill_after;
    let (guard, loss) = watched.locks.remaining_below(kill_after + margin(kill_after)).await;
    let cause = match loss {
        Some(reason) => Cause::Gone(reason),
        None if watched.job.wanted.keep_alive => Cause::Unreachable { left: guard.remaining() },
        None => Cause::NotRenewed { left: guard.remaining() },
    };
    (guard, cause)
}

/// A lease that is renewed at each third has never less than this, unless renewals fail.
fn late(watched: &Watched<'_>) -> Duration {
    watched.locks.main().ttl().duration() / 2
}

async fn late_renewal(watched: &Watched<'_>) {
    if !watched.job.wanted.keep_alive {
        return std::future::pending().await;
    }
    watched.locks.remaining_below(late(watched)).await;
}

/// How long the command may take to stop.
fn grace(cause: Cause, kill_after: Duration) -> Duration {
    match cause {
        Cause::Unreachable { left } | Cause::NotRenewed { left } | Cause::Stalled { left } => {
            left.saturating_sub(margin(kill_after)).min(kill_after)
        }
        // The lease itself is over: another owner may be at work already.
        Cause::Gone(LossReason::Expired) => Duration::ZERO,
        Cause::Gone(_) => kill_after,
    }
}

/// What has happened so far.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
struct Course {
    /// How the command itself ended.
    exited: Option<(Option<i32>, Option<i32>)>,
    /// The lock was lost; whether the work was told.
    lost: Option<bool>,
    timed_out: bool,
    was_asked_to_stop: bool,
    watchdog_died: bool,
    survivors: Vec<super::tree::Process>,
    /// When we end the work ourselves, because the watchdog should have.
    take_over_at: Option<Instant>,
    say_waiting_at: Option<Instant>,
    renewal_is_late: bool,
    /// Somebody asked for a lock, and the work was told.
    is_asked: bool,
    is_over: bool,
}

impl Course {
    fn hear(&mut self, event: Event, watched: &Watched<'_>, work: &mut Work) {
        match event {
            Event::Exited { code, signal } => {
                self.exited = Some((code, signal));
                match watched.job.background {
                    Background::Wait => self.say_waiting_at = Some(Instant::now() + SAY_WAITING),
                    Background::Kill => self.stop(watched.job.kill_after, watched, work),
                    Background::Leave => {
                        work.leave();
                        self.is_over = true;
                    }
                }
            }
            Event::Empty => self.is_over = true,
            Event::Survivors(survivors) => {
                self.survivors = survivors;
                self.is_over = true;
            }
            Event::Overdue if self.lost.is_none() => {
                self.lose(watched.locks.main(), Cause::Stalled { left: watched.locks.remaining() }, watched, work);
            }
            Event::Overdue | Event::Started { .. } | Event::Failed { .. } => {}
        }
    }

    /// Tells the work to stop, and makes sure that it does.
    fn stop(&mut self, kill_in: Duration, watched: &Watched<'_>, work: &Work) {
        work.end(kill_in);
        // The watchdog kills then; half of what is kept for that later it has not.
        let late = Instant::now() + kill_in + margin(watched.job.kill_after) / 2;
        self.take_over_at = Some(self.take_over_at.map_or(late, |before| before.min(late)));
    }

    fn lose(&mut self, guard: &Guard, cause: Cause, watched: &Watched<'_>, work: &Work) {
        let grace = grace(cause, watched.job.kill_after);
        let (signal, kill_in) = match watched.job.on_lost {
            OnLost::Warn => (None, None),
            OnLost::Signal(signal) => {
                work.signal(signal);
                (Some(signal), None)
            }
            // With nothing left of the lease there is no time to ask politely.
            OnLost::Kill if grace.is_zero() => (Some(Signal::KILL), None),
            OnLost::Kill => (Some(Signal::TERM), Some(grace)),
        };
        if watched.job.on_lost == OnLost::Kill {
            self.stop(grace, watched, work);
        }
        self.lost = Some(signal.is_some());
        let measure = signal.map_or(Measure::None, |signal| Measure::Signalled { signal, kill_in });
        let held = SystemClock.boot().since(watched.since);
        let target = work.pid.map_or("the command".to_owned(), |pid| format!("process {pid} and all it started"));
        let fence = guard.fence().to_string();
        let message = messages::lost(guard.key(), held, cause, &target, measure, &fence);
        watched.output.failure_if_heard(&message.detail(format!("backend   {}", watched.job.backend_shown)));
    }

    /// The watchdog was killed, and the work has come home to us.
    async fn lose_the_watchdog(&mut self, work: &mut Work) {
        self.watchdog_died = true;
        self.take_over(work).await;
    }

    async fn take_over(&mut self, work: &mut Work) {
        self.survivors = work.take_over().await;
        self.take_over_at = None;
        self.is_over = true;
    }

    fn time_out(&mut self, watched: &Watched<'_>, work: &Work) {
        self.timed_out = true;
        self.stop(watched.job.kill_after, watched, work);
        let longest = watched.job.max_runtime.map_or(String::new(), |d| humantime::format_duration(d).to_string());
        watched.output.warn_if_heard(&format!("the command ran longer than {longest} (--max-runtime): stopping it"));
    }

    fn say_waiting(&mut self, watched: &Watched<'_>) {
        self.say_waiting_at = None;
        watched.output.note_if_heard(
            "the command has ended; the lock is kept until what it left running ends too (--background kill|leave)",
        );
    }

    /// Says that renewals fail, once until they do so no longer.
    fn warn_of_renewal(&mut self, watched: &Watched<'_>) {
        self.renewal_is_late = true;
        // Not late but lost: that is said next, and a lock that is gone will not be renewed again.
        if !watched.locks.are_held() {
            return;
        }
        let left = watched.locks.remaining();
        let stop = watched.job.stops_on_loss().then(|| left.saturating_sub(watched.job.kill_after));
        watched.output.warn_if_heard(&messages::renewal_is_late(watched.locks.main().key(), left, stop));
    }

    /// Somebody asks for the lock: whether to let go is the command's choice.
    fn hear_the_question(&mut self, guard: &Guard, watched: &Watched<'_>, work: &Work) {
        self.is_asked = true;
        if let Some(signal) = watched.job.on_asked {
            work.signal(signal);
        }
        watched.output.note_if_heard(&messages::asked(guard.key(), watched.job.on_asked));
    }

    fn look_for_recovery(&mut self, watched: &Watched<'_>) {
        if self.renewal_is_late && watched.locks.remaining() > late(watched) {
            self.renewal_is_late = false;
            watched.output.note_if_heard("the lease is renewed again");
        }
    }

    fn pass_on(&mut self, arrived: Arrived, watched: &Watched<'_>, work: &Work) {
        let signal = arrived.signal;
        self.was_asked_to_stop |= signals::is_stopping(signal);
        match signal {
            Signal::TERM => self.stop(watched.job.kill_after, watched, work),
            // The terminal's keys reached the work already: it shares our group. Twice would be too much for many
            // programs.
            Signal::INT | Signal::QUIT | Signal::WINCH if arrived.is_from_kernel && !watched.job.own_group => {}
            // We cannot renew while we are stopped, so the work must not run meanwhile.
            Signal::TSTP => {
                work.signal(Signal::STOP);
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
            }
            // Woken too late: the loss is handled next, and work that goes on before that would write with a stale
            // fence.
            Signal::CONT if watched.job.on_lost == OnLost::Kill && !watched.locks.are_held() => {}
            _ => {
                work.signal(signal);
                if signals::is_stopping(signal) {
                    work.signal(Signal::CONT);
                }
            }
        }
    }

    fn end(self) -> Outcome {
        // Killed by us before the watchdog could tell how it ended.
        let (code, signal) = self.exited.unwrap_or((None, Some(Signal::KILL.as_raw())));
        Outcome {
            code,
            signal,
            lost: self.lost.is_some(),
            timed_out: self.timed_out,
            was_asked_to_stop: self.was_asked_to_stop,
            watchdog_died: self.watchdog_died,
            survivors: self.survivors,
        }
    }
}
