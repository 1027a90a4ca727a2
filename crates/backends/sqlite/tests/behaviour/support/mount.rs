//! How does a test get a filesystem of its own?
//!
//! By mounting one, which takes root. Without it the test says SKIPPED, and fails where nothing may be skipped.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted filesystem. Unmounted when dropped.
pub(crate) struct Mount {
    point: TempDir,
}

impl Mount {
    /// An empty filesystem in memory.
    pub(crate) fn tmpfs(size: &str) -> Option<Self> {
        Self::new(&["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "none"])
    }

    /// The ext4 filesystem in an image file.
    pub(crate) fn image(image: &Path) -> Option<Self> {
        Self::new(&["-t", "ext4", "-o", "loop", image.to_str().unwrap()])
    }

    fn new(arguments: &[&str]) -> Option<Self> {
        let point = tempfile::tempdir().unwrap();
        let mounted = run("mount", arguments, Some(point.path()));
        mounted.then_some(Self { point })
    }

    pub(crate) fn path(&self) -> &Path {
        self.point.path()
    }

    pub(crate) fn remount_read_only(&self) {
        assert!(run("mount", &["-o", "remount,ro"], Some(self.path())));
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: threads of the backend may still be closing their files.
        run("umount", &["-l"], Some(self.path()));
    }
}

/// An empty ext4 image.
pub(crate) fn ext4_image(directory: &Path, megabytes: u64) -> Option<PathBuf> {
    let image = directory.join("ext4.img");
    std::fs::File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
    run("mkfs.ext4", &["-q", "-F"], Some(&image)).then_some(image)
}

fn run(program: &str, arguments: &[&str], last: Option<&Path>) -> bool {
    let output = Command::new(program).args(arguments).args(last).output();
    output.is_ok_and(|output| output.status.success())
}

/// Says that a test did not run, and why.
pub(crate) fn skip(test: &str) {
    println!("SKIPPED {test}: mounting a filesystem takes root");
    assert!(std::env::var_os("SYNCGUARD_REQUIRE_SERVERS").is_none(), "run {test} as root");
}
