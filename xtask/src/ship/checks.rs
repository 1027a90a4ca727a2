//! Does it build where its users build it?
//!
//! With the oldest compiler that each crate names, with every combination of two features, for other systems, with
//! nothing in the tree that `deny.toml` refuses, and, once there is a release, without breaking its users.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use super::manifest;
use crate::cargo;
use crate::scope::Scope;

/// What is built with which compiler. A crate's own `rust-version` is what its code and its default features need; features
/// whose drivers ask for more are built with the compiler that they ask for.
const OLDEST: [(&str, &str, &str); 4] = [
    (
        "1.88",
        "syncguard-core syncguard-conformance syncguard-redis syncguard-postgres",
        "syncguard-core/tracing syncguard-core/metrics syncguard-core/tls syncguard-core/postgres-types \
         syncguard-redis/client syncguard-postgres/deadpool syncguard-postgres/transaction",
    ),
    (
        "1.89",
        "syncguard syncguard-fenced",
        "syncguard/redis syncguard/postgres syncguard/blocking syncguard/fenced-http syncguard/fenced-object \
         syncguard/metrics syncguard-fenced/suite",
    ),
    ("1.91", "syncguard syncguard-cli", "syncguard/full syncguard-cli/full"),
    ("1.94", "syncguard", "syncguard/full syncguard/sqlx syncguard/fenced-sqlx"),
];

/// The systems beside Linux, what builds for them, and how zig names them.
const SYSTEMS: [(&str, &str, &str, &str); 2] = [
    (
        "aarch64-apple-darwin",
        "aarch64-macos",
        "syncguard-core syncguard-conformance syncguard-redis syncguard-postgres syncguard-firestore syncguard-sqlite \
         syncguard",
        "syncguard/redis syncguard/postgres syncguard/firestore",
    ),
    // Neither sqlite nor postgres: both need Unix, and say so.
    (
        "x86_64-pc-windows-gnu",
        "x86_64-windows-gnu",
        "syncguard-core syncguard-conformance syncguard-redis syncguard-firestore",
        "syncguard-core/tracing syncguard-core/metrics",
    ),
];

