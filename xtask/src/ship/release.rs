//! What does a tag publish?
//!
//! The binaries that `dist` made, with what the changelog says of this version. The tag must be the version of the
//! crates: a release whose binaries say another number cannot be taken back.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use super::dist;
use crate::cargo;
use crate::scope::Scope;

pub(crate) fn run(tag: &str, is_rehearsal: bool) -> Result<ExitCode> {
    let version = dist::version()?;
    ensure!(tag == format!("v{version}"), "the tag {tag} is not the version {version} of the crates");
    let changelog = fs::read_to_string(cargo::root().join("CHANGELOG.md"))?;
    let notes = notes(&changelog, &version).with_context(|| format!("CHANGELOG.md says nothing of {version}"))?;
    let folder = Scope::new(&[])?.target_folder()?.join("dist");
    let files: Vec<_> = fs::read_dir(&folder)
        .context("nothing was made: cargo xtask dist")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file() && path.to_string_lossy().contains("/syncguard"))
        .collect();
    ensure!(!files.is_empty(), "nothing was made: cargo xtask dist");
    if is_rehearsal {
        println!("{notes}");
        for file in files {
            println!("{}", file.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new("gh");
    command.args(["release", "create", tag, "--verify-tag", "--title", tag, "--notes", notes]).args(files);
    ensure!(command.current_dir(cargo::root()).status()?.success(), "gh release failed");
    Ok(ExitCode::SUCCESS)
}

/// The part of the changelog that speaks of a version.
fn notes<'c>(changelog: &'c str, version: &str) -> Option<&'c str> {
    let (_, rest) = changelog.split_once(&format!("\n## [{version}] - "))?;
    let (_, notes) = rest.split_once('\n')?;
    let end = ["\n## [", "\n[Unreleased]: "].iter().filter_map(|mark| notes.find(mark)).min().unwrap_or(notes.len());
    Some(notes[..end].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_are_those_of_the_version_alone() {
        let changelog = "# Changelog\n\n## [Unreleased]\n\n- later\n\n## [0.2.0] - 2026-01-01\n\n### Added\n\n- this\n\n\
                         ## [0.1.0] - 2025-01-01\n\n- before\n\n[Unreleased]: https://example.org\n";
        assert_eq!(notes(changelog, "0.2.0"), Some("### Added\n\n- this"));
        assert_eq!(notes(changelog, "0.1.0"), Some("- before"));
        assert_eq!(notes(changelog, "0.3.0"), None);
    }
}
