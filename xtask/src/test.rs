//! Is the change ready to land?
//!
//! Every step runs even if one before it failed, so that one run shows everything; the closing lines name what failed. All steps
//! build with the same features, so that nothing is compiled twice.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};
use syncguard_testkit::shared::Servers;

use crate::junit::{self, TestCase};
use crate::{cargo, setup, summary};

const JUNIT: &str = "nextest/ci/junit.xml";

#[allow(clippy::disallowed_methods, reason = "the duration of the run is for the reader; no lease depends on it")]
pub(crate) fn run(quick: bool, nextest_arguments: &[String]) -> Result<ExitCode> {
    let start = Instant::now();
    setup::run()?;
    let mut steps = Steps::default();
    if !quick {
        steps.run("fmt", &["fmt", "--all", "--check"])?;
        let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"];
        steps.run("clippy", &clippy)?;
    }
    let tests = steps.tests(nextest_arguments)?;
    if !quick {
        steps.doctests()?;
        steps.documentation()?;
    }
    print!("{}", summary::render(&tests, steps.doctests_passed, &steps.failed, start.elapsed()));
    Ok(if steps.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Default)]
struct Steps {
    failed: Vec<&'static str>,
    doctests_passed: u32,
}

impl Steps {
    fn run(&mut self, name: &'static str, arguments: &[&str]) -> Result<()> {
        announce(&arguments.join(" "));
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

    /// Builds first, so that the servers do not wait for the compiler, then runs the tests with them.
    fn tests(&mut self, extra: &[String]) -> Result<Vec<TestCase>> {
        let names_packages =
            extra.iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"));
        let scope = if names_packages { None } else { Some("--workspace") };
        let base: Vec<&str> =
            scope.into_iter().chain(["--all-features", "--locked"]).chain(extra.iter().map(String::as_str)).collect();
        let report = target_folder()?.join(JUNIT);
        // A report of an earlier run must not be taken for this one's.
        if report.exists() {
            fs::remove_file(&report)?;
        }
        announce(&format!("nextest run --profile ci {}", base.join(" ")));
        let built = cargo::command(["nextest", "run", "--no-run"]).args(&base).status()?;
        if !built.success() {
            self.note("tests do not compile", false);
            return Ok(Vec::new());
        }
        let servers = Servers::start()?;
        if let Some(reason) = servers.firestore_absent() {
            println!("note: {reason}");
        }
        let status = cargo::command(["nextest", "run", "--profile", "ci"])
            .args(&base)
            .envs(servers.environment())
            .status()
            .context("cannot run cargo nextest")?;
        drop(servers);
        self.note("tests", status.success());
        let text = fs::read_to_string(&report).with_context(|| format!("no report at {}", report.display()))?;
        Ok(junit::parse(&text))
    }

    fn doctests(&mut self) -> Result<()> {
        let arguments = ["test", "--doc", "--workspace", "--all-features", "--locked"];
        announce(&arguments.join(" "));
        let mut child = cargo::command(arguments).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("the output is piped")?;
        for line in BufReader::new(output).lines() {
            let line = line?;
            println!("{line}");
            self.doctests_passed += summary::doctests_passed(&line);
        }
        let status = child.wait()?;
        self.note("doctests", status.success());
        Ok(())
    }

    fn documentation(&mut self) -> Result<()> {
        let arguments = ["doc", "--no-deps", "--workspace", "--all-features", "--locked"];
        announce(&arguments.join(" "));
        let status = cargo::command(arguments).env("RUSTDOCFLAGS", "-D warnings").status()?;
        self.note("documentation", status.success());
        Ok(())
    }
}

fn announce(arguments: &str) {
    println!("\n$ cargo {arguments}");
}

/// Where cargo builds; it may be configured away from the workspace.
fn target_folder() -> Result<std::path::PathBuf> {
    let output = cargo::command(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let marker = "\"target_directory\":\"";
    let start = text.find(marker).context("cargo metadata does not name the target folder")? + marker.len();
    let end = text[start..].find('"').context("cargo metadata is cut short")? + start;
    Ok(text[start..end].into())
}
