//! How does a command run while a lock is held?
//!
//! [`prepare`] checks what was asked for and forks the [`watchdog`] while nothing else exists yet. [`run`] takes the
//! lock ([`crate::taking`]), has the watchdog start the work ([`work`]), watches both until one ends ([`supervise`]),
//! has the work stopped if the lock is lost, then gives the lock back. What the work is told is in [`environment`], what
//! its sessions with PostgreSQL are told in [`fencing`],
//! what is left behind for machines in [`report`], and which processes belong to it in [`tree`].

pub(crate) mod environment;
mod fencing;
mod finish;
mod job;
mod keep;
mod locks;
pub(crate) mod orphans;
mod proc;
mod protocol;
mod report;
mod respawn;
mod supervise;
pub(crate) mod tree;
mod watchdog;
mod work;

use std::time::Duration;

use rustix::process::Signal;
use syncguard::{BootTime, Clock, LockBackend, Locker, SystemClock};

use crate::Ending;
use crate::args::RunArgs;
use crate::config::Backend;
use crate::exit::{self, Failure};
use crate::output::Output;
use crate::run::fencing::Fencing;
use crate::run::job::Job;
use crate::run::locks::Locks;
use crate::run::report::{Outcome, Report};
use crate::run::respawn::Respawn;
use crate::run::supervise::Watched;
use crate::run::watchdog::Plan;
use crate::run::work::{Forked, Work};
use crate::signals::{Blocked, Signals};
use crate::taking::{self, Taken, Wanted};

/// A run that is ready to start: arguments checked, signals blocked, watchdog forked.
pub(crate) struct Prepared {
    job: Job,
    backend: Backend,
    report: Report,
    blocked: Blocked,
    forked: Forked,
}

/// Prepares a run. The caller is the only thread: the watchdog is a fork of it.
pub(crate) fn prepare(
    args: RunArgs,
    resolve: impl FnOnce() -> Result<Backend, Failure>,
    output: Output,
) -> Result<Prepared, Failure> {
    let (report, require_watchdog) = (args.report.clone(), args.require_watchdog);
    let clear_backend_env = args.clear_backend_env;
    let fence_postgres = args.fence_postgres.clone();
    let mut job = job::job(args)?;
    let backend = resolve()?;
    job.fencing = fence_postgres.map(|given| Fencing::new(given, &backend)).transpose()?;
    let report = Report::create(report.as_deref(), &job.wanted.key)?;
    // Before anything is acquired: from here on no signal ends us with a lock in our hands.
    let more: &[Signal] = if job.own_group { &[Signal::CHILD, Signal::TSTP] } else { &[Signal::CHILD] };
    let blocked = Blocked::new(more).map_err(|error| internal("cannot block signals", &error))?;
    let plan = Plan {
        command: job.command.clone(),
        clear_backend_env,
        group: (!job.own_group).then(rustix::process::getpgrp),
        mask: blocked.original,
        kill_after: job.kill_after,
        output,
    };
    let forked = work::fork(plan).map_err(|error| internal("cannot start the watchdog", &error))?;
    if let Some(shortcoming) = work::shortcoming() {
        admit(shortcoming, require_watchdog, output)?;
    }
    Ok(Prepared { job, backend, report, blocked, forked })
}

fn internal(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(exit::INTERNAL, "internal", format!("{what}: {error}"))
}

/// Says before the start that the promise cannot be kept whole.
fn admit(shortcoming: &str, refuse: bool, output: Output) -> Result<(), Failure> {
    let what = format!("what the command starts may outlive a lost lock: {shortcoming}");
    if refuse {
        return Err(Failure::config(format!("{what}, and --require-watchdog is given")));
    }
    output.warn(&what, Some("--require-watchdog refuses to run then"));
    Ok(())
}

pub(crate) async fn run(prepared: Prepared, output: Output) -> Result<Ending, Failure> {
    let Prepared { job, backend, mut report, blocked, forked } = prepared;
    let conflict = job.conflict;
    let mut signals = Signals::read(&blocked).map_err(|error| internal("cannot read signals", &error))?;
    let mut work = Work::new(forked).map_err(|error| internal("cannot hear the watchdog", &error))?;
    let result = keep_going(job, &backend, &mut work, &mut signals, &mut report, output).await;
    let result = result.map_err(|failure| conflict.soften(failure.on(&backend)));
    report.end(&result);
    report.write(output);
    result
}

