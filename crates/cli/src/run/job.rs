//! What exactly is to be run, and under which locks?

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use rustix::process::Signal;
use syncguard::{Key, Label, Locker};

use super::environment::{self, Held};
use super::fencing::Fencing;
use super::locks::Locks;
use super::report::Outcome;
use crate::args::RunArgs;
use crate::config::Backend;
use crate::exit::{self, Failure};
use crate::messages::Asking;
use crate::output::human;
use crate::taking::Wanted;
use crate::values::{self, Background, GivenLabel, OnLost, Wait};

/// The longest a child has between TERM and KILL unless asked otherwise.
const KILL_AFTER_AT_MOST: Duration = Duration::from_secs(10);
/// A shorter lease ends while a busy machine is still carrying out the signals that end the work.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Everything about a run that stays the same from one child to the next.
pub(crate) struct Job {
    pub(crate) wanted: Wanted,
    /// All keys, KEY among them, in the order in which they are taken.
    keys: Vec<Key>,
    /// Those of `--also`, as they were given.
    also: Vec<Key>,
    pub(crate) command: Vec<OsString>,
    held: Held,
    pub(crate) backend_name: String,
    /// Its URL without secrets, for messages.
    pub(crate) backend_shown: String,
    /// Whether the work leads a process group of its own: only away from terminals, whose keys go to one group.
    pub(crate) own_group: bool,
    hold_at_least: Option<Duration>,
    once_per: Option<Duration>,
    pub(crate) on_lost: OnLost,
    /// What the work is told when somebody asks for a lock.
    pub(crate) on_asked: Option<Signal>,
    pub(crate) kill_after: Duration,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) background: Background,
    /// How long what could not be ended keeps the lock; as long as it lives unless somebody says otherwise.
    pub(crate) give_up_after: Option<Duration>,
    pass_lock_id: bool,
    pub(crate) respawn: bool,
    pub(crate) lost_code: u8,
    pub(crate) conflict: Conflict,
    /// The database whose sessions are fenced. Chosen after the backend, which may be it.
    pub(crate) fencing: Option<Fencing>,
}

/// How "not acquired" ends.
#[derive(Clone, Copy)]
pub(crate) struct Conflict {
    code: u8,
    silent: bool,
    /// An older holder than this is not one to be silent about.
    max_age: Option<Duration>,
}

impl Conflict {
    pub(crate) fn soften(self, mut failure: Failure) -> Failure {
        let Some(max_age) = self.max_age.filter(|max| failure.holder.as_ref().is_some_and(|it| it.held_for() > *max))
        else {
            return self.soften_young(failure);
        };
        failure.message = format!("{} for longer than {} (--skip-max-age)", failure.message, human(max_age));
        failure
    }

    fn soften_young(self, mut failure: Failure) -> Failure {
        if failure.reason == "locked" {
            failure.code = self.code;
            failure.silent = self.silent;
        }
        failure
    }
}

impl Job {
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Whether the work must end when the lock does.
    pub(crate) fn stops_on_loss(&self) -> bool {
        self.on_lost == OnLost::Kill
    }

    /// How long the lock is kept from when it was taken, and by which flag, if the work ended so.
    pub(crate) fn kept_for(&self, outcome: &Outcome) -> Option<(Duration, &'static str)> {
        let is_done = outcome.code == Some(0) && !outcome.timed_out;
        let once = self.once_per.filter(|_| is_done).map(|period| (period, "--once-per"));
        once.or_else(|| self.hold_at_least.map(|least| (least, "--hold-at-least")))
    }

    pub(crate) fn program(&self) -> String {
        self.command.first().map_or(String::new(), |program| program.to_string_lossy().into_owned())
    }

    /// Refuses keys that a run around us holds.
    pub(crate) async fn refuse_own(&mut self, backend: &Backend, locker: &Locker) -> Result<(), Failure> {
        self.held.refuse_own(backend, &self.keys, locker).await
    }

    /// What the work is told about its locks.
    pub(crate) fn variables(&self, locks: &Locks) -> Vec<(String, String)> {
        let mut variables =
            environment::variables(locks, &self.also, &self.held, &self.backend_name, self.pass_lock_id);
        if self.fencing.is_some() {
            variables.extend(Fencing::variables(locks.main()));
        }
        variables
    }
}

/// Checks what was asked for.
pub(crate) fn job(args: RunArgs) -> Result<Job, Failure> {
    let usage = |reason: String| Failure::usage(reason).hint("syncguard run [OPTIONS] KEY [--] COMMAND…");
    let (key, command) = values::key_and_command(&args.key_and_command, args.command.as_deref()).map_err(usage)?;
    let kill_after = kill_after(&args)?;
    if let (Some(age), Some(period)) = (args.skip_max_age, args.once_per)
        && age <= period
    {
        return Err(Failure::usage(
            "--skip-max-age is not longer than --once-per, which keeps the lock of work that is done",
        )
        .hint(format!("give it more than {}", human(period))));
    }
    let (taking, also) = (args.taking, args.also);
    let mut keys: Vec<Key> = also.iter().cloned().chain([key.clone()]).collect();
    keys.sort_unstable();
    keys.dedup();
    let no_wait = taking.no_wait || args.skip_if_locked;
    let wanted = Wanted {
        key,
        ttl: taking.ttl,
        label: label(taking.label, &command, args.once_per),
        keep_alive: !args.no_renew,
        wait: if no_wait { Wait::AtMost(Duration::ZERO) } else { taking.wait },
        asking: Asking::Run,
    };
    let code = if args.skip_if_locked { exit::OK } else { taking.conflict_exit_code };
    let on_terminal =
        std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
    Ok(Job {
        wanted,
        keys,
        also,
        command,
        held: Held::inherited(),
        backend_name: String::new(),
        backend_shown: String::new(),
        own_group: !on_terminal,
        hold_at_least: args.hold_at_least,
        once_per: args.once_per,
        on_lost: args.on_lost,
        on_asked: args.on_asked,
        kill_after,
        max_runtime: args.max_runtime,
        background: args.background,
        give_up_after: args.give_up_after,
        pass_lock_id: args.pass_lock_id,
        respawn: args.respawn,
        lost_code: args.lost_exit_code,
        conflict: Conflict { code, silent: args.skip_if_locked, max_age: args.skip_max_age },
        fencing: None,
    })
}

/// With `--once-per` it says so: a lock of work that is done looks like no other.
fn label(given: Option<GivenLabel>, command: &[OsString], once_per: Option<Duration>) -> Label {
    let label = given.and_then(|given| given.0).unwrap_or_else(|| crate::label::of_run(&command[0]));
    let longer = once_per.and_then(|period| Label::new(format!("{}, once per {}", label.as_str(), human(period))).ok());
    longer.unwrap_or(label)
}

fn kill_after(args: &RunArgs) -> Result<Duration, Failure> {
    let ttl = args.taking.ttl.duration();
    if ttl < SHORTEST_LEASE {
        return Err(Failure::usage("--ttl is too short to stop a command before the lease ends")
            .hint("give it at least 1s; a longer lease costs nothing while it is renewed"));
    }
    match args.kill_after {
        None => Ok(KILL_AFTER_AT_MOST.min(ttl / 3)),
        // Renewal runs at a third of the lease: with more than half of it for the end, a single late renewal would stop
        // the command.
        Some(given) if given > ttl / 2 => Err(Failure::usage("--kill-after is longer than half of the lease")
            .hint(format!("give it at most {}, or a longer --ttl", humantime::format_duration(ttl / 2)))),
        Some(given) => Ok(given),
    }
}
