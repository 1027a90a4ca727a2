//! Do the tests notice mistakes, do the tasks keep their promises in any order, and what does a lock cost?
//!
//! Three proofs of the core that need builds of their own: with mistakes planted, with the primitives of shuttle, and optimised
//! for counting. Together they compile as long as all tests do, so the workflow runs them beside `cargo xtask test`.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::scope::Scope;
use crate::test::{announce, each_line, line};
use crate::{cargo, instructions, mistakes, seeded, setup};

/// Every proof is tried, so that one run shows everything; the last line names what failed.
pub(crate) fn run() -> Result<ExitCode> {
    setup::run()?;
    let mut passed = BTreeSet::new();
    let mut command = special_build(&["--test", "behaviour", "--", "caught"])?;
    let planted = each_line(&mut command, |line| passed.extend(seeded::passed(line)))?.success();
    let caught = planted && seeded::core_is_proved(&passed);
    let orders = special_build(&["--lib", "schedules::"])?.status().context("cannot run cargo test")?.success();
    println!("\n$ cargo xtask instructions");
    let within = instructions::is_within()?;
    let proofs = [("seeded bugs", caught), ("schedules", orders), ("instructions", within)];
    let failed: Vec<&str> = proofs.iter().filter(|(_, holds)| !holds).map(|(name, _)| *name).collect();
    println!("{}", if failed.is_empty() { "ok".to_owned() } else { format!("FAILED: {}", failed.join(", ")) });
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask schedules`: the tasks of the core in a hundred thousand orders, of which [`run`] tries ten thousand.
pub(crate) fn schedules(count: u32) -> Result<ExitCode> {
    let mut command = special_build(&["--lib", "schedules::", "--", "--nocapture"])?;
    let status = command.env("SYNCGUARD_SCHEDULES", count.to_string()).status().context("cannot run cargo test")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Of a copy of the tree with the mistakes in it, and in a folder of its own, because the cfgs would otherwise have everything
/// built twice. Both packages and both cfgs always, so that one build serves all; no mistake is on unless a test switches it on.
fn special_build(chosen: &[&str]) -> Result<Command> {
    let packages = ["test", "--package", "syncguard-core", "--package", "syncguard-conformance"];
    let arguments = line(&packages, &[], chosen);
    announce(&arguments);
    let target = Scope::new(&[])?.target_folder()?.join("seeded");
    mistakes::plant(&target.join("tree"))?;
    let mut command = cargo::command(&arguments);
    command.current_dir(target.join("tree"));
    command.env("RUSTFLAGS", "--cfg syncguard_seeded_bugs --cfg syncguard_shuttle");
    command.env("CARGO_TARGET_DIR", target);
    Ok(command)
}
