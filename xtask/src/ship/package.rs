//! Does every crate build from its own tarball?
//!
//! What cargo packages is not what lies in the repository: paths become versions, and files that the manifest does not
//! list are gone. cargo resolves crates that are not published yet among the tarballs of the same call.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use super::manifest;
use crate::cargo;

/// Packages and builds all published crates, with all features, in the order of their dependencies.
pub(crate) fn run(allow_dirty: bool) -> Result<ExitCode> {
    let published = manifest::published()?;
    let mut arguments = vec!["package", "--locked", "--all-features"];
    if allow_dirty {
        arguments.push("--allow-dirty");
    }
    for package in &published {
        arguments.extend(["--package", &package.name]);
    }
    let status = cargo::command(&arguments).status().context("cannot run cargo package")?;
    ensure!(status.success(), "a crate does not build from its own tarball");
    for package in &published {
        println!("{}: {} files, {}", package.name, files(&package.name)?.len(), size_of_tarball(package)?);
    }
    println!("publish in this order: {}", names(&published));
    Ok(ExitCode::SUCCESS)
}

/// The files of a package, as cargo lists them.
fn files(name: &str) -> Result<Vec<String>> {
    let output = cargo::command(["package", "--list", "--allow-dirty", "--package", name]).output()?;
    ensure!(output.status.success(), "cannot list {name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

fn size_of_tarball(package: &manifest::Published) -> Result<String> {
    let version = package.metadata["version"].as_str().unwrap_or_default();
    let folder = crate::scope::Scope::new(&[])?.target_folder()?.join("package");
    let size = std::fs::metadata(folder.join(format!("{}-{version}.crate", package.name)))?.len();
    Ok(format!("{} kB", size.div_ceil(1000)))
}

fn names(published: &[manifest::Published]) -> String {
    published.iter().map(|package| package.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of the guide are links in the repository; cargo must put the files into the package.
    #[test]
    fn the_facade_carries_its_guide_and_nothing_of_the_repository() {
        let files = files("syncguard").unwrap();
        for file in
            ["docs/guide.md", "docs/backends/redis.md", "docs/links.md", "README.md", "LICENSE-MIT", "src/lib.rs"]
        {
            assert!(files.iter().any(|found| found == file), "{file} is not in the package: {files:?}");
        }
        assert!(!files.iter().any(|file| file.starts_with("tests/") || file.starts_with("examples/")), "{files:?}");
    }
}
