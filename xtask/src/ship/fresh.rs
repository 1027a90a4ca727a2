//! Can somebody who has nothing install it?
//!
//! `packaging/fresh-user.sh` does what such a person does; here it is given what was made and the first command of the
//! README, so that the page and the check cannot differ.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::dist::Made;
use crate::{cargo, setup};

pub(crate) fn check(made: &Made) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root || cargo::builds_once(), "the check makes a user and installs a package: run it as root");
    let absent: Vec<&str> = [("man", "man-db"), ("zsh", "zsh")]
        .into_iter()
        .filter(|(program, _)| !is_there(program))
        .map(|(_, package)| package)
        .collect();
    if !absent.is_empty() {
        setup::install_packages(&absent)?;
    }
    let readme = fs::read_to_string(cargo::root().join("README.md"))?;
    let first = first_command(&readme).context("the README shows no command")?;
    let mut command = Command::new(if is_root { "sh" } else { "sudo" });
    if !is_root {
        command.args(["-n", "sh"]);
    }
    command.arg(cargo::root().join("packaging/fresh-user.sh")).args([&made.archive, &made.package]).arg(first);
    ensure!(command.status()?.success(), "a new user cannot use what was made");
    Ok(())
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The first line that the page tells to type.
fn first_command(page: &str) -> Option<&str> {
    let block = page.split("\n```console\n").nth(1)?;
    block.lines().find_map(|line| line.strip_prefix("$ "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_begins_with_the_installed_command() {
        let readme = fs::read_to_string(cargo::root().join("README.md")).unwrap();
        let first = first_command(&readme).unwrap();
        assert!(first.starts_with("syncguard run "), "{first}");
    }
}
