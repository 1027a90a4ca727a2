//! Which changes of the code does no test notice?
//!
//! `cargo mutants` works on a copy of the tree with a target folder of its own, so nothing here is touched. It takes half a
//! minute for every change: it is no part of `cargo xtask test`. What survived, and why it may, is in `docs/guarantees.md`.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use syncguard_testkit::shared::Servers;

use crate::cargo;

/// How `cargo mutants` says that no test noticed some change.
const UNNOTICED: i32 = 2;

/// How it says that all were noticed, some only because a test did not end.
const TIMED_OUT: i32 = 3;

/// What decides whether a holder believes, how long, and what is sent when.
const DECISIVE: [&str; 5] = [
    "crates/core/src/client/holding/belief.rs",
    "crates/core/src/words/fence.rs",
    "crates/core/src/client/waiting/retry.rs",
    "crates/core/src/client/holding/heartbeat.rs",
    "crates/core/src/client/release/clean_up.rs",
];

/// Which tests judge a package: those that are most likely to notice, and for what they miss the slower ones.
///
/// One arrangement of servers is enough: what differs between them is in other files than the operations.
struct Judges {
    package: &'static str,
    /// Filters of nextest.
    rounds: &'static [&'static str],
}

const JUDGES: [Judges; 5] = [
    Judges {
        package: "syncguard-core",
        rounds: &["kind(lib) or test(/^(client|promises)::/)", "test(/^(standby|drops|release_hooks|telemetry)::/)"],
    },
    Judges {
        package: "syncguard-sqlite",
        rounds: &["kind(lib) or test(/^conformance::/)", "kind(test) and not test(/^conformance::/)"],
    },
    Judges {
        package: "syncguard-redis",
        rounds: &["kind(lib) or test(/^conformance::single::/)", "kind(test) and not test(/^conformance::/)"],
    },
    Judges {
        package: "syncguard-postgres",
        rounds: &["kind(lib) or test(/^conformance::tcp::/)", "kind(test) and not test(/^conformance::/)"],
    },
    Judges {
        package: "syncguard-firestore",
        rounds: &["kind(lib) or test(/^conformance::hidane::/)", "kind(test) and not test(/^conformance::/)"],
    },
];

/// What to change, beside the files.
#[derive(clap::Args)]
pub(crate) struct Choice {
    /// Files of one package, for example crates/core/src/client/holding/belief.rs; without any, those of the core that decide
    files: Vec<String>,
    /// Only one part of the changes, for example 0/4: every fourth
    #[arg(long, value_name = "PART/PARTS")]
    sample: Option<String>,
    /// Only changes whose description matches, as `cargo mutants --list` prints it
    #[arg(long, value_name = "REGEX")]
    matching: Option<String>,
    /// Only the tests that are likely to notice: what they miss is not tried on the slower ones
    #[arg(long)]
    first_round: bool,
    /// Go on from the last run of this package: what was noticed then is not tried again
    #[arg(long)]
    again: bool,
}

pub(crate) fn run(choice: &Choice) -> Result<ExitCode> {
    let files = if choice.files.is_empty() { DECISIVE.map(str::to_owned).to_vec() } else { choice.files.clone() };
    install()?;
    let package = package(&files)?;
    let rounds = rounds(&package)?;
    // One server of each kind for all changes: a private one per test would take most of the time.
    let servers = Servers::start()?;
    let mut unnoticed = true;
    for (number, tests) in rounds.iter().take(if choice.first_round { 1 } else { rounds.len() }).enumerate() {
        let mut command = command(&package, &files, choice)?;
        if number > 0 || choice.again {
            command.arg("--iterate");
        }
        // What comes after `--` does not reach the build, which would then link every example of the package.
        command.args(["--cargo-arg=--lib", "--cargo-arg=--test=behaviour", "--", "-E", tests]);
        let status = command.envs(servers.environment()).status();
        let code = status.context("cannot run cargo mutants")?.code();
        ensure!(matches!(code, Some(0 | UNNOTICED | TIMED_OUT)), "cargo mutants could not judge: {code:?}");
        unnoticed = code == Some(UNNOTICED);
        if !unnoticed {
            break;
        }
    }
    Ok(if unnoticed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn command(package: &str, files: &[String], choice: &Choice) -> Result<Command> {
    let target = cargo::root().join("target").join("mutants");
    let output = target.join(package);
    std::fs::create_dir_all(&output)?;
    // One at a time: tests that wait for leases and servers share the cores with the compiler already. Warnings are no
    // verdict: a change that leaves a variable unused is one that a test should notice.
    let mut command = cargo::command(["mutants", "--jobs", "1", "--test-tool", "nextest", "--cap-lints", "true"]);
    command.args(["--timeout-multiplier", "4", "--minimum-test-timeout", "60", "--caught", "--unviable"]);
    command.args(["--package", package, "--test-package", package, "--output"]).arg(output);
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.args(choice.sample.iter().flat_map(|part| ["--sharding", "round-robin", "--shard", part]));
    command.args(choice.matching.iter().flat_map(|regex| ["--re", regex]));
    command.env("NEXTEST_PROFILE", "mutants");
    // The same dependencies for all packages and runs. Nobody reads a backtrace here.
    command.env("CARGO_TARGET_DIR", target.join("build")).env("CARGO_PROFILE_DEV_DEBUG", "false");
    Ok(command)
}

fn rounds(package: &str) -> Result<&'static [&'static str]> {
    let judges = JUDGES.iter().find(|judges| judges.package == package);
    Ok(judges.with_context(|| format!("it is not known which tests judge {package}: name them in JUDGES"))?.rounds)
}

fn install() -> Result<()> {
    if cargo::command(["mutants", "--version"]).output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let status = cargo::command(["install", "cargo-mutants", "--locked"]).status()?;
    ensure!(status.success(), "cargo-mutants cannot be installed");
    Ok(())
}

/// The package that the files are of. One at a time, because each has tests of its own.
fn package(files: &[String]) -> Result<String> {
    let of = |file: &String| {
        let manifest = std::path::Path::new(file).ancestors().skip(1).find_map(|folder| {
            let path = cargo::root().join(folder).join("Cargo.toml");
            (!folder.as_os_str().is_empty()).then(|| std::fs::read_to_string(path).ok()).flatten()
        });
        let manifest = manifest.with_context(|| format!("no package has a file {file}"))?;
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        name.map(str::to_owned).with_context(|| format!("the package of {file} has no name"))
    };
    let first = of(files.first().context("no file is named")?)?;
    for file in files {
        ensure!(of(file)? == first, "{file} is not of {first}: name files of one package");
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_with_operations_has_tests_that_judge_it() {
        for package in ["core", "sqlite", "redis", "postgres", "firestore"] {
            assert!(rounds(&format!("syncguard-{package}")).is_ok(), "{package}");
        }
        assert!(rounds("syncguard-testkit").is_err());
    }

    #[test]
    fn the_package_of_a_file_is_known_and_two_are_refused() {
        let files = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(package(&DECISIVE.map(str::to_owned)).ok().as_deref(), Some("syncguard-core"));
        let redis = "crates/backends/redis/src/operations.rs";
        assert_eq!(package(&files(&[redis])).ok().as_deref(), Some("syncguard-redis"));
        assert!(package(&files(&[redis, DECISIVE[0]])).is_err());
        assert!(package(&files(&["nowhere/x.rs"])).is_err());
    }
}
