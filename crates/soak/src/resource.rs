//! What does a stale holder do to the thing that the lock protects?
//!
//! Two resources per key, side by side, written by the same holders in the same moment: one compares fences, the other
//! takes everything. Each is a file that lists the fences of the writes it accepted, in order. A list that falls is a
//! resource that a stale holder has written to.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The resources of a run.
#[derive(Clone, Debug)]
pub struct Resources(PathBuf);

impl Resources {
    /// The resources below a folder.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self(folder.to_owned()))
    }

    /// Writes to both resources of a key. Returns whether the one that compares fences accepted.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn write(&self, key: &str, fence: u64) -> Result<bool> {
        let mut unchecked = self.open(key, "unchecked")?;
        // The order of the list is the order of the writes.
        unchecked.lock()?;
        unchecked.write_all(format!("{fence}\n").as_bytes())?;
        unchecked.unlock()?;
        let mut checked = self.open(key, "checked")?;
        checked.lock()?;
        let mut text = String::new();
        checked.read_to_string(&mut text)?;
        let accepted = parse(&text).last().is_none_or(|&highest| fence >= highest);
        if accepted {
            checked.write_all(format!("{fence}\n").as_bytes())?;
        }
        Ok(accepted)
    }

    /// The fences that the resource of a key that takes everything has seen, in order.
    pub fn unchecked(&self, key: &str) -> Vec<u64> {
        fs::read_to_string(self.path(key, "unchecked")).map(|text| parse(&text)).unwrap_or_default()
    }

    /// The writes that each resource of one kind accepted, in order.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn accepted(&self, kind: &str) -> Result<Vec<Vec<u64>>> {
        let mut lists = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == kind) {
                lists.push(parse(&fs::read_to_string(path)?));
            }
        }
        Ok(lists)
    }

    fn open(&self, key: &str, kind: &str) -> Result<File> {
        Ok(OpenOptions::new().create(true).append(true).read(true).open(self.path(key, kind))?)
    }

    fn path(&self, key: &str, kind: &str) -> PathBuf {
        self.0.join(format!("{key}.{kind}"))
    }
}

fn parse(text: &str) -> Vec<u64> {
    // A line that a kill cut off has no end and does not count.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(|line| line.parse().ok()).collect()
}

/// How many writes came after one with a higher fence.
pub fn stale_writes(accepted: &[u64]) -> u64 {
    let mut highest = 0;
    let mut stale = 0;
    for &fence in accepted {
        stale += u64::from(fence < highest);
        highest = highest.max(fence);
    }
    stale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_write_reaches_only_the_resource_that_does_not_compare() {
        let folder = tempfile::tempdir().unwrap();
        let resources = Resources::new(folder.path()).unwrap();

        let accepted: Vec<bool> = [1, 2, 1, 2, 3].map(|fence| resources.write("k", fence).unwrap()).to_vec();

        assert_eq!(accepted, [true, true, false, true, true]);
        let stale = |kind| resources.accepted(kind).unwrap().iter().map(|list| stale_writes(list)).sum::<u64>();
        assert_eq!(stale("checked"), 0);
        assert_eq!(stale("unchecked"), 1, "the seeded stale write is seen");
        assert_eq!(resources.unchecked("k"), [1, 2, 1, 2, 3]);
    }
}