/// Runs the command, and with `--respawn` again and again.
async fn keep_going(
    mut job: Job,
    backend: &Backend,
    work: &mut Work,
    signals: &mut Signals,
    report: &mut Report,
    output: Output,
) -> Result<Ending, Failure> {
    let opened = taking::open(backend, job.wanted.wait, signals, output).await?;
    job.backend_name = opened.capabilities().backend.into_owned();
    job.backend_shown = backend.shown();
    let locker = Locker::new(opened);
    job.refuse_own(backend, &locker).await?;
    let mut respawn = Respawn::default();
    loop {
        let begun = SystemClock.boot();
        let outcome = once(&job, &locker, work, signals, report, output).await?;
        report.outcome(&outcome);
        let again = job.respawn && outcome.may_start_again();
        if !again {
            return Ok(outcome.ending(job.lost_code));
        }
        let Some(delay) = respawn.delay_after(SystemClock.boot().since(begun), outcome.lost) else { continue };
        output.respawn(&outcome.describe(), delay);
        tokio::select! {
            biased;
            signal = signals.next_stopping() => return Ok(Ending::Code(exit::from_signal(signal.as_raw()))),
            () = tokio::time::sleep(delay) => {}
        }
    }
}

/// One command under its locks.
async fn once(
    job: &Job,
    locker: &Locker,
    work: &mut Work,
    signals: &mut Signals,
    report: &mut Report,
    output: Output,
) -> Result<Outcome, Failure> {
    let (locks, waited, since) = take_all(job, locker, signals, output).await?;
    report.acquired(locks.main(), &job.backend_name, waited);
    let fence = locks.main().fence();
    // Where a key has been locked for years this is news: the space of locks may be another one than was meant.
    let first = if fence.get() == 1 { ", the first lock of this key there" } else { "" };
    output.detail(&format!("acquired with fence {fence} on {}{first}", job.backend_shown));
    if let Some(signal) = signals.pending_stop() {
        finish::release_all(&locks, output).await;
        return Err(stopped_before_start(signal));
    }
    if let Some(fencing) = &job.fencing
        && let Err(failure) = fencing.take_over(locks.main(), output).await
    {
        finish::release_all(&locks, output).await;
        return Err(failure);
    }
    let watched = Watched { job, locks: &locks, since, output };
    let outcome = match supervise::supervise(&watched, work, signals).await {
        Ok(outcome) => outcome,
        Err(failure) => {
            finish::release_all(&locks, output).await;
            return Err(failure);
        }
    };
    report.held(since);
    if !job.respawn {
        work.no_more();
    }
    if outcome.survivors.is_empty() {
        finish::finish(job, locker, locks, since, &outcome, output).await;
    } else {
        keep::keep(job, locks, &outcome.survivors, work, signals, output).await;
    }
    if outcome.watchdog_died { Err(crate::messages::watchdog_died(&outcome.survivors)) } else { Ok(outcome) }
}

/// Takes all keys in their order, which is the same in every process, or none.
async fn take_all(
    job: &Job,
    locker: &Locker,
    signals: &mut Signals,
    output: Output,
) -> Result<(Locks, Duration, BootTime), Failure> {
    let started = SystemClock.boot();
    let (mut guards, mut main, mut time) = (Vec::new(), 0, Duration::ZERO);
    for key in job.keys() {
        if *key == job.wanted.key {
            main = guards.len();
        }
        let wanted = Wanted { key: key.clone(), wait: job.wanted.wait.less(started), ..job.wanted.clone() };
        match taking::take(locker, &wanted, signals, output).await {
            Ok(Taken { guard, waited }) => {
                time += waited;
                guards.push(guard);
            }
            Err(failure) => {
                finish::release_all(&Locks::new(guards, 0), output).await;
                return Err(failure);
            }
        }
    }
    Ok((Locks::new(guards, main), time, SystemClock.boot()))
}

fn stopped_before_start(signal: Signal) -> Failure {
    let message = format!("stopped by {} before the command was started", crate::messages::signal_name(signal));
    Failure::new(exit::from_signal(signal.as_raw()), "interrupted", message).dying_from(signal)
}
