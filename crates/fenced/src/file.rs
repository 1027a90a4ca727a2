//! How does a file refuse a stale writer?
//!
//! Beside `report.json` lies `report.json.fence`: its 16 bytes are the mark, and the OS lock on it (`flock`) makes
//! comparing, remembering and writing one step for all processes of the machine. The order is what survives a kill at
//! any point: the mark reaches the disk before the new contents get their name, so contents never have a higher fence
//! than the mark.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};

use syncguard_core::{ErrorCode, Fence, Key, LockError};

use crate::{Accepted, FenceError, HighWater, Result, compare};

/// A file that accepts whole new contents from a current holder, and refuses a stale one.
///
/// Readers need nothing of this: they open the path and find the old contents or the new ones, never a mixture. Writers
/// that do not go through this type are not held back.
///
/// The calls block, as those of [`std::fs`] do; in async code use `spawn_blocking`. A writer waits while another one is
/// inside a call, also if that one is paused there: it will finish first, as the order of fences wants it. Do not
/// delete the file of the mark; with it goes the memory of who was here. On a network file system, be sure that it
/// passes `flock` on.
///
/// ```
/// use syncguard_core::Fence;
/// use syncguard_fenced::file::FencedFile;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let report = FencedFile::new(folder.path().join("report.json"));
/// report.write(Fence::new(42)?, b"{}")?;
///
/// let late = report.write(Fence::new(41)?, b"oops").unwrap_err();
/// assert_eq!(late.stale().map(|stale| stale.seen), Some(Fence::new(42)?));
/// assert_eq!(report.read()?, b"{}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    mark: PathBuf,
    /// One name for all writers: only the one that holds the lock uses it, and what a killed one left there is
    /// replaced.
    temporary: PathBuf,
}

impl FencedFile {
    /// Names a file. It need not exist; its folder must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { mark: with_suffix(&path, ".fence"), temporary: with_suffix(&path, ".fence-tmp"), path }
    }

    /// Replaces the contents.
    ///
    /// # Errors
    /// [`Stale`](FenceError::Stale) when a higher fence has written, [`Failed`](FenceError::Failed) when the file
    /// system refuses. After an error the contents are the old ones, or (if only the last sync failed) the new ones.
    pub fn write(&self, fence: Fence, contents: impl AsRef<[u8]>) -> Result<()> {
        let _lock = self.enter(fence)?;
        self.replace(contents.as_ref()).map_err(io_failed)
    }

    /// Replaces the contents by what a function makes of the old ones (`None` when there is no file yet). Nobody
    /// else writes in between.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn update(&self, fence: Fence, change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>) -> Result<()> {
        let _lock = self.enter(fence)?;
        let old = match fs::read(&self.path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(io_failed(error)),
        };
        self.replace(&change(old)).map_err(io_failed)
    }

    /// Refuses older holders from now on, and leaves the contents as they are.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn announce(&self, fence: Fence) -> Result<()> {
        self.enter(fence).map(drop)
    }

    /// Returns the contents.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        fs::read(&self.path)
    }

    /// Returns the highest fence that was accepted, for diagnostics.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) when the mark cannot be read.
    pub fn highest(&self) -> Result<Option<Fence>> {
        read_if_any(&self.mark)
    }

    fn enter(&self, fence: Fence) -> Result<Mark> {
        let mut mark = Mark::lock(&self.mark)?;
        mark.advance(fence)?;
        Ok(mark)
    }

    fn replace(&self, contents: &[u8]) -> io::Result<()> {
        match fs::remove_file(&self.temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut temporary = OpenOptions::new().write(true).create_new(true).open(&self.temporary)?;
        if let Ok(old) = fs::metadata(&self.path) {
            temporary.set_permissions(old.permissions())?;
        }
        temporary.write_all(contents)?;
        temporary.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        sync_folder_of(&self.path)
    }
}

/// Marks in a folder, one small file for each key.
///
/// ```
/// use syncguard_core::{Fence, Key};
/// use syncguard_fenced::{HighWater, file::FileMarks};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// let marks = FileMarks::new(folder.path());
/// marks.advance(&Key::new("ledger")?, Fence::new(42)?).await?;
/// assert!(marks.advance(&Key::new("ledger")?, Fence::new(41)?).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileMarks {
    folder: PathBuf,
}

impl FileMarks {
    /// Names the folder. It must exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    // Keys may hold anything that a file name must not; their hash does not, and shows nobody the key.
    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.fence", key.hash()))
    }
}

impl HighWater for FileMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        let path = self.path(key);
        blocking(move || Mark::lock(&path)?.advance(fence)).await
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        let path = self.path(key);
        blocking(move || read_if_any(&path)).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(FenceError::unavailable("the check did not finish", error)),
    }
}

