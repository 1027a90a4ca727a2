//! May a script with this fence go on?
//!
//! Marks are kept in a folder, one file for each key, or in the database that a URL names. A script that writes elsewhere after
//! a yes is in two steps; that the help says so is all that can be done here. Databases and services have guards that need
//! only one.

use clap::{Args, Subcommand};
use serde::Serialize;
use syncguard::fenced::file::FileMarks;
use syncguard::fenced::{FenceError, HighWater};
use syncguard::{Fence, Key, LockError, OpenOptions, Scheme};

use crate::config::transport;
use crate::exit::{self, Failure, Stage};
use crate::output::Output;
use crate::values;

/// `fence`
#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Accept and remember a fence that is not below the highest one seen (exit 0), or refuse it (exit 79)
    Check(CheckArgs),
}

/// `fence check`
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// Where the marks are: a folder (made where there is none), or sqlite:PATH, postgres://…, redis://…. Do not delete them
    #[arg(value_name = "FOLDER|URL")]
    marks: String,

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

pub(crate) async fn fence(command: FenceCommand, require_tls: bool, output: Output) -> Result<u8, Failure> {
    let FenceCommand::Check(args) = command;
    let options = OpenOptions::new().require_tls(require_tls);
    if Scheme::of(&args.marks).is_ok() {
        transport::check(&args.marks, options.protection(&args.marks), require_tls, output)?;
    }
    match advance(&args, require_tls).await? {
        Ok(()) => {
            if output.json {
                output.object(&Accepted { accepted: true, fence: args.fence });
            }
            Ok(exit::OK)
        }
        Err(FenceError::Stale(stale)) => Err(Failure::new(exit::LOST, "stale", stale.to_string())
            .hint("a newer holder of the lock has been here; stop, and leave the work to it")),
        Err(FenceError::Failed(error)) => Err(Failure::from_lock(&error, Stage::Operating)),
        Err(error) => Err(Failure::new(exit::INTERNAL, "internal", error.to_string())),
    }
}

type Checked = Result<(), FenceError>;

#[cfg(any(feature = "postgres", feature = "redis"))]
fn opening(error: &LockError) -> Failure {
    Failure::from_lock(error, Stage::Opening)
}

#[cfg_attr(not(any(feature = "redis", feature = "postgres")), allow(unused_variables, reason = "nobody is dialled"))]
async fn advance(args: &CheckArgs, require_tls: bool) -> Result<Checked, Failure> {
    // A folder may have a colon in its name; only a scheme that is known makes a URL.
    match Scheme::of(&args.marks) {
        Err(_) => {
            std::fs::create_dir_all(&args.marks)
                .map_err(|error| Failure::config(format!("the folder of the marks cannot be made: {error}")))?;
            Ok(FileMarks::new(&args.marks).advance(&args.resource, args.fence).await)
        }
        #[cfg(feature = "sqlite")]
        Ok(Scheme::Sqlite) => {
            let path = args.marks.trim_start_matches("sqlite:");
            match syncguard::fenced::sqlite::SqliteMarks::open(path) {
                Ok(marks) => Ok(marks.advance(&args.resource, args.fence).await),
                Err(error) => Ok(Err(error)),
            }
        }
        #[cfg(feature = "postgres")]
        Ok(Scheme::Postgres) => {
            let builder =
                syncguard::postgres::PostgresBuilder::from_url(&args.marks).map_err(|error| opening(&error))?;
            let builder = if require_tls { builder.require_tls(true) } else { builder };
            let client = Box::pin(builder.client()).await.map_err(|error| opening(&error))?;
            match syncguard::fenced::postgres::PostgresMarks::new(client).await {
                Ok(marks) => Ok(marks.advance(&args.resource, args.fence).await),
                Err(error) => Ok(Err(error)),
            }
        }
        #[cfg(feature = "redis")]
        Ok(Scheme::Redis) => {
            let builder = syncguard::redis::RedisBuilder::from_url(&args.marks).map_err(|error| opening(&error))?;
            let builder = if require_tls { builder.require_tls(true) } else { builder };
            let connection = Box::pin(builder.connection()).await.map_err(|error| opening(&error))?;
            let marks = syncguard::fenced::redis::RedisMarks::new(connection, "syncguard:marks");
            Ok(marks.advance(&args.resource, args.fence).await)
        }
        Ok(_) => Err(Failure::config("marks can be kept in a folder, in sqlite:PATH, postgres://… or redis://…")
            .hint("this program keeps no marks there, or was built without that backend")),
    }
}
