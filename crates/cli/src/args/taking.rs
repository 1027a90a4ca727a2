//! What may be said about taking and keeping a lock?

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use syncguard::{Key, Ttl};

use crate::values::{self, Background, GivenLabel, OnLost, Wait};

// How a lock is taken, by `run` and `acquire` alike.
#[derive(Debug, Args)]
pub(crate) struct Taking {
    /// Do not wait
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Wait at most this long, or `forever`
    #[arg(short, long, value_name = "DUR", default_value = "5s", value_parser = values::wait, allow_hyphen_values = true)]
    pub(crate) wait: Wait,

    /// The lease: how long a dead holder keeps the lock
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,

    /// What others see as the holder [default: user@host:pid command]
    #[arg(long, value_name = "TEXT", value_parser = values::label)]
    pub(crate) label: Option<GivenLabel>,

    /// The exit code for "not acquired"
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) conflict_exit_code: u8,
}

const RUN_USAGE: &str = "syncguard run [OPTIONS] KEY [--] COMMAND…";

const RUN_HELP: &str = "\
Everything after KEY belongs to the command; there is no shell in between unless -c is given. It sees SYNCGUARD_KEY, \
SYNCGUARD_KEY_HASH, SYNCGUARD_FENCE, SYNCGUARD_LOCK_ID_HASH, SYNCGUARD_TTL_MS and SYNCGUARD_BACKEND.

The command and everything it starts, daemons too, end before the lock does: when it is lost, when syncguard is killed or \
stopped, and within --kill-after when syncguard gets TERM. What the command leaves running keeps the lock until it ends \
(--background). Processes of another user cannot be stopped; they are named.

Durations need a unit: 500ms, 30s, 10m, 1h30m.

Examples:
  syncguard run nightly-report -- ./report.sh
  syncguard run -w 30m --ttl 60s --label \"$RUN_ID\" deploy:prod -- ./deploy.sh
  syncguard run --skip-if-locked --once-per 23h --require-remote cron:report -- ./report.sh
  syncguard run -w forever --ttl 15s --respawn leader:mailer -- ./mailer
  syncguard run --fence-postgres=postgres://app@db/books ledger:close -- psql -f close.sql
  syncguard run ledger:close -- sh -c 'echo \"my fence is $SYNCGUARD_FENCE\"'";

