//! What may be typed?
//!
//! One struct per command; flags that every command has are in [`Global`], those of taking a lock in [`Taking`]. What
//! clap cannot say (a key is 1 to 512 bytes, `--kill-after` fits into the lease) is checked in [`crate::values`] and by
//! the commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use syncguard::{Key, Label, Ttl};

use crate::values::{self, Background, OnLost, Wait};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  cron on many hosts, once:   syncguard run --skip-if-locked --hold-at-least 50s --require-remote cron:report -- ./report.sh
  deploy mutex:               syncguard run -w 30m --ttl 60s --label \"$RUN_ID\" deploy:prod -- ./deploy.sh
  migrations in pods:         syncguard run -w 10m migrate:app -- ./migrate up
  leader-only worker:         syncguard run -w forever --ttl 15s --respawn leader:mailer -- ./mailer
  by hand:                    eval \"$(syncguard acquire --format env deploy:prod)\" || exit; trap 'syncguard release' EXIT

Exit codes:
  the command's own, 128+n    it ran
  75  not acquired            79  acquired, then lost; the command was stopped
  64  usage                   69  backend unreachable     70  internal
  77  credentials             78  configuration           126/127  command not executable / not found";

/// The version, and which backends were compiled in.
fn version() -> &'static str {
    static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let all = [
            ("sqlite", cfg!(feature = "sqlite")),
            ("redis", cfg!(feature = "redis")),
            ("postgres", cfg!(feature = "postgres")),
            ("firestore", cfg!(feature = "firestore")),
        ];
        let compiled: Vec<&str> = all.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name).collect();
        format!("{} (backends: {})", env!("CARGO_PKG_VERSION"), compiled.join(", "))
    });
    &TEXT
}

/// Hold a distributed lock around a command.
#[derive(Debug, Parser)]
#[command(name = "syncguard", version = version(), styles = STYLES, max_term_width = 110, after_long_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command understands.
#[derive(Args)]
#[command(next_help_heading = "Backend and output")]
#[allow(clippy::struct_excessive_bools, reason = "one field per flag")]
pub(crate) struct Global {
    /// Backend, for example `sqlite:PATH` or `redis://HOST`
    #[arg(short, long, global = true, env = "SYNCGUARD_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// Read the backend's URL from a file, to keep its password out of `ps`
    #[arg(
        long,
        global = true,
        env = "SYNCGUARD_URL_FILE",
        hide_env_values = true,
        value_name = "FILE",
        hide_short_help = true
    )]
    pub(crate) url_file: Option<PathBuf>,

    /// Refuse a backend that only this machine can see (exit 78)
    #[arg(long, global = true)]
    pub(crate) require_remote: bool,

    /// `remote` refuses a local backend, `local` silences the warning about one under CI or Kubernetes
    #[arg(
        long,
        global = true,
        env = "SYNCGUARD_REQUIRE",
        hide_env_values = true,
        value_name = "WHERE",
        hide_short_help = true
    )]
    pub(crate) require: Option<String>,

    /// Refuse a connection that is not encrypted (exit 78)
    #[arg(long, global = true)]
    pub(crate) require_tls: bool,

    /// Speak JSON: one object, errors too
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say more; twice for the library's own log
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say nothing but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Color,

    /// The library's log on stderr: off, error, warn, info, debug, trace
    #[arg(
        long,
        global = true,
        env = "SYNCGUARD_LOG",
        hide_env_values = true,
        value_name = "LEVEL",
        hide_short_help = true
    )]
    pub(crate) log: Option<String>,
}

// The derived form would print the URL with its password.
impl std::fmt::Debug for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Global").finish_non_exhaustive()
    }
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Box<RunArgs>),
    /// Take a lock and print its handle (it is not renewed)
    Acquire(AcquireArgs),
    /// Reset a lease to now + ttl
    Extend(ExtendArgs),
    /// Give a lock back
    Release(ReleaseArgs),
    /// Is it held, until when, with which fence? (exit 0 held, 1 free)
    Status(StatusArgs),
    /// Check connectivity, rights, schema, durability and clock
    Doctor(DoctorArgs),
    /// Compare a fence with the highest one seen, for scripts that guard a resource
    #[command(subcommand)]
    Fence(crate::commands::fence::FenceCommand),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Print the SQL that makes the tables of PostgreSQL
    Schema(SchemaArgs),
    /// Print a manual page
    Man(ManArgs),
    /// Wait until a lock is free, without taking it (exit 75 if it is not in time)
    Wait(WaitArgs),
}

