//! Does it build where its users build it?
//!
//! With the oldest compiler that each crate names, with every combination of two features, on docs.rs, with nothing in
//! the tree that `deny.toml` refuses, and, once there is a release, without breaking its users. Other systems are in
//! [`portable`](super::portable).

use std::fs;
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
        "syncguard-core/tracing syncguard-core/metrics syncguard-core/tls \
         syncguard-redis/client syncguard-postgres/deadpool syncguard-postgres/transaction",
    ),
    (
        "1.89",
        "syncguard syncguard-fenced",
        "syncguard/sqlite syncguard/redis syncguard/postgres syncguard/blocking syncguard/fenced-http syncguard/fenced-object \
         syncguard/metrics syncguard-fenced/suite",
    ),
    ("1.91", "syncguard syncguard-cli", "syncguard/full syncguard-cli/full"),
    ("1.94", "syncguard", "syncguard/full syncguard/fenced-sqlx"),
];

/// `cargo check` of every crate with the oldest compiler that it names.
pub(crate) fn msrv(versions: &[String]) -> Result<ExitCode> {
    let chosen = |version: &str| versions.is_empty() || versions.iter().any(|chosen| chosen == version);
    for (version, packages, features) in OLDEST.into_iter().filter(|(version, ..)| chosen(version)) {
        let mut command = cargo_of(version, &format!("msrv/{version}"))?;
        command.args(["check", "--locked"]).args(selected(packages, features));
        succeed(&mut command, &format!("Rust {version}"))?;
        println!(
            "Rust {version}: {packages} build, with {}",
            features.split_whitespace().collect::<Vec<_>>().join(", ")
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// cargo of another compiler, which is installed if it is not there. In a target folder of its own: every compiler
/// would build the other's again.
fn cargo_of(toolchain: &str, target: &str) -> Result<Command> {
    let mut version = Command::new("rustup");
    version.args(["run", toolchain, "rustc", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !version.status().context("cannot run rustup")?.success() {
        rustup(&["toolchain", "install", toolchain, "--profile", "minimal", "--no-self-update"])?;
    }
    let mut command = Command::new("rustup");
    command.args(["run", toolchain, "cargo"]).current_dir(cargo::root());
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
    command.env("CARGO_TARGET_DIR", folder(target)?);
    Ok(command)
}

/// The documentation of every library as docs.rs builds it: by nightly, with all features and the badges of features.
/// Without this, what only docs.rs compiles is first compiled after the release.
pub(crate) fn docs() -> Result<ExitCode> {
    let libraries: Vec<_> = manifest::published()?.into_iter().filter(manifest::Published::is_library).collect();
    let mut command = cargo_of("nightly", "docs-rs")?;
    command.args(["doc", "--locked", "--no-deps", "--all-features", "--lib"]);
    for library in &libraries {
        command.args(["--package", &library.name]);
    }
    succeed(command.env("RUSTDOCFLAGS", "--cfg docsrs -D warnings"), "the documentation of docs.rs")?;
    let pages = folder("docs-rs/doc")?;
    let page = fs::read_to_string(pages.join("syncguard/blocking/index.html"))?;
    ensure!(page.contains("crate feature <code>blocking</code>"), "a page does not say which feature brings its items");
    println!("{} libraries, as on docs.rs: {}", libraries.len(), pages.join("syncguard/index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// No feature, every feature (`default` is one) alone and every pair, of every published crate: what only all features
/// together use must not be a warning for who takes fewer.
pub(crate) fn features() -> Result<ExitCode> {
    tool("cargo-hack", "hack")?;
    let published = manifest::published()?;
    let mut command = cargo::command(["hack", "clippy", "--feature-powerset", "--depth", "2", "--no-dev-deps"]);
    for package in &published {
        command.args(["--package", &package.name]);
    }
    succeed(command.args(["--", "-D", "warnings"]), "cargo hack").map(|()| ExitCode::SUCCESS)
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
    for package in manifest::published()?.iter().filter(|package| package.is_library()) {
        if !is_released(&package.name)? {
            println!("{}: not released yet, nothing to compare with", package.name);
            continue;
        }
        tool("cargo-semver-checks", "semver-checks")?;
        let mut command = cargo::command(["semver-checks", "--all-features", "--package", &package.name]);
        succeed(&mut command, &format!("semver of {}", package.name))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether crates.io has the crate. That it cannot be asked is an error: it must not pass for "nothing to compare".
fn is_released(name: &str) -> Result<bool> {
    let output = cargo::command(["info", "--registry", "crates-io", name]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success() || errors.contains("could not find"),
        "crates.io did not answer: {}",
        errors.trim()
    );
    Ok(output.status.success())
}

pub(crate) fn selected(packages: &str, features: &str) -> Vec<String> {
    let packages = packages.split_whitespace().flat_map(|package| ["-p".to_owned(), package.to_owned()]);
    let features = features.split_whitespace().collect::<Vec<_>>().join(",");
    packages.chain(["--features".to_owned(), features]).collect()
}

pub(crate) fn rustup(arguments: &[&str]) -> Result<()> {
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

pub(crate) fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "{what} failed");
    Ok(())
}

pub(crate) fn folder(name: &str) -> Result<PathBuf> {
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