// `run`
#[derive(Debug, Args)]
#[command(override_usage = RUN_USAGE, after_long_help = RUN_HELP)]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) taking: Taking,

    /// Do not renew the lease: the command is stopped when it ends
    #[arg(long)]
    pub(crate) no_renew: bool,

    /// If the command ends sooner, keep the lock that long
    #[arg(long, value_name = "DUR", value_parser = values::lease_like, allow_hyphen_values = true)]
    pub(crate) hold_at_least: Option<Duration>,

    /// If it is held: do nothing, say nothing, exit 0 (= -n -E 0)
    #[arg(long, conflicts_with_all = ["wait", "conflict_exit_code"])]
    pub(crate) skip_if_locked: bool,

    /// With --skip-if-locked: a holder older than this is no success, but exit 75
    #[arg(long, value_name = "DUR", requires = "skip_if_locked", value_parser = values::duration, allow_hyphen_values = true, hide_short_help = true)]
    pub(crate) skip_max_age: Option<Duration>,

    /// After success keep the lock until this long after it was taken: nobody does it again before
    #[arg(long, value_name = "DUR", conflicts_with_all = ["hold_at_least", "respawn"], value_parser = values::lease_like, allow_hyphen_values = true, hide_short_help = true)]
    pub(crate) once_per: Option<Duration>,

    /// When the lock is lost: kill, warn, or signal:SIG
    #[arg(long, value_name = "WHAT", default_value = "kill", value_parser = values::on_lost)]
    pub(crate) on_lost: OnLost,

    /// When somebody asks for the lock (break --ask): send this signal to the command
    #[arg(long, value_name = "SIG", value_parser = values::signal)]
    pub(crate) on_asked: Option<Signal>,

    /// The exit code after a loss
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::LOST, hide_short_help = true)]
    pub(crate) lost_exit_code: u8,

    /// Time between TERM and KILL, then and when we get TERM [default: ttl/3, at most 10s]
    #[arg(long, value_name = "DUR", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,

    /// Stop the command after this long (exit 124)
    #[arg(long, value_name = "DUR", value_parser = values::duration, allow_hyphen_values = true)]
    pub(crate) max_runtime: Option<Duration>,

    /// What the command leaves running when it ends: wait for it, kill it, or leave it without the lock
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    pub(crate) background: Background,

    /// What cannot be stopped keeps the lock at most this long [default: as long as it runs]
    #[arg(long, value_name = "DUR", value_parser = values::duration, allow_hyphen_values = true, hide_short_help = true)]
    pub(crate) give_up_after: Option<Duration>,

    /// Refuse to run where processes could outlive a lost lock (exit 78)
    #[arg(long, hide_short_help = true)]
    pub(crate) require_watchdog: bool,

    /// Hold this lock as well: all or none; may be repeated
    #[arg(long, value_name = "KEY", value_parser = values::KeyParser, allow_hyphen_values = true)]
    pub(crate) also: Vec<Key>,

    /// After a loss or a failure, wait for the lock and start again
    #[arg(long)]
    pub(crate) respawn: bool,

    /// Run this line by `sh -c` instead of COMMAND
    #[arg(short = 'c', long, value_name = "LINE", allow_hyphen_values = true)]
    pub(crate) command: Option<OsString>,

    /// Give the command the lock's secret as `SYNCGUARD_LOCK_ID`
    #[arg(long)]
    pub(crate) pass_lock_id: bool,

    /// Keep from the command the variables that lead to the backend, `SYNCGUARD_URL` and `PGPASSWORD` among them
    #[arg(long, hide_short_help = true)]
    pub(crate) clear_backend_env: bool,

    /// Fence the command's sessions with `PostgreSQL`: end those of older holders, and set PGOPTIONS [URL: `DATABASE_URL`,
    /// else the backend's]
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = "", hide_short_help = true)]
    pub(crate) fence_postgres: Option<SecretUrl>,

    /// Write what happened to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// The lock's name, then the command and its arguments
    // One list, so that nothing after the key is ever taken for a flag of ours.
    #[arg(value_names = ["KEY", "COMMAND"], required = true, num_args = 1.., trailing_var_arg = true)]
    pub(crate) key_and_command: Vec<OsString>,
}

/// A URL that may hold a password.
#[derive(Clone)]
#[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL has such fences"))]
pub(crate) struct SecretUrl(pub(crate) String);

impl std::str::FromStr for SecretUrl {
    type Err = std::convert::Infallible;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        Ok(Self(url.to_owned()))
    }
}

impl std::fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretUrl(…)")
    }
}

// `acquire`
#[derive(Debug, Args)]
#[command(after_long_help = "\
The handle is a secret: whoever knows it can release the lock. With --format env a failure prints text that makes `eval` fail \
and unsets the variables; `|| exit` after it is what keeps a script from going on without the lock.

Examples:
  id=$(syncguard acquire --ttl 2m deploy:prod) && …; printf %s \"$id\" | syncguard release -
  eval \"$(syncguard acquire --format env deploy:prod)\" || exit; trap 'syncguard release' EXIT")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) taking: Taking,

    /// How to print the handle: `id`, or `env` for the shell's eval
    #[arg(long, value_name = "FORM", default_value = "id", conflicts_with = "json")]
    pub(crate) format: Format,

    /// The lock's name
    #[arg(value_name = "KEY", value_parser = values::KeyParser)]
    pub(crate) key: Key,
}

/// How `acquire` prints the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The lock id alone.
    Id,
    /// Assignments for a shell.
    Env,
}

// `extend`
#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    /// The new lease, from now
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,

    #[command(flatten)]
    pub(crate) handle: Handle,
}

// `release`
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) handle: Handle,
}

// The secret that `acquire` printed. An argument shows in `ps`; the variable and stdin do not.
#[derive(Args)]
pub(crate) struct Handle {
    /// The lock id that acquire printed, or `-` to read it from stdin
    // One id in sixty-four begins with a hyphen.
    #[arg(value_name = "LOCK_ID", env = "SYNCGUARD_LOCK_ID", hide_env_values = true, allow_hyphen_values = true)]
    pub(crate) lock_id: Option<String>,
}

// The derived form would print the secret.
impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle(…)")
    }
}
