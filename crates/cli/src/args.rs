//! What may be typed?
//!
//! One struct per command; flags that every command has are in [`Global`], those of taking a lock, of looking and of
//! operators in their own files. What clap cannot say (a key is 1 to 512 bytes, `--kill-after` fits into the lease) is
//! checked in [`crate::values`] and by the commands.

mod looking;
mod operator;
mod taking;

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

pub(crate) use looking::{ListArgs, Sort, StatusArgs, WaitArgs, WatchArgs};
pub(crate) use operator::{BenchArgs, BreakArgs, DoctorArgs};
pub(crate) use taking::{AcquireArgs, ExtendArgs, Format, Handle, ReleaseArgs, RunArgs, SecretUrl};

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

/// The program as far as `run` needs it.
///
/// Most starts are of `run`, and laying out sixteen commands, each with a copy of what all of them understand, takes longer
/// than taking a lock. Whatever this refuses is for [`Cli`] to answer.
#[derive(Debug, Parser)]
#[command(name = "syncguard", disable_help_subcommand = true)]
pub(crate) struct RunCli {
    #[command(flatten)]
    global: Global,

    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Debug, Subcommand)]
enum RunCommand {
    Run(Box<RunArgs>),
}

impl From<RunCli> for Cli {
    fn from(cli: RunCli) -> Self {
        let RunCommand::Run(args) = cli.command;
        Self { global: cli.global, command: Command::Run(args) }
    }
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
// Deferred: only the command that is asked for has its flags laid out. What they hold is commented by `//`, since clap would
// take a doc comment for the help of the whole command.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
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
    /// Wait until a lock is free, without taking it (exit 75 if it is not in time)
    Wait(WaitArgs),
    /// Show the live locks, the oldest first
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show the live locks as they come and go
    Watch(WatchArgs),
    /// Take a lock away from its holder, or ask for it: the last resort
    Break(BreakArgs),
    /// Remove dead locks and say how many (never a fence counter)
    Purge,
    /// Check connectivity, rights, schema, durability and clock
    Doctor(DoctorArgs),
    /// Measure latency, throughput and hand-over, and check that locks exclude
    Bench(BenchArgs),
    /// Compare a fence with the highest one seen, for scripts that guard a resource
    #[command(subcommand)]
    Fence(crate::commands::fence::FenceCommand),
    /// Print the SQL that makes the tables of PostgreSQL
    Schema(SchemaArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Print a manual page
    Man(ManArgs),
}

// `completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: clap_complete::Shell,
}

// `schema`
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

// `man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command whose page is wanted, as in `fence check`; without it, that of the program
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = &str> {
        ["syncguard"].into_iter().chain(line.split_whitespace())
    }

    #[test]
    fn a_run_is_understood_in_the_same_way_without_the_other_commands() {
        for line in [
            "run k true",
            "run k -- true --help",
            "--url sqlite:x run -n --ttl 5s --label run k -- status run",
            "run --json -vv --also a --also b --on-lost signal:HUP -E 3 k true",
            "-q run --skip-if-locked --respawn -c true k",
        ] {
            let alone = RunCli::try_parse_from(words(line)).map(Cli::from).map(|cli| format!("{cli:?}"));
            let whole = Cli::try_parse_from(words(line)).map(|cli| format!("{cli:?}"));
            assert_eq!(alone.ok(), Some(whole.expect(line)), "{line}");
        }
    }

    #[test]
    fn whatever_is_no_run_is_left_to_the_whole_program() {
        for line in
            ["run", "run --help", "--version run k true", "status run", "--url run status k", "help run", "ls run"]
        {
            assert!(RunCli::try_parse_from(words(line)).is_err(), "{line}");
        }
    }
}
