//! How many instructions does the client take for a lock?
//!
//! Callgrind counts them, so the figures depend on no load, and five in a hundred more turn `cargo xtask test` red. What
//! is counted is `crates/instructions`, built as a release is but for link-time optimisation, which takes longer than
//! it changes. gungraun counts with the same valgrind, and has every run compile a runner of its own version first.
//!
//! The known figures belong to one compiler and one architecture. With another one nothing is compared, and it says so.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use syncguard_testkit::program::Program;

use crate::cargo;
use crate::scope::Scope;

/// Where `cargo xtask setup` gets it.
pub(crate) const VALGRIND: Program = Program { name: "valgrind", package: "valgrind" };

/// What is counted: the words for the program.
const COUNTED: [&str; 3] = ["pair", "extend", "refused"];

const ROUNDS: u64 = 2_000;

/// In a hundred.
const TOLERATED: u64 = 5;

/// `cargo xtask instructions`
pub(crate) fn run(accept: bool) -> Result<ExitCode> {
    if !accept {
        return Ok(if is_within()? { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let mut text = format!("for {}\n", this_build()?);
    for (what, count) in count()? {
        println!("{what}: {count} instructions");
        writeln!(text, "{what} {count}")?;
    }
    fs::write(known_file(), text)?;
    Ok(ExitCode::SUCCESS)
}

/// Counts, prints, and returns whether nothing takes more than it is known to.
pub(crate) fn is_within() -> Result<bool> {
    let known = fs::read_to_string(known_file()).context("cannot read the known instruction counts")?;
    if let Some(reason) = not_comparable(&known)? {
        println!("SKIPPED: instruction counts: {reason}");
        return Ok(true);
    }
    let mut within = true;
    for (what, count) in count()? {
        let known = known_count(&known, what).with_context(|| format!("no known figure for {what}"))?;
        println!("{what}: {count} instructions, {known} are known");
        if exceeds(count, known) {
            eprintln!(
                "{what} takes more than {TOLERATED} % more\nhint: if it must, `cargo xtask instructions --accept`"
            );
            within = false;
        }
    }
    Ok(within)
}

fn known_file() -> PathBuf {
    cargo::root().join("crates/instructions/known.txt")
}

fn known_count(known: &str, what: &str) -> Option<u64> {
    known.lines().find_map(|line| line.strip_prefix(what)?.trim().parse().ok())
}

fn exceeds(count: u64, known: u64) -> bool {
    count * 100 > known * (100 + TOLERATED)
}

/// Why the known figures are not those of this build.
fn not_comparable(known: &str) -> Result<Option<String>> {
    let (ours, theirs) =
        (this_build()?, known.lines().next().unwrap_or_default().trim_start_matches("for ").to_owned());
    if ours != theirs {
        return Ok(Some(format!("the known ones are those of {theirs}, this is {ours}")));
    }
    Ok(VALGRIND.find().err().map(|error| format!("{error:#}")))
}

/// `rustc 1.95.0, x86_64`
fn this_build() -> Result<String> {
    let output = Command::new("rustc").arg("--version").current_dir(cargo::root()).output().context("no rustc")?;
    let version = String::from_utf8_lossy(&output.stdout).split(' ').take(2).collect::<Vec<_>>().join(" ");
    Ok(format!("{version}, {}", std::env::consts::ARCH))
}

fn count() -> Result<Vec<(&'static str, u64)>> {
    let program = build()?;
    let each = |what| -> Result<(&'static str, u64)> {
        let (some, more) = (collected(&program, what, ROUNDS)?, collected(&program, what, 2 * ROUNDS)?);
        Ok((what, (more - some) / ROUNDS))
    };
    COUNTED.into_iter().map(each).collect()
}

/// The program, built apart: nobody else builds with this profile.
fn build() -> Result<PathBuf> {
    let folder = Scope::new(&[])?.target_folder()?;
    let mut command = cargo::command(["build", "--locked", "--profile", "counted", "-p", "syncguard-instructions"]);
    let status = command.status().context("cannot run cargo build")?;
    ensure!(status.success(), "crates/instructions does not compile");
    Ok(folder.join("counted/syncguard-instructions"))
}

/// All instructions of one run.
fn collected(program: &PathBuf, what: &str, rounds: u64) -> Result<u64> {
    let output = Command::new(VALGRIND.find()?)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([what, &rounds.to_string()])
        .output()
        .context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the counted program failed: {said}");
    let (_, count) =
        said.lines().find_map(|line| line.split_once("Collected : ")).context("callgrind says no figure")?;
    Ok(count.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_in_a_hundred_more_are_tolerated_and_not_six() {
        assert!(!exceeds(1_000, 1_000) && !exceeds(1_050, 1_000) && !exceeds(1, 1_000));
        assert!(exceeds(1_051, 1_000) && exceeds(2_000, 1_000));
    }

    /// A pinned compiler whose figures nobody recorded would skip the comparison for ever.
    #[test]
    fn the_known_figures_are_those_of_the_pinned_compiler() {
        let known = fs::read_to_string(known_file()).unwrap();
        let toolchain = fs::read_to_string(cargo::root().join("rust-toolchain.toml")).unwrap();
        let pinned = toolchain.split('"').nth(1).unwrap();

        assert!(known.starts_with(&format!("for rustc {pinned}, ")), "{known}");
        for what in COUNTED {
            assert!(known_count(&known, what).is_some_and(|count| count > 100), "{what}: {known}");
        }
    }
}
