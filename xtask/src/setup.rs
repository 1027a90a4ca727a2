//! What do the tests need that is not here yet?
//!
//! On Debian as root, the packages are installed; otherwise the one line to run is printed and the task fails. The
//! services those packages bring are not started: tests start their own servers and never touch one of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use syncguard_testkit::program::{PGBOUNCER, POSTGRES, Program, REDIS_SERVER};

use crate::cargo;
use crate::instructions::VALGRIND;

/// Makes the keys and certificates that tests want to be used or refused.
const OPENSSL: Program = Program { name: "openssl", package: "openssl" };

const PROGRAMS: [Program; 4] = [REDIS_SERVER, POSTGRES, PGBOUNCER, OPENSSL];

/// Asked by Debian's packages before they start a service; 101 is "no".
const POLICY: &str = "/usr/sbin/policy-rc.d";

pub(crate) fn run() -> Result<()> {
    let absent: Vec<&str> =
        PROGRAMS.iter().filter(|program| program.find().is_err()).map(|program| program.package).collect();
    if !absent.is_empty() {
        install_packages(&absent)?;
    }
    for program in PROGRAMS {
        program.find()?;
    }
    // Counts instructions, and fails nobody's tests: where it is not to be had, that comparison says that it is skipped.
    if VALGRIND.find().is_err()
        && let Err(error) = install_packages(&[VALGRIND.package])
    {
        eprintln!("warning: no instructions are counted: {error:#}");
    }
    if !has_nextest() {
        eprintln!("installing cargo-nextest");
        let status = cargo::command(["install", "cargo-nextest", "--locked"]).status()?;
        ensure!(status.success(), "cannot install cargo-nextest\nhint: https://nexte.st/docs/installation");
    }
    Ok(())
}

fn has_nextest() -> bool {
    cargo::command(["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs Debian packages, or says how.
pub(crate) fn install_packages(packages: &[&str]) -> Result<()> {
    let line = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    let Some(rights) = Rights::found() else {
        bail!("this needs {}\nhint: sudo {line}", packages.join(", "));
    };
    eprintln!("installing {}", packages.join(", "));
    let _policy = matches!(rights, Rights::Root).then(KeepServicesStopped::new).transpose()?;
    rights.apt_get(&["update", "-q"])?;
    let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
    arguments.extend(packages);
    rights.apt_get(&arguments).with_context(|| format!("hint: {line}"))
}

/// Whose rights packages are installed with.
enum Rights {
    Root,
    /// A machine that builds once lets everybody be root, and is thrown away with the services that packages start.
    Sudo,
}

impl Rights {
    fn found() -> Option<Self> {
        if !Path::new("/usr/bin/apt-get").exists() {
            return None;
        }
        if rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        (cargo::builds_once() && Path::new("/usr/bin/sudo").exists()).then_some(Self::Sudo)
    }

    fn apt_get(&self, arguments: &[&str]) -> Result<()> {
        let words: &[&str] = match self {
            Self::Root => &["env"],
            Self::Sudo => &["sudo", "-n", "env"],
        };
        let output = Command::new(words[0])
            .args(&words[1..])
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("cannot run apt-get")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "apt-get {} failed: {}", arguments[0], errors.trim());
        Ok(())
    }
}

/// While this lives, an installed package starts no service. A policy that exists already is the machine's own and
/// stays.
struct KeepServicesStopped {
    made: bool,
}

impl KeepServicesStopped {
    fn new() -> Result<Self> {
        let made = !Path::new(POLICY).exists();
        if made {
            fs::write(POLICY, "#!/bin/sh\nexit 101\n").with_context(|| format!("cannot write {POLICY}"))?;
            fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { made })
    }
}

impl Drop for KeepServicesStopped {
    fn drop(&mut self) {
        if self.made && fs::remove_file(POLICY).is_err() {
            eprintln!("warning: {POLICY} was left behind; remove it to let packages start their services");
        }
    }
}
