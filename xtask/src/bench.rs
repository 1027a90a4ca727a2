//! How fast is it?
//!
//! Every subject is a program that starts its own servers and lets its contenders take turns. Those of one backend lie
//! in its crate. The comparison with peers lies in `bench/`, a workspace of its own: nobody who tests should have to
//! build them.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::{env, mem};

use anyhow::{Context, Result};
use clap::ValueEnum;
use syncguard_testkit::program::Program;

use crate::scope::Scope;
use crate::ship::dist;
use crate::{cargo, setup};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    /// Pairs beside one transaction per operation, eight processes, hand-offs, opening, and a listing beside it
    Sqlite,
    /// Pairs beside a raw socket and rslock, the server's cost, hand-offs, a mixed fleet, and a listing beside it
    Redis,
    /// Pairs beside pgbench and the plain sequence, wake-ups, hand-offs, many counters, and a listing beside it
    Postgres,
    /// Latency on a slow link and contention beside server-side transactions, and hand-offs
    Firestore,
    /// Writes through each guard, beside the same write without it
    Fenced,
    /// How soon all is well after connections died silently, on every kind of server
    Silence,
    /// Ten thousand tasks wait for one key, on every backend
    Waiters,
    /// From the start of `syncguard run` to that of its child, and to its end, beside flock(1); and its memory
    Cli,
    /// The pure client: the memory backend, and the Firestore emulator inside the process
    Core,
    /// All backends and their peers: docs/benchmarks.md
    Compare,
}

/// What all subjects understand, for `cargo xtask bench --help`.
pub(crate) const COMMON: &str = "\
Every subject starts its own servers and lets its contenders take turns. All understand
  PART …        only these parts, for example `cargo xtask bench redis pairs hand-off`
  --rounds N    how often everybody takes a turn (not for waiters)
  --let-sleep   let idle processors sleep; they are kept awake otherwise, where this process may do that
  --json FILE   write the figures to this file: medians and spreads, and ratios inside a round
  --help        what this subject has beside these: its parts, numbers and switches
Anything else is refused with 2 before a server is started.";

/// What the peers need beside our own servers: etcd, and protoc and OpenSSL to be built.
const FOR_PEERS: [Program; 3] = [
    Program { name: "etcd", package: "etcd-server" },
    Program { name: "protoc", package: "protobuf-compiler" },
    Program { name: "pkg-config", package: "pkg-config" },
];

impl Subject {
    /// The crate that holds the benchmark, the benchmark's name, and the features that it needs.
    fn package_and_bench(self) -> Option<(&'static str, &'static str, &'static [&'static str])> {
        let all_features = &["--all-features"];
        Some(match self {
            Subject::Sqlite => ("syncguard-sqlite", "sqlite", &[]),
            Subject::Redis => ("syncguard-redis", "redis", &[]),
            Subject::Postgres => ("syncguard-postgres", "postgres", &[]),
            Subject::Firestore => ("syncguard-firestore", "firestore", &[]),
            // Every guard and every backend of the command is behind a feature, and they measure most of them.
            Subject::Fenced => ("syncguard-fenced", "fenced", all_features),
            Subject::Cli => ("syncguard-cli", "startup", all_features),
            Subject::Silence => ("syncguard", "silence", &["--features", "redis,postgres,firestore"]),
            Subject::Waiters => ("syncguard", "waiters", &["--features", "redis,postgres,firestore"]),
            Subject::Core | Subject::Compare => return None,
        })
    }
}

pub(crate) fn run(subject: Subject, arguments: &[String]) -> Result<ExitCode> {
    setup::run()?;
    let mut command = match subject.package_and_bench() {
        Some((package, bench, features)) => {
            let mut command = cargo::command(["bench", "--locked", "-p", package, "--bench", bench]);
            command.args(features);
            if subject == Subject::Cli {
                // What people install, not what is quick to build: by cargo, and as a package.
                command.args(["--profile", "release"]).env("SYNCGUARD_PACKAGED", dist::program()?);
            }
            command.arg("--");
            command
        }
        None => compare("run")?,
    };
    if subject == Subject::Core {
        command.args(["pairs", "hand-off", "memory", "--only", "client"]);
    }
    let arguments = with_whole_path(arguments, &env::current_dir()?);
    let status = command.args(arguments).status().context("cannot run the benchmark")?;
    // Cargo passes on how the benchmark ended: 2 is a command line that it does not understand.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The file of `--json` is meant from where the command was typed; cargo starts a benchmark in the folder of its crate.
fn with_whole_path(arguments: &[String], here: &Path) -> Vec<OsString> {
    let mut after_json = false;
    let whole = arguments.iter().map(|word| {
        let is_file = mem::replace(&mut after_json, word == "--json") && !word.starts_with("--");
        match word.strip_prefix("--json=") {
            Some(file) if !file.is_empty() => {
                ["--json=".into(), here.join(file).into_os_string()].into_iter().collect()
            }
            _ if is_file => here.join(word).into_os_string(),
            _ => word.into(),
        }
    });
    whole.collect()
}

/// Checks that the comparison still builds and passes its tests; nothing is measured.
pub(crate) fn check() -> Result<ExitCode> {
    let steps: [(&str, &[&str]); 2] = [("clippy", &["--all-targets", "--", "-D", "warnings"]), ("test", &[])];
    for (verb, arguments) in steps {
        if !compare(verb)?.args(arguments).status().context("cannot run cargo")?.success() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Cargo for `bench/`, in the target folder of everything else, so that what both need is built once.
fn compare(verb: &str) -> Result<Command> {
    let absent = FOR_PEERS.iter().filter(|program| program.find().is_err()).map(|program| program.package);
    let mut absent: Vec<&str> = absent.collect();
    if absent.contains(&"protobuf-compiler") {
        // Debian keeps the common definitions apart.
        absent.push("libprotobuf-dev");
    }
    if !has_openssl() {
        absent.push("libssl-dev");
    }
    if !absent.is_empty() {
        setup::install_packages(&absent)?;
    }
    let mut command = cargo::command([verb, "--locked", "--manifest-path", "bench/Cargo.toml", "--target-dir"]);
    command.arg(Scope::new(&[])?.target_folder()?);
    if verb == "run" {
        command.args(["--release", "--"]);
    }
    Ok(command)
}

fn has_openssl() -> bool {
    let mut asked = Command::new("pkg-config");
    asked.args(["--exists", "openssl"]).stdout(Stdio::null()).stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_kept_where_the_command_was_typed() {
        let whole = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            with_whole_path(&words, Path::new("/here")).join(" ".as_ref()).into_string().unwrap()
        };
        assert_eq!(whole("pairs --json a/b.json --rounds 3"), "pairs --json /here/a/b.json --rounds 3");
        assert_eq!(whole("--json=b.json pairs"), "--json=/here/b.json pairs");
        assert_eq!(whole("--json /tmp/b.json"), "--json /tmp/b.json");
        // The benchmark says what is missing.
        assert_eq!(whole("--json --rounds 3"), "--json --rounds 3");
        assert_eq!(whole("--json="), "--json=");
    }
}