/// How a lock is taken, by `run` and `acquire` alike.
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

    /// What waiters see as the holder [default: user@host]
    #[arg(long, value_name = "TEXT", value_parser = values::label)]
    pub(crate) label: Option<Label>,

    /// The exit code for "not acquired"
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) conflict_exit_code: u8,
}

const RUN_USAGE: &str = "syncguard run [OPTIONS] KEY [--] COMMAND…";

const RUN_HELP: &str = "\
Everything after KEY belongs to the command; there is no shell in between unless -c is given. It sees SYNCGUARD_KEY,
SYNCGUARD_KEY_HASH, SYNCGUARD_FENCE, SYNCGUARD_LOCK_ID_HASH, SYNCGUARD_TTL_MS and SYNCGUARD_BACKEND.

The command and everything it starts, daemons too, end before the lock does: when it is lost, when syncguard is killed or
stopped, and within --kill-after when syncguard gets TERM. What the command leaves running keeps the lock until it ends
(--background). Processes of another user cannot be stopped; they are named.

Durations need a unit: 500ms, 30s, 10m, 1h30m.

Examples:
  syncguard run nightly-report -- ./report.sh
  syncguard run -w 30m --ttl 60s --label \"$RUN_ID\" deploy:prod -- ./deploy.sh
  syncguard run --skip-if-locked --hold-at-least 50s --require-remote cron:report -- ./report.sh
  syncguard run -w forever --ttl 15s --respawn leader:mailer -- ./mailer
  syncguard run ledger:close -- sh -c 'echo \"my fence is $SYNCGUARD_FENCE\"'";

/// `run`
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

    /// When the lock is lost: kill, warn, or signal:SIG
    #[arg(long, value_name = "WHAT", default_value = "kill", value_parser = values::on_lost)]
    pub(crate) on_lost: OnLost,

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

    /// Write what happened to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    /// The lock's name, then the command and its arguments
    // One list, so that nothing after the key is ever taken for a flag of ours.
    #[arg(value_names = ["KEY", "COMMAND"], required = true, num_args = 1.., trailing_var_arg = true)]
    pub(crate) key_and_command: Vec<OsString>,
}

/// `acquire`
#[derive(Debug, Args)]
#[command(after_long_help = "\
The handle is a secret: whoever knows it can release the lock. With --format env a failure prints text that makes `eval` fail
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

/// `extend`
#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    /// The new lease, from now
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = values::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,

    #[command(flatten)]
    pub(crate) handle: Handle,
}

/// `release`
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) handle: Handle,
}

/// The secret that `acquire` printed. An argument shows in `ps`; the variable and stdin do not.
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

/// `status`
#[derive(Args)]
pub(crate) struct StatusArgs {
    /// The lock's name
    #[arg(value_name = "KEY", value_parser = values::KeyParser, required_unless_present = "id")]
    pub(crate) key: Option<Key>,

    /// Look by lock id instead
    #[arg(long, value_name = "ID", conflicts_with = "key", allow_hyphen_values = true)]
    pub(crate) id: Option<String>,
}

// The derived form would print the secret.
impl std::fmt::Debug for StatusArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusArgs").field("key", &self.key).finish_non_exhaustive()
    }
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: clap_complete::Shell,
}

/// `schema`
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// The table of the locks, if it is not the default one
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<String>,

    /// The table of the counters
    #[arg(long, value_name = "NAME")]
    pub(crate) fence_table: Option<String>,

    /// Also what makes the server refuse to lower or delete a counter
    #[arg(long)]
    pub(crate) protect: bool,
}

/// `man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command whose page is wanted; without it, that of the program
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Option<String>,
}

/// `wait`
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait at most this long, or `forever`
    #[arg(short, long, value_name = "DUR", default_value = "forever", value_parser = values::wait)]
    pub(crate) wait: Wait,

    /// The lock's name
    #[arg(value_name = "KEY", value_parser = values::KeyParser)]
    pub(crate) key: Key,
}

/// `doctor`
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Make warnings fail too
    #[arg(long)]
    pub(crate) strict: bool,
}
