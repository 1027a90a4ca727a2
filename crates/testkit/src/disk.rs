//! How does a test get a filesystem of its own, to fill it or to cut its power?
//!
//! By mounting one, which takes root: [`Disk::in_memory`] and [`Disk::image`] are `None` without it, and the caller says
//! what it did not try.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::place::Folder;

/// The name of the mount point in its folder.
pub(crate) const MOUNTED: &str = "mounted";

/// A mounted filesystem; unmounted when dropped.
#[derive(Debug)]
pub struct Disk {
    /// Where it is mounted. Walkable by the account that servers run as.
    point: PathBuf,
    /// The file that holds it, if a power cut must be possible.
    image: Option<PathBuf>,
    /// Keeps the mount point and the image.
    _folder: Folder,
}

impl Disk {
    /// An empty filesystem in memory of so many megabytes; `None` without root.
    ///
    /// # Errors
    ///
    /// When no folder can be made for it.
    pub fn in_memory(megabytes: u64) -> Result<Option<Self>> {
        let (folder, point) = mount_point()?;
        let size = format!("size={megabytes}m,mode=0755");
        let mounted = run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&point));
        Ok(mounted.then_some(Self { point, image: None, _folder: folder }))
    }

    /// An empty ext4 of so many megabytes, whose power can be cut; `None` without root.
    ///
    /// # Errors
    ///
    /// When no file can be made for it.
    pub fn image(megabytes: u64) -> Result<Option<Self>> {
        let (folder, point) = mount_point()?;
        let image = folder.path().join("disk.img");
        File::create(&image)?.set_len(megabytes << 20)?;
        let made = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image)) && mount_image(&image, &point);
        Ok(made.then_some(Self { point, image: Some(image), _folder: folder }))
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Leaves no free block, until [`empty`](Self::empty).
    ///
    /// # Errors
    ///
    /// When the file that fills it cannot be made.
    pub fn fill(&self) -> Result<()> {
        let mut filler = File::create(self.filler())?;
        // Large blocks first, then the crumbs that they leave.
        for length in [1 << 20, 1 << 12, 1] {
            let block = vec![0_u8; length];
            while filler.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    /// Frees what [`fill`](Self::fill) took.
    ///
    /// # Errors
    ///
    /// When its file cannot be removed.
    pub fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    /// Writes everything through to the image, as time would.
    ///
    /// # Errors
    ///
    /// When the disk cannot be opened.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.point)?)?)
    }

    /// What was not written through is gone: from now on the disk shows what its image had at this moment. Whoever had
    /// files open must be stopped before and killed after.
    ///
    /// # Errors
    ///
    /// When the image cannot be copied or mounted.
    pub fn cut_power(&mut self) -> Result<()> {
        let Some(image) = &self.image else { anyhow::bail!("a disk in memory has no power to cut") };
        let after = image.with_extension("after");
        fs::copy(image, &after)?;
        // Lazily: files of the killed may still be open.
        ensure!(run(Command::new("umount").arg("-l").arg(&self.point)), "cannot unmount the disk");
        // The old filesystem keeps its file, which has no name any more.
        fs::rename(&after, image)?;
        ensure!(mount_image(image, &self.point), "cannot mount the disk again");
        Ok(())
    }

    fn filler(&self) -> PathBuf {
        self.point.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.point);
    }
}

pub(crate) fn unmount(point: &Path) {
    run(Command::new("umount").arg("-l").arg(point));
}

fn mount_point() -> Result<(Folder, PathBuf)> {
    let folder = Folder::new("disk")?;
    let point = folder.path().join(MOUNTED);
    fs::create_dir(&point)?;
    Ok((folder, point))
}

fn mount_image(image: &Path, point: &Path) -> bool {
    run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(image).arg(point))
}

fn run(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
