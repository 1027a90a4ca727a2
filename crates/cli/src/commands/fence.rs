//! May a script with this fence go on?
//!
//! Marks are kept in a folder, one file for each key, under an OS lock. A script that writes elsewhere after a yes is
//! in two steps; that the help says so is all that can be done here. Databases and services have guards that need only
//! one.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use syncguard::fenced::file::FileMarks;
use syncguard::fenced::{FenceError, HighWater};
use syncguard::{Fence, Key};

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
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Folder of the marks; made where there is none. Do not delete what is in it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// What is protected: the key of the lock
    #[arg(long, value_name = "KEY", value_parser = values::KeyParser)]
    resource: Key,

    /// The fence of the lock
    #[arg(long, value_name = "FENCE", env = "SYNCGUARD_FENCE", value_parser = parse_fence)]
    fence: Fence,
}

fn parse_fence(text: &str) -> Result<Fence, syncguard::LockError> {
    text.parse()
}

#[derive(Serialize)]
struct Accepted {
    accepted: bool,
    fence: Fence,
}

pub(crate) async fn fence(command: FenceCommand, output: Output) -> Result<u8, Failure> {
    let FenceCommand::Check(args) = command;
    std::fs::create_dir_all(&args.folder)
        .map_err(|error| Failure::config(format!("the folder of the marks cannot be made: {error}")))?;
    match FileMarks::new(&args.folder).advance(&args.resource, args.fence).await {
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