/// `cargo check` of every crate with the oldest compiler that it names.
pub(crate) fn msrv(versions: &[String]) -> Result<ExitCode> {
    let chosen = |version: &str| versions.is_empty() || versions.iter().any(|chosen| chosen == version);
    for (version, packages, features) in OLDEST.into_iter().filter(|(version, ..)| chosen(version)) {
        rustup(&["toolchain", "install", version, "--profile", "minimal", "--no-self-update"])?;
        let mut command = Command::new("rustup");
        command.args(["run", version, "cargo", "check", "--locked"]).args(selected(packages, features));
        // Neither the toolchain of the repository nor its target folder: every compiler would build the other's again.
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
        command.env("CARGO_TARGET_DIR", folder(&format!("msrv/{version}"))?).current_dir(cargo::root());
        succeed(&mut command, &format!("Rust {version}"))?;
        println!(
            "Rust {version}: {packages} build, with {}",
            features.split_whitespace().collect::<Vec<_>>().join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Every feature alone and every pair of features, of every published crate.
pub(crate) fn features() -> Result<ExitCode> {
    tool("cargo-hack", "hack")?;
    let published = manifest::published()?;
    let mut command = cargo::command(["hack", "check", "--feature-powerset", "--depth", "2", "--no-dev-deps"]);
    for package in &published {
        command.args(["--package", &package.name]);
    }
    succeed(&mut command, "cargo hack").map(|()| ExitCode::SUCCESS)
}

/// What `deny.toml` asks. The advisories come from the network; without it the rest is checked, and that is said.
pub(crate) fn deny(offline: bool) -> Result<ExitCode> {
    tool("cargo-deny", "deny")?;
    let checks: &[&str] = if offline { &["bans", "licenses", "sources"] } else { &[] };
    succeed(cargo::command(["deny", "check"]).args(checks), "cargo deny")?;
    if offline {
        println!("note: advisories were not checked: their database is on the network");
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the public API with the newest release on crates.io. Before the first one there is nothing to compare with.
pub(crate) fn semver() -> Result<ExitCode> {
    tool("cargo-semver-checks", "semver-checks")?;
    for package in manifest::published()?.iter().filter(|package| package.is_library()) {
        let found = cargo::command(["info", "--quiet", "--registry", "crates-io", &package.name])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !found.success() {
            println!("{}: not released yet, nothing to compare with", package.name);
            continue;
        }
        let mut command = cargo::command(["semver-checks", "--all-features", "--package", &package.name]);
        succeed(&mut command, &format!("semver of {}", package.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `cargo check` for the systems that nobody tests on, from this one. C code of dependencies is compiled by zig, which
/// brings the headers of all systems.
pub(crate) fn portable() -> Result<ExitCode> {
    let zig = zig()?;
    for (target, zig_target, packages, features) in SYSTEMS {
        rustup(&["target", "add", target])?;
        let suffix = target.replace('-', "_");
        let compiler = compiler(&zig, zig_target)?;
        let mut command = cargo::command(["check", "--locked", "--target", target]);
        command.args(selected(packages, features)).env("CARGO_TARGET_DIR", folder("portable")?);
        command.env(format!("CC_{suffix}"), compiler).env(format!("AR_{suffix}"), archiver(&zig)?);
        command.env("CRATE_CC_NO_DEFAULTS", "1");
        succeed(&mut command, target)?;
        println!("{target}: {packages} build");
    }
    Ok(ExitCode::SUCCESS)
}

/// The words that start zig: the one of this machine, or the Python package `ziglang` in a folder of its own.
fn zig() -> Result<Vec<String>> {
    let python = folder("portable")?.join("python");
    let own = python.join("bin/python3").display().to_string();
    let starts = |words: &[&str]| {
        let mut version = Command::new(words[0]);
        version.args(&words[1..]).arg("version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    if starts(&["zig"]) {
        return Ok(vec!["zig".to_owned()]);
    }
    let packaged = [&*own, "-m", "ziglang"];
    if !starts(&packaged) {
        eprintln!("installing zig, which compiles the C code of dependencies for other systems");
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&python), "python3 -m venv (or install zig)")?;
        succeed(Command::new(&own).args(["-m", "pip", "install", "--quiet", "ziglang"]), "pip install ziglang")?;
        ensure!(starts(&packaged), "zig does not start");
    }
    Ok(packaged.map(str::to_owned).to_vec())
}

/// A program that compiles C for a system. cargo passes one path and no arguments, so it is a script.
fn compiler(zig: &[String], target: &str) -> Result<PathBuf> {
    // The C compilers of build scripts are called with the triples of Rust, which zig does not know.
    let drop_triple = "for word; do shift; case $word in --target=*) ;; *) set -- \"$@\" \"$word\" ;; esac; done";
    script(&format!("cc-{target}"), &format!("{drop_triple}\nexec {} cc -target {target} \"$@\"", zig.join(" ")))
}

fn archiver(zig: &[String]) -> Result<PathBuf> {
    script("ar", &format!("exec {} ar \"$@\"", zig.join(" ")))
}

fn script(name: &str, body: &str) -> Result<PathBuf> {
    let path = folder("portable")?.join(name);
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn selected(packages: &str, features: &str) -> Vec<String> {
    let packages = packages.split_whitespace().flat_map(|package| ["-p".to_owned(), package.to_owned()]);
    let features = features.split_whitespace().collect::<Vec<_>>().join(",");
    packages.chain(["--features".to_owned(), features]).collect()
}

fn rustup(arguments: &[&str]) -> Result<()> {
    succeed(Command::new("rustup").args(arguments).current_dir(cargo::root()), "rustup")
}

/// Installs a subcommand of cargo that is not there.
fn tool(package: &str, subcommand: &str) -> Result<()> {
    let mut version = cargo::command([subcommand, "--version"]);
    if version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    eprintln!("installing {package}");
    succeed(&mut cargo::command(["install", package, "--locked"]), package)
}

fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "{what} failed");
    Ok(())
}

fn folder(name: &str) -> Result<PathBuf> {
    Ok(Scope::new(&[])?.target_folder()?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a manifest promises is what `cargo xtask msrv` builds.
    #[test]
    fn every_rust_version_of_a_manifest_is_one_that_is_checked() {
        for package in manifest::published().unwrap() {
            let promised = package.metadata["rust_version"].as_str().unwrap();
            let is_checked = OLDEST.iter().any(|(version, packages, _)| {
                *version == promised && (packages.split_whitespace().any(|name| name == package.name))
            });
            // The drivers of these two are reached through the crates that use them.
            let by_the_facade = ["syncguard-sqlite", "syncguard-firestore"].contains(&&*package.name);
            let is_known = OLDEST.iter().any(|(version, ..)| *version == promised);
            assert!(is_checked || (by_the_facade && is_known), "{} promises Rust {promised}", package.name);
        }
    }
}
