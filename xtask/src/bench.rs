//! How fast is it?
//!
//! Every subject is a program that starts its own servers and lets its contenders take turns. Those of one backend lie
//! in its crate. The comparison with peers lies in `bench/`, a workspace of its own: nobody who tests should have to
//! build them.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::ValueEnum;
use syncguard_testkit::program::Program;

use crate::scope::Scope;
use crate::{cargo, setup};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Subject {
    Sqlite,
    Redis,
    Postgres,
    Firestore,
    Fenced,
    Silence,
    Waiters,
    Cli,
    /// The pure client: the memory backend
    Core,
    /// All backends and their peers: docs/benchmarks.md
    Compare,
}

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
            command.args(features).arg("--");
            command
        }
        None => compare("run")?,
    };
    if subject == Subject::Core {
        command.args(["pairs", "hand-off", "memory", "--only", "client"]);
    }
    let status = command.args(arguments).status().context("cannot run the benchmark")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
