//! Do the README's two commands work one after the other?
//!
//! `packaging/fresh-checkout.sh` types them as root and as an ordinary user who have nothing but Rust; here it is given the
//! first two blocks of the page, so that the page and the check cannot differ. `.ci/run` types the first one before the tests.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::cargo;

pub(crate) fn run() -> Result<ExitCode> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root || cargo::builds_once(), "the check makes a user: run it as root");
    let readme = std::fs::read_to_string(cargo::root().join("README.md"))?;
    let [first, second] = two_commands(&readme).context("the README shows no two commands")?;
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(cargo::root()).output()?;
    let sysroot = String::from_utf8(sysroot.stdout)?;
    let words: &[&str] = if is_root { &["bash"] } else { &["sudo", "-n", "bash"] };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(cargo::root().join("packaging/fresh-checkout.sh")).arg(cargo::root());
    let status = command.args([sysroot.trim(), first, second]).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first two lines that the page tells to type.
fn two_commands(page: &str) -> Option<[&str; 2]> {
    let mut blocks = page.split("\n```sh\n").skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default());
    Some([blocks.next()?, blocks.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_begins_with_the_two_commands() {
        let readme = std::fs::read_to_string(cargo::root().join("README.md")).unwrap();
        let [first, second] = two_commands(&readme).unwrap();
        assert!(first.starts_with("cargo run -q -- run demo:hello -- ") && first.lines().count() == 1, "{first}");
        assert_eq!(second, "cargo xtask test");
        let before = readme.split("\n```sh\n").next().unwrap();
        assert!(before.lines().count() < 15 && !before.contains("```"), "nothing to type stands before them");
    }
}
