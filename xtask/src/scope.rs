//! Which packages does a step cover?
//!
//! The workspace, or the packages that were named. cargo spells the two differently for formatting and for the rest,
//! and calls it an error to ask for the doctests of packages that have no library.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo;

pub(crate) struct Scope {
    packages: Vec<String>,
    metadata: Value,
}

impl Scope {
    /// The named packages, or all if none is named.
    pub(crate) fn new(packages: &[String]) -> Result<Self> {
        let output = cargo::command(["metadata", "--no-deps", "--format-version", "1"]).output()?;
        ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        let scope = Self { packages: packages.to_vec(), metadata: serde_json::from_slice(&output.stdout)? };
        for package in packages {
            scope.targets_of(package).with_context(|| format!("there is no package `{package}` in this workspace"))?;
        }
        Ok(scope)
    }

    /// For `cargo clippy`, `nextest`, `doc`: all with all features, so that nothing is compiled twice.
    pub(crate) fn for_build(&self) -> Vec<String> {
        let scope = if self.packages.is_empty() { vec!["--workspace".to_owned()] } else { named(&self.packages) };
        scope.into_iter().chain(["--all-features", "--locked"].map(str::to_owned)).collect()
    }

    /// For `cargo fmt`.
    pub(crate) fn for_format(&self) -> Vec<String> {
        if self.packages.is_empty() { vec!["--all".to_owned()] } else { named(&self.packages) }
    }

    /// For `cargo test --doc`; `None` when no package in scope has a library.
    pub(crate) fn for_doctests(&self) -> Option<Vec<String>> {
        if self.packages.is_empty() {
            return Some(self.for_build());
        }
        let libraries: Vec<String> =
            self.packages.iter().filter(|package| self.has_library(package)).cloned().collect();
        let narrowed = Self { packages: libraries, metadata: Value::Null };
        (!narrowed.packages.is_empty()).then(|| narrowed.for_build())
    }

    /// Whether no package was chosen.
    pub(crate) fn is_everything(&self) -> bool {
        self.packages.is_empty()
    }

    /// Where cargo builds; it may be configured away from the workspace.
    pub(crate) fn target_folder(&self) -> Result<PathBuf> {
        let folder = self.metadata["target_directory"].as_str();
        folder.map(PathBuf::from).context("cargo metadata does not name the target folder")
    }

    fn has_library(&self, package: &str) -> bool {
        let is_library = |target: &Value| target["doctest"].as_bool().unwrap_or(false);
        self.targets_of(package).is_some_and(|targets| targets.iter().any(is_library))
    }

    fn targets_of(&self, package: &str) -> Option<&Vec<Value>> {
        let packages = self.metadata["packages"].as_array()?;
        packages.iter().find(|found| found["name"] == package)?["targets"].as_array()
    }
}

fn named(packages: &[String]) -> Vec<String> {
    packages.iter().flat_map(|package| ["-p".to_owned(), package.clone()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(packages: &[&str]) -> Scope {
        let metadata = serde_json::json!({ "packages": [
            { "name": "lib", "targets": [{ "doctest": true }, { "doctest": false }] },
            { "name": "bin", "targets": [{ "doctest": false }] },
        ]});
        Scope { packages: packages.iter().map(|&package| package.to_owned()).collect(), metadata }
    }

    #[test]
    fn no_name_means_the_whole_workspace() {
        assert_eq!(scope(&[]).for_build(), ["--workspace", "--all-features", "--locked"]);
        assert_eq!(scope(&[]).for_format(), ["--all"]);
        assert_eq!(scope(&[]).for_doctests(), Some(scope(&[]).for_build()));
    }

    #[test]
    fn doctests_are_asked_of_libraries_only() {
        let both = scope(&["lib", "bin"]);
        assert_eq!(both.for_format(), ["-p", "lib", "-p", "bin"]);
        assert_eq!(both.for_doctests().unwrap(), ["-p", "lib", "--all-features", "--locked"]);
        assert_eq!(scope(&["bin"]).for_doctests(), None);
    }
}
