//! How does a command run while a lock is held?
//!
//! Take the lock ([`crate::taking`]), start the child ([`child`]), watch both until one ends ([`supervise`]), stop the child if
//! the lock is lost, then give the lock back. What the child is told is in [`environment`], what is left behind for machines in
//! [`report`], and [`watchdog`] stops the child when we cannot.

mod child;
pub(crate) mod environment;
mod finish;
mod report;
mod supervise;
pub(crate) mod watchdog;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use rustix::process::Signal;
use syncguard::{Key, LockBackend, Locker, RedactedUrl};

use crate::Ending;
use crate::args::RunArgs;
use crate::config::Backend;
use crate::exit::{self, Failure};
use crate::messages::Asking;
use crate::output::Output;
use crate::run::environment::Held;
use crate::run::report::{Outcome, Report};
use crate::run::supervise::Watched;
use crate::run::watchdog::Watchdog;
use crate::signals::Signals;
use crate::taking::{self, Taken, Wanted};
use crate::values::{self, OnLost, Wait};

/// The longest a child has between TERM and KILL unless asked otherwise.
const KILL_AFTER_AT_MOST: Duration = Duration::from_secs(10);
/// How soon a command that failed is started again, at first and at most.
const RESPAWN_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Everything about this run that stays the same from one child to the next.
pub(crate) struct Job {
    wanted: Wanted,
    command: Vec<OsString>,
    held: Held,
    backend_name: String,
    own_group: bool,
    hold_at_least: Option<Duration>,
    on_lost: OnLost,
    kill_after: Duration,
    pass_lock_id: bool,
    respawn: bool,
    conflict: Conflict,
}

/// How "not acquired" ends.
#[derive(Clone, Copy)]
pub(crate) struct Conflict {
    code: u8,
    silent: bool,
}

pub(crate) async fn run(
    args: RunArgs,
    resolve: impl FnOnce() -> Result<Backend, Failure>,
    output: Output,
) -> Result<Ending, Failure> {
    let (key, command) = values::key_and_command(&args.key_and_command)
        .map_err(|reason| Failure::usage(reason).hint("syncguard run [OPTIONS] KEY [--] COMMAND…"))?;
    let command = command.to_vec();
    let kill_after = kill_after(&args)?;
    let backend = resolve()?;
    let held = Held::inherited().with(&RedactedUrl::new(&backend.url).to_string(), &key)?;
    let mut report = Report::create(args.report.as_deref(), &key)?;
    // Before anything is acquired: from here on no signal ends us with a lock in our hands.
    let own_group = !std::io::stdin().is_terminal();
    let mut signals = Signals::install(own_group).map_err(|error| {
        Failure::new(exit::INTERNAL, "internal", format!("cannot install signal handlers: {error}"))
    })?;
    let job = job(args, key, command, held, own_group, kill_after);
    let result = work(job, &backend, &mut signals, &mut report, output).await;
    let result = result.map_err(|(failure, conflict)| soften(failure, conflict));
    report.end(&result);
    report.write(output);
    result
}

fn kill_after(args: &RunArgs) -> Result<Duration, Failure> {
    let ttl = args.taking.ttl.duration();
    match args.kill_after {
        None => Ok(KILL_AFTER_AT_MOST.min(ttl / 3)),
        // Renewal runs at a third of the lease: with more than half of it for the end, a single late renewal would stop the command.
        Some(given) if given > ttl / 2 => Err(Failure::usage("--kill-after is longer than half of the lease")
            .hint(format!("give it at most {}, or a longer --ttl", humantime::format_duration(ttl / 2)))),
        Some(given) => Ok(given),
    }
}

fn job(args: RunArgs, key: Key, command: Vec<OsString>, held: Held, own_group: bool, kill_after: Duration) -> Job {
    let taking = args.taking;
    let no_wait = taking.no_wait || args.skip_if_locked;
    let wanted = Wanted {
        key,
        ttl: taking.ttl,
        label: taking.label.unwrap_or_else(crate::commands::default_label),
        keep_alive: !args.no_renew,
        wait: if no_wait { Wait::AtMost(Duration::ZERO) } else { taking.wait },
        asking: Asking::Run,
    };
    let code = if args.skip_if_locked { exit::OK } else { taking.conflict_exit_code };
    Job {
        wanted,
        command,
        held,
        backend_name: String::new(),
        own_group,
        hold_at_least: args.hold_at_least,
        on_lost: args.on_lost,
        kill_after,
        pass_lock_id: args.pass_lock_id,
        respawn: args.respawn,
        conflict: Conflict { code, silent: args.skip_if_locked },
    }
}

fn soften(mut failure: Failure, conflict: Conflict) -> Failure {
    if failure.reason == "locked" {
        failure.code = conflict.code;
        failure.silent = conflict.silent;
    }
    failure
}

async fn work(
    mut job: Job,
    backend: &Backend,
    signals: &mut Signals,
    report: &mut Report,
    output: Output,
) -> Result<Ending, (Failure, Conflict)> {
    let conflict = job.conflict;
    let opened =
        taking::open(backend, job.wanted.wait, signals, output).await.map_err(|failure| (failure, conflict))?;
    job.backend_name = opened.capabilities().backend.into_owned();
    let locker = Locker::new(opened);
    let mut delay = RESPAWN_DELAY.0;
    loop {
        let outcome = once(&job, &locker, signals, report, output).await.map_err(|failure| (failure, conflict))?;
        report.outcome(outcome);
        let again = job.respawn && !outcome.was_asked_to_stop && !outcome.is_success();
        if !again {
            return Ok(outcome.ending());
        }
        if outcome.lost {
            delay = RESPAWN_DELAY.0;
            continue;
        }
        output.note(&format!(
            "the command ended with {}; starting it again in {} s",
            outcome.describe(),
            delay.as_secs()
        ));
        tokio::select! {
            biased;
            signal = signals.next_stopping() => return Ok(Ending::Code(exit::from_signal(signal.as_raw()))),
            () = tokio::time::sleep(delay) => {}
        }
        delay = (delay * 2).min(RESPAWN_DELAY.1);
    }
}

/// One child under one lock.
async fn once(
    job: &Job,
    locker: &Locker,
    signals: &mut Signals,
    report: &mut Report,
    output: Output,
) -> Result<Outcome, Failure> {
    let Taken { guard, waited, since } = taking::take(locker, &job.wanted, signals, output).await?;
    report.acquired(&guard, &job.backend_name, waited);
    output.detail(&format!("acquired with fence {}", guard.fence()));
    if let Some(signal) = signals.pending_stop().await {
        finish::release(&guard, output).await;
        return Err(stopped_before_start(signal));
    }
    let watchdog = Watchdog::start(job, &guard, output);
    let mut child = match child::start(job, &guard, watchdog.introduction()) {
        Ok(child) => child,
        Err(failure) => {
            watchdog.dismiss();
            finish::release(&guard, output).await;
            return Err(failure);
        }
    };
    let watched = Watched { job, lock: &guard, since, output };
    let outcome = supervise::supervise(&watched, &mut child, watchdog, signals).await?;
    report.held(since);
    finish::finish(job, locker, guard, since, &outcome, output).await;
    Ok(outcome)
}

fn stopped_before_start(signal: Signal) -> Failure {
    let message = format!("stopped by {} before the command was started", crate::messages::signal_name(signal));
    Failure::new(exit::from_signal(signal.as_raw()), "interrupted", message)
}
