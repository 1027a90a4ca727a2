//! Do the libraries build for macOS and Windows?
//!
//! Checked from Linux, with the compiler of this repository, so that nobody needs such a machine to see it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use super::checks::{folder, rustup, selected, succeed};
use crate::cargo;

/// The systems beside Linux, what builds for them, and how zig names them.
const SYSTEMS: [(&str, &str, &str, &str); 2] = [
    (
        "aarch64-apple-darwin",
        "aarch64-macos",
        "syncguard-core syncguard-conformance syncguard-redis syncguard-postgres syncguard-firestore syncguard-sqlite \
         syncguard",
        "syncguard/sqlite syncguard/redis syncguard/postgres syncguard/firestore syncguard/blocking syncguard/fenced-http",
    ),
    // Not sqlite: it needs Unix, and says so.
    (
        "x86_64-pc-windows-gnu",
        "x86_64-windows-gnu",
        "syncguard-core syncguard-conformance syncguard-redis syncguard-postgres syncguard-firestore syncguard",
        "syncguard-core/tracing syncguard-core/metrics syncguard-core/tls syncguard/redis syncguard/postgres \
         syncguard/firestore syncguard/blocking syncguard/fenced-http",
    ),
];

/// `cargo check` for the systems that nobody tests on, from this one. C code of dependencies is compiled by zig, which
/// brings the headers of all systems.
pub(crate) fn run() -> Result<ExitCode> {
    let zig = zig()?;
    for (target, zig_target, packages, features) in SYSTEMS {
        rustup(&["target", "add", target])?;
        let suffix = target.replace('-', "_");
        let compiler = compiler(&zig, zig_target)?;
        let mut command = cargo::command(["check", "--locked", "--no-default-features", "--target", target]);
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
