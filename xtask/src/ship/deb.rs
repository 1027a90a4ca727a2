//! How does the tree become a Debian package?
//!
//! By `dpkg-deb`, which every Debian has. cargo-deb would describe the same files a second time, and the archive could
//! then differ from the package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::dist::{self, Target};
use crate::cargo;

pub(crate) fn build(target: &Target, tree: &Path, dist: &Path, version: &str) -> Result<PathBuf> {
    let root = dist.join(format!("deb-{}", target.architecture));
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for file in dist::files(tree)? {
        let Some(place) = place(&file) else { continue };
        let mode = if file.starts_with("bin/") { 0o755 } else { 0o644 };
        dist::install(&tree.join(&file), &root.join("usr").join(place), mode)?;
    }
    compress(&root.join("usr/share/man/man1"))?;
    let sources = cargo::root().join("packaging/deb");
    dist::install(&sources.join("copyright"), &root.join("usr/share/doc/syncguard/copyright"), 0o644)?;
    let control = fs::read_to_string(sources.join("control"))?;
    let kilobytes = kilobytes(&root)?.to_string();
    let control = control.replace("@VERSION@", version).replace("@ARCHITECTURE@", target.architecture);
    dist::write(&root.join("DEBIAN/control"), &control.replace("@KILOBYTES@", &kilobytes))?;
    write_sums(&root)?;
    let package = dist.join(format!("syncguard_{version}_{}.deb", target.architecture));
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "--build"]).arg(&root).arg(&package);
    command.env("SOURCE_DATE_EPOCH", dist::commit_time()?);
    ensure!(command.status().context("dpkg-deb makes the package")?.success(), "dpkg-deb failed");
    Ok(package)
}

/// Where Debian wants a file of the archive; the uninstaller is dpkg's own.
fn place(file: &str) -> Option<String> {
    (!file.ends_with("/uninstall.sh")).then(|| file.replace("zsh/site-functions", "zsh/vendor-completions"))
}

fn compress(folder: &Path) -> Result<()> {
    for page in dist::files(folder)? {
        let status = Command::new("gzip").args(["-9n"]).arg(folder.join(page)).status()?;
        ensure!(status.success(), "gzip failed");
    }
    Ok(())
}

fn kilobytes(root: &Path) -> Result<u64> {
    let sizes = dist::files(root)?.into_iter().map(|file| Ok(fs::metadata(root.join(file))?.len().div_ceil(1024)));
    sizes.sum()
}

/// What `dpkg --verify` compares.
fn write_sums(root: &Path) -> Result<()> {
    let files: Vec<String> = dist::files(root)?.into_iter().filter(|file| !file.starts_with("DEBIAN/")).collect();
    let output = Command::new("md5sum").args(files).current_dir(root).output()?;
    ensure!(output.status.success(), "md5sum failed");
    dist::write(&root.join("DEBIAN/md5sums"), &String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_has_a_place_of_its_own_for_completions_and_removes_by_itself() {
        assert_eq!(place("share/zsh/site-functions/_syncguard").unwrap(), "share/zsh/vendor-completions/_syncguard");
        assert_eq!(place("bin/syncguard").unwrap(), "bin/syncguard");
        assert_eq!(place("share/doc/syncguard/uninstall.sh"), None);
    }
}
