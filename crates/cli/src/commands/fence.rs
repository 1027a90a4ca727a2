//! May a script with this fence go on, and which tables ask for one?
//!
//! `check` is for scripts: marks are kept in a folder, one file for each key, or in the database that a URL names. A
//! script that writes elsewhere after a yes is in two steps; that the help says so is all that can be done here. Databases
//! and services have guards that need only one. `protect` and `status` are for tables of PostgreSQL ([`postgres`]).

#[cfg(feature = "postgres")]
pub(crate) mod postgres;

use clap::{Args, Subcommand};
use serde::Serialize;
use syncguard::fenced::file::FileMarks;
use syncguard::fenced::{FenceError, HighWater};
use syncguard::{Fence, Key, LockError, OpenOptions, RedactedUrl, Scheme};

use crate::args::{Global, SecretUrl};
use crate::config::{read_url_file, transport};
use crate::exit::{self, Failure, Stage};
use crate::output::Output;
use crate::values;

/// `fence`
#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Accept and remember a fence that is not below the highest one seen (exit 0), or refuse it (exit 79)
    Check(CheckArgs),
    /// Protect a table of PostgreSQL: every write needs a current fence of KEY, also of programs that know of none
    Protect(ProtectArgs),
    /// Which tables of a PostgreSQL database are protected, which fences were seen, and who writes under one now
    Status(StatusArgs),
}

// `fence protect`
#[derive(Debug, Args)]
pub(crate) struct ProtectArgs {
    #[command(flatten)]
    pub(crate) database: Database,

    /// Print the SQL and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// The table, or SCHEMA.TABLE; its partitions are protected as well
    #[arg(value_name = "TABLE")]
    pub(crate) table: String,

    /// The key of the lock that writers hold
    #[arg(value_name = "KEY", value_parser = values::KeyParser)]
    pub(crate) key: Key,
}

// `fence status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) database: Database,
}

// Where the tables are.
#[derive(Debug, Args)]
pub(crate) struct Database {
    /// The database, as postgres://…
    #[arg(long = "postgres", value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database: Option<SecretUrl>,
}

/// `fence check`
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Where the marks are: a folder (made where there is none), or sqlite:PATH, postgres://…, redis://…. Do not delete them.
    /// Without it, the URL in the file of `--url-file`, which keeps a password out of `ps`
    #[arg(value_name = "FOLDER|URL")]
    marks: Option<String>,

    /// What is protected: the key of the lock
    #[arg(long, value_name = "KEY", value_parser = values::KeyParser)]
    resource: Key,

    /// The fence of the lock
    #[arg(long, value_name = "FENCE", env = "SYNCGUARD_FENCE", value_parser = parse_fence)]
    fence: Fence,
}

// The URL may hold a password.
impl std::fmt::Debug for CheckArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckArgs").field("fence", &self.fence).finish_non_exhaustive()
    }
}

fn parse_fence(text: &str) -> Result<Fence, LockError> {
    text.parse()
}

#[derive(Serialize)]
struct Accepted {
    accepted: bool,
    fence: Fence,
}

#[cfg_attr(not(feature = "postgres"), allow(unused_variables, reason = "nobody is dialled"))]
pub(crate) async fn fence(command: FenceCommand, global: &Global, output: Output) -> Result<u8, Failure> {
    let require_tls = global.require_tls;
    match command {
        FenceCommand::Check(args) => check(&args, global, output).await,
        #[cfg(feature = "postgres")]
        FenceCommand::Protect(args) => postgres::protect(&args, require_tls, output).await,
        #[cfg(feature = "postgres")]
        FenceCommand::Status(args) => postgres::status(&args, require_tls, output).await,
        #[cfg(not(feature = "postgres"))]
        FenceCommand::Protect(_) | FenceCommand::Status(_) => Err(without_postgres()),
    }
}

#[cfg(not(feature = "postgres"))]
pub(crate) fn without_postgres() -> Failure {
    Failure::config("fences of tables are for PostgreSQL, and this program was built without it")
}

