//! Is the change ready to land?
//!
//! Every step runs even if one before it failed, so that one run shows everything; the closing lines name what failed.
//! All steps build with the same features, so that nothing is compiled twice; what needs a build of its own is in `prove`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use syncguard_testkit::place::Folder;
use syncguard_testkit::shared::Servers;

use crate::junit::{self, TestCase};
use crate::scope::Scope;
use crate::{cargo, secrets, seeded, setup, summary};

/// Where nextest writes its report, below the target folder: see the profile `ci` in `.config/nextest.toml`.
const REPORT: &str = "nextest/ci/junit.xml";

#[allow(clippy::disallowed_methods, reason = "the duration of the run is for the reader; no lease depends on it")]
pub(crate) fn run(quick: bool, packages: &[String], nextest_arguments: &[String]) -> Result<ExitCode> {
    let start = Instant::now();
    setup::run()?;
    let mut steps = Steps { scope: Scope::new(packages)?, failed: Vec::new(), doctests_passed: 0 };
    if !quick {
        steps.format()?;
        steps.clippy()?;
    }
    let tests = steps.tests(nextest_arguments)?;
    if !quick {
        steps.doctests()?;
        steps.documentation()?;
    }
    print!("{}", summary::render(&tests, steps.doctests_passed, &steps.failed, start.elapsed()));
    Ok(if steps.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Steps {
    scope: Scope,
    failed: Vec<&'static str>,
    doctests_passed: u32,
}

impl Steps {
    fn format(&mut self) -> Result<()> {
        let arguments = line(&["fmt"], &self.scope.for_format(), &["--check"]);
        self.run("fmt", &arguments)
    }

    fn clippy(&mut self) -> Result<()> {
        let arguments = line(&["clippy", "--all-targets"], &self.scope.for_build(), &["--", "-D", "warnings"]);
        self.run("clippy", &arguments)
    }

    /// Builds first, so that the servers do not wait for the compiler, then runs the tests with them.
    fn tests(&mut self, extra: &[String]) -> Result<Vec<TestCase>> {
        let report = self.scope.target_folder()?.join(REPORT);
        // A report of an earlier run must not be taken for this one's.
        if report.exists() {
            fs::remove_file(&report)?;
        }
        let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
        let chosen = [if chooses_targets(&extra) { &[][..] } else { &["--tests"] }, &extra].concat();
        let arguments = line(&["nextest", "run", "--profile", "ci"], &self.scope.for_build(), &chosen);
        announce(&arguments);
        let built = cargo::command(&arguments).arg("--no-run").status().context("cannot run cargo nextest")?;
        if !built.success() {
            self.note("tests (they do not compile)", false);
            return Ok(Vec::new());
        }
        let servers = Servers::start()?;
        if let Some(reason) = servers.firestore_absent() {
            println!("note: {reason}");
        }
        let home = Folder::new("home")?;
        let mut command = cargo::command(&arguments);
        cargo::hide_the_tester(&mut command, home.path());
        let status = command.envs(servers.environment()).status()?;
        drop(servers);
        self.note("tests", status.success());
        let text = fs::read_to_string(&report).with_context(|| format!("no report at {}", report.display()))?;
        let tests = junit::parse(&text)?;
        let (said, kept) = secrets::report(&tests, text.len());
        print!("{said}");
        self.note("secrets", kept);
        // Some mistakes are planted in the tests of a backend or of the command: without them there is nothing to count.
        if self.scope.is_everything() && extra.is_empty() {
            let (said, caught) = seeded::report(&tests)?;
            print!("{said}");
            self.note("seeded bugs", caught);
        }
        Ok(tests)
    }

    fn doctests(&mut self) -> Result<()> {
        let Some(scope) = self.scope.for_doctests() else { return Ok(()) };
        let arguments = line(&["test", "--doc"], &scope, &[]);
        announce(&arguments);
        let mut passed = 0;
        let home = Folder::new("home")?;
        let mut command = cargo::command(&arguments);
        cargo::hide_the_tester(&mut command, home.path());
        let status = each_line(&mut command, |line| passed += summary::doctests_passed(line))?;
        self.doctests_passed += passed;
        self.note("doctests", status.success());
        Ok(())
    }

    fn documentation(&mut self) -> Result<()> {
        let arguments = line(&["doc", "--no-deps"], &self.scope.for_build(), &[]);
        announce(&arguments);
        let status = cargo::command(&arguments).env("RUSTDOCFLAGS", "-D warnings").status()?;
        self.note("documentation", status.success());
        Ok(())
    }

    fn run(&mut self, name: &'static str, arguments: &[String]) -> Result<()> {
        announce(arguments);
        let status = cargo::command(arguments).status().with_context(|| format!("cannot run cargo {name}"))?;
        self.note(name, status.success());
        Ok(())
    }

    fn note(&mut self, name: &'static str, success: bool) {
        if !success {
            eprintln!("FAILED: {name}");
            self.failed.push(name);
        }
    }
}

/// Runs a command, shows what it prints, and looks at every line of it.
pub(crate) fn each_line(command: &mut Command, mut look: impl FnMut(&str)) -> Result<ExitStatus> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
    let output = child.stdout.take().context("the output is piped")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{line}");
        look(&line);
    }
    Ok(child.wait()?)
}

pub(crate) fn line(before: &[&str], scope: &[String], after: &[&str]) -> Vec<String> {
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    [owned(before), scope.to_vec(), owned(after)].concat()
}

/// Whether the arguments for nextest say what to build. If not, the targets with tests are enough: by itself cargo would
/// link every example too, though clippy checks them, a test calls their code, and no test runs their programs.
fn chooses_targets(arguments: &[&str]) -> bool {
    let targets = ["--lib", "--bin", "--bins", "--test", "--tests", "--example", "--examples", "--bench", "--benches"];
    arguments.iter().any(|argument| {
        let name = argument.split_once('=').map_or(*argument, |(name, _)| name);
        targets.contains(&name) || name == "--all-targets"
    })
}

pub(crate) fn announce(arguments: &[String]) {
    println!("\n$ cargo {}", arguments.join(" "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_linked_only_for_who_asks_for_them() {
        assert!(!chooses_targets(&[]) && !chooses_targets(&["-E", "test(fence)", "--no-capture"]));
        for chosen in [&["--test", "behaviour"][..], &["--test=behaviour"], &["--lib"], &["--all-targets"]] {
            assert!(chooses_targets(chosen), "{chosen:?}");
        }
    }
}
