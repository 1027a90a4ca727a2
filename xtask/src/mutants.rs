//! Which changes of the code does no test notice?
//!
//! `cargo mutants` works on a copy of the tree with a target folder of its own, so nothing here is touched. It takes minutes
//! for every file: it is no part of `cargo xtask test`. What survived, and why it may, is in `docs/guarantees.md`.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// What decides whether a holder believes, how long, and what is sent when.
const DECISIVE: [&str; 5] = [
    "crates/core/src/belief.rs",
    "crates/core/src/fence.rs",
    "crates/core/src/retry.rs",
    "crates/core/src/heartbeat.rs",
    "crates/core/src/reaper.rs",
];

pub(crate) fn run(files: &[String]) -> Result<ExitCode> {
    let chosen: Vec<String> = if files.is_empty() { DECISIVE.map(str::to_owned).to_vec() } else { files.to_vec() };
    let package = package(&chosen)?;
    install()?;
    let output = cargo::root().join("target").join("mutants");
    std::fs::create_dir_all(&output)?;
    // One at a time: tests that wait for leases and servers share the cores with the compiler already.
    let mut command = cargo::command(["mutants", "--jobs", "1", "--minimum-test-timeout", "60"]);
    command.args(["--package", &package, "--test-package", &package, "--output"]).arg(output);
    for file in &chosen {
        command.args(["--file", file]);
    }
    // No doctests: they compile for longer than they tell.
    command.args(["--", "--lib", "--tests"]);
    let status = command.status().context("cannot run cargo mutants")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    fn the_package_of_a_file_is_known_and_two_are_refused() {
        let files = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(package(&DECISIVE.map(str::to_owned)).ok().as_deref(), Some("syncguard-core"));
        let redis = "crates/backends/redis/src/operations.rs";
        assert_eq!(package(&files(&[redis])).ok().as_deref(), Some("syncguard-redis"));
        assert!(package(&files(&[redis, DECISIVE[0]])).is_err());
        assert!(package(&files(&["nowhere/x.rs"])).is_err());
    }
}