async fn check(args: &CheckArgs, global: &Global, output: Output) -> Result<u8, Failure> {
    let marks = place_of_marks(args, global, output)?;
    let require_tls = global.require_tls;
    if Scheme::of(&marks).is_ok() {
        let protection = OpenOptions::new().require_tls(require_tls).protection(&marks);
        transport::check(&marks, protection, require_tls, output)?;
    }
    advance(args, &marks, require_tls).await?.map_err(|error| refused(&error))?;
    if output.json {
        output.object(&Accepted { accepted: true, fence: args.fence });
    }
    Ok(exit::OK)
}

fn place_of_marks(args: &CheckArgs, global: &Global, output: Output) -> Result<String, Failure> {
    match (&args.marks, &global.url_file) {
        (Some(marks), _) => {
            if RedactedUrl::new(marks).has_password() {
                output.warn(
                    "the password in the URL of the marks can be read by every user of this machine (ps)",
                    Some("leave the URL out and name a file that holds it: --url-file"),
                );
            }
            Ok(marks.clone())
        }
        (None, Some(file)) => read_url_file(file),
        (None, None) => Err(Failure::usage("nobody says where the marks are")
            .hint("name a folder, or a URL: syncguard fence check FOLDER --resource KEY")),
    }
}

/// What a guard said, in our words.
pub(crate) fn refused(error: &FenceError) -> Failure {
    match error {
        FenceError::Stale(stale) => Failure::new(exit::LOST, "stale", stale.to_string())
            .hint("a newer holder of the lock has been here; stop, and leave the work to it"),
        FenceError::Failed(error) => Failure::from_lock(error, Stage::Operating),
        error => Failure::new(exit::INTERNAL, "internal", error.to_string()),
    }
}

type Checked = Result<(), FenceError>;

#[cfg(any(feature = "postgres", feature = "redis"))]
fn opening(error: &LockError) -> Failure {
    Failure::from_lock(error, Stage::Opening)
}

#[cfg_attr(not(any(feature = "redis", feature = "postgres")), allow(unused_variables, reason = "nobody is dialled"))]
async fn advance(args: &CheckArgs, marks: &str, require_tls: bool) -> Result<Checked, Failure> {
    // A folder may have a colon in its name; only a scheme that is known makes a URL.
    match Scheme::of(marks) {
        Err(_) => {
            std::fs::create_dir_all(marks)
                .map_err(|error| Failure::config(format!("the folder of the marks cannot be made: {error}")))?;
            Ok(FileMarks::new(marks).advance(&args.resource, args.fence).await)
        }
        #[cfg(feature = "sqlite")]
        Ok(Scheme::Sqlite) => Ok(in_sqlite(args, marks)),
        #[cfg(feature = "postgres")]
        Ok(Scheme::Postgres) => {
            let client = postgres::connect(marks, require_tls).await?;
            Ok(match syncguard::fenced::postgres::install(&client).await {
                Ok(()) => syncguard::fenced::postgres::announce(&client, &args.resource, args.fence).await,
                Err(error) => Err(error),
            })
        }
        #[cfg(feature = "redis")]
        Ok(Scheme::Redis) => {
            let builder = syncguard::redis::RedisBuilder::from_url(marks).map_err(|error| opening(&error))?;
            let builder = if require_tls { builder.require_tls(true) } else { builder };
            let mut connection = Box::pin(builder.connection()).await.map_err(|error| opening(&error))?;
            // Of any key the hash is a name that a mark can be made of.
            let name = format!("syncguard:marks:{}", args.resource.hash());
            Ok(syncguard::fenced::redis::announce(&mut connection, &name, args.fence).await)
        }
        Ok(_) => Err(Failure::config("marks can be kept in a folder, in sqlite:PATH, postgres://… or redis://…")
            .hint("this program keeps no marks there, or was built without that backend")),
    }
}

#[cfg(feature = "sqlite")]
fn in_sqlite(args: &CheckArgs, marks: &str) -> Checked {
    use syncguard::fenced::sqlite;

    let opened = rusqlite::Connection::open(marks.trim_start_matches("sqlite:"));
    let mut connection = opened.map_err(sqlite::failed)?;
    // Another process may be at its write: wait for it as long as a careful caller would.
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(sqlite::failed)?;
    sqlite::install(&connection)?;
    sqlite::announce(&mut connection, &args.resource, args.fence)
}
