//! How is the soak started?
//!
//! Built like the tests, so that nothing is compiled twice, and then run as a program of its own: it starts itself again
//! as its workers.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use rustix::process::Signal;
use syncguard_testkit::process::die_with_this_process;

use crate::scope::Scope;
use crate::{cargo, setup};

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    setup::run()?;
    let build = ["build", "--workspace", "--all-features", "--locked", "--bin", "syncguard-soak"];
    if !cargo::command(build).status().context("cannot run cargo build")?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let program = Scope::new(&[])?.target_folder()?.join("debug").join("syncguard-soak");
    let mut command = Command::new(program);
    let names_a_command =
        arguments.first().is_some_and(|first| ["run", "contend", "power", "check"].contains(&first.as_str()));
    command.args((!names_a_command).then_some("run")).args(arguments);
    die_with_this_process(&mut command, Signal::TERM);
    let status = command.status().context("cannot run the soak")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
