//! Who makes the data directory?
//!
//! `initdb` takes seconds, a copy of its result a fraction. The result is kept in the testkit's own folder, one per
//! server version, and copied for every server. The first process makes it while the others wait at a file lock.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::place;
use crate::program::{Account, INITDB, POSTGRES};

/// Copies a fresh data directory to `target`, which must not exist.
pub(super) fn copy_to(target: &Path, account: Option<Account>) -> Result<()> {
    let template = made(account)?;
    let status = Command::new("cp").arg("-a").arg(&template).arg(target).status().context("cannot run cp")?;
    ensure!(status.success(), "cannot copy {}", template.display());
    Ok(())
}

fn made(account: Option<Account>) -> Result<PathBuf> {
    let home = place::home()?;
    let template = home.join(format!("pgdata-{}", version()?));
    let lock = File::create(home.join("pgdata.lock"))?;
    lock.lock()?;
    if !template.exists() {
        make(&template, account)?;
    }
    Ok(template)
}

/// Major and minor: a data directory made by another minor version works, but a test should not wonder.
fn version() -> Result<String> {
    let output = Command::new(POSTGRES.find()?).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text.split_whitespace().nth(2).context("postgres does not tell its version")?;
    Ok(number.to_owned())
}

fn make(template: &Path, account: Option<Account>) -> Result<()> {
    let half_made = template.with_extension("making");
    if half_made.exists() {
        fs::remove_dir_all(&half_made)?;
    }
    fs::create_dir(&half_made)?;
    let mut initdb = Command::new(INITDB.find()?);
    initdb
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-D"])
        .arg(&half_made)
        .current_dir("/");
    if let Some(account) = account {
        account.own(&half_made)?;
        account.apply(&mut initdb);
    }
    let output = initdb.output().context("cannot run initdb")?;
    ensure!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
    // Only a whole directory gets the name that others copy.
    fs::rename(&half_made, template)?;
    Ok(())
}