/// The file of a mark, locked until dropped.
struct Mark {
    file: File,
    path: PathBuf,
}

impl Mark {
    fn lock(path: &Path) -> Result<Self> {
        let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = open().map_err(io_failed)?;
        loop {
            match file.lock() {
                Ok(()) => return Ok(Self { file, path: path.to_owned() }),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(io_failed(error)),
            }
        }
    }

    fn advance(&mut self, fence: Fence) -> Result<()> {
        let seen = read(&mut self.file)?;
        if compare(fence, seen)? == Accepted::Equal {
            return Ok(());
        }
        self.remember(fence, seen.is_none()).map_err(io_failed)
    }

    // 16 bytes at the start of a file lie in one sector, and one call writes them: neither a kill nor a power cut
    // leaves half of them. A rename would be the textbook way, but it would take the locked file out of its place.
    fn remember(&mut self, fence: Fence, is_new: bool) -> io::Result<()> {
        self.file.rewind()?;
        self.file.write_all(format!("{fence}\n").as_bytes())?;
        self.file.sync_all()?;
        if is_new { sync_folder_of(&self.path) } else { Ok(()) }
    }
}

fn read_if_any(path: &Path) -> Result<Option<Fence>> {
    match File::open(path) {
        Ok(mut file) => read(&mut file),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_failed(error)),
    }
}

/// An empty file is one whose maker was killed before it accepted anything.
fn read(file: &mut File) -> Result<Option<Fence>> {
    let mut text = String::new();
    file.rewind().map_err(io_failed)?;
    // What is longer than a mark is none; there is no need to read all of it.
    file.take(64).read_to_string(&mut text).map_err(io_failed)?;
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.strip_suffix('\n').unwrap_or(&text);
    digits.parse().map(Some).map_err(|_| FenceError::damaged("the file of the mark holds no fence"))
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn io_failed(error: io::Error) -> FenceError {
    let code = match error.kind() {
        ErrorKind::PermissionDenied => ErrorCode::AuthFailed,
        ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::NotADirectory => ErrorCode::InvalidArgument,
        ErrorKind::InvalidData => ErrorCode::Internal,
        _ => ErrorCode::ServiceUnavailable,
    };
    FenceError::Failed(LockError::new(code, "the file system refused the fenced write").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    #[test]
    fn a_mark_that_is_no_fence_refuses_everybody() {
        let folder = tempfile::tempdir().unwrap();
        let file = FencedFile::new(folder.path().join("data"));
        for damage in ["x", "0000000000000", "00000000000004200000", "\n", "-00000000000001\n"] {
            fs::write(folder.path().join("data.fence"), damage).unwrap();

            let error = file.write(Fence::MAX, "new").unwrap_err();

            assert!(matches!(error, FenceError::Failed(_)), "{damage:?} was taken for a mark");
            assert!(!folder.path().join("data").exists());
        }
    }

    #[test]
    fn what_a_killed_writer_left_behind_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let file = FencedFile::new(folder.path().join("data"));
        file.write(fence(1), "old").unwrap();
        // Killed after the mark was remembered, in the middle of the temporary.
        fs::write(folder.path().join("data.fence"), "000000000000007\n").unwrap();
        fs::write(folder.path().join("data.fence-tmp"), "ha").unwrap();

        assert_eq!(file.read().unwrap(), b"old");
        assert_eq!(file.write(fence(6), "six").unwrap_err().stale().unwrap().seen, fence(7));
        file.write(fence(7), "seven").unwrap();

        assert_eq!(file.read().unwrap(), b"seven");
        assert!(!folder.path().join("data.fence-tmp").exists());
    }

    #[test]
    fn an_empty_mark_has_seen_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = FencedFile::new(folder.path().join("data"));
        fs::write(folder.path().join("data.fence"), "").unwrap();

        file.update(Fence::FIRST, |old| old.map_or_else(|| b"first".to_vec(), |_| Vec::new())).unwrap();

        assert_eq!(file.read().unwrap(), b"first");
        assert_eq!(file.highest().unwrap(), Some(Fence::FIRST));
    }

    #[cfg(unix)]
    #[test]
    fn new_contents_keep_the_permissions_of_the_old() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = FencedFile::new(folder.path().join("data"));
        file.write(fence(1), "old").unwrap();
        fs::set_permissions(folder.path().join("data"), fs::Permissions::from_mode(0o600)).unwrap();

        file.write(fence(2), "new").unwrap();

        let mode = fs::metadata(folder.path().join("data")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_error_shows_neither_path_nor_contents() {
        let file = FencedFile::new("/no-such-canary/data");
        let error = file.write(fence(1), "canary").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}
