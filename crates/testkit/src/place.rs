//! Where do the servers keep their files, and which ports are theirs?
//!
//! One folder per user below the temporary directory; in it one folder per server and one lock file per port. The owner
//! of a folder or port holds a file lock on it, so that another process can tell a living one from a leftover: servers
//! held in a `static` are never dropped, and their folders are swept by whoever comes next.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};

/// The ports handed out: below the kernel's ephemeral range (32768 and up), so that no outgoing connection sits on one
/// while its server is down between a kill and a restart.
const PORTS: std::ops::Range<u16> = 15_000..30_000;

/// A leftover is swept only when it is older than this: its owner may be between making it and locking it.
const SWEEP_AFTER: Duration = Duration::from_mins(1);

/// The folder of this user that holds everything the testkit writes.
///
/// # Errors
///
/// When it cannot be made, or belongs to somebody else.
pub fn home() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let home = std::env::temp_dir().join(format!("syncguard-testkit-{user}"));
    match fs::DirBuilder::new().mode(0o755).create(&home) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", home.display()));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(&home)?;
    ensure!(
        metadata.is_dir() && metadata.uid() == user,
        "{} is not a folder of this user; remove it or set TMPDIR",
        home.display()
    );
    // Servers that refuse to be root run as somebody else and must be able to walk through, whatever the umask says.
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755))?;
    Ok(home)
}

/// The folder of one server; removed when dropped.
#[derive(Debug)]
pub struct Folder {
    /// Dropped before `_lock`, so that nobody sweeps what is being removed.
    dir: tempfile::TempDir,
    _lock: File,
}

impl Folder {
    /// Makes a folder whose name starts with `name`.
    ///
    /// # Errors
    ///
    /// When the temporary directory is full or not writable.
    pub fn new(name: &str) -> Result<Self> {
        static SWEEP: Once = Once::new();
        let home = home()?;
        SWEEP.call_once(|| sweep(&home));
        Self::new_in(&home, name)
    }

    /// Makes a folder whose name starts with `name` on a disk of its own.
    ///
    /// # Errors
    ///
    /// When the disk is full or not writable.
    pub fn new_in(parent: &Path, name: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("run-{name}-"))
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(parent)
            .context("cannot make a folder for a server")?;
        let lock = File::create(dir.path().join(".lock"))?;
        lock.lock()?;
        Ok(Self { dir, _lock: lock })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the folders of processes that died without dropping them.
fn sweep(home: &Path) {
    let Ok(entries) = fs::read_dir(home) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_run = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("run-"));
        if is_run && is_abandoned(&path) {
            let point = path.join(crate::disk::MOUNTED);
            if point.exists() {
                crate::disk::unmount(&point);
            }
            // A failure means that another process sweeps the same folder now.
            drop(fs::remove_dir_all(&path));
        }
    }
}

fn is_abandoned(path: &Path) -> bool {
    let is_old = fs::symlink_metadata(path)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|modified| SystemTime::now().duration_since(modified).is_ok_and(|age| age > SWEEP_AFTER));
    is_old
        && match File::open(path.join(".lock")) {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        }
}

/// A port of 127.0.0.1 that no other process of this testkit takes while this value lives, even when its server is
/// down.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a port on which nobody listens.
    ///
    /// # Errors
    ///
    /// When every port is taken, or the lock files cannot be written.
    pub fn reserve() -> Result<Self> {
        let ports = home()?.join("ports");
        fs::create_dir_all(&ports)?;
        let count = PORTS.end - PORTS.start;
        let start = random_below(count);
        for step in 0..count {
            let number = PORTS.start + (start + step) % count;
            let lock =
                OpenOptions::new().create(true).truncate(false).write(true).open(ports.join(number.to_string()))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        bail!("no free port between {} and {}", PORTS.start, PORTS.end)
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// A port of 127.0.0.1 on which nobody listens: for the test that wants its connection refused.
///
/// It stays reserved until the process ends.
pub fn free_port() -> u16 {
    let port = Port::reserve().expect("a port of the loopback interface");
    let number = port.number();
    std::mem::forget(port);
    number
}

/// Spreads processes over the ports; needs no quality.
fn random_below(bound: u16) -> u16 {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(std::process::id()) % u64::from(bound);
    u16::try_from(random).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_reserved_twice() {
        let ports: Vec<Port> = (0..50).map(|_| Port::reserve().expect("port")).collect();
        let distinct: std::collections::BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(distinct.len(), 50);
    }

    #[test]
    fn only_an_old_folder_without_an_owner_is_abandoned() {
        let folder = tempfile::tempdir().unwrap();
        let owner = File::create(folder.path().join(".lock")).unwrap();
        owner.lock().unwrap();
        assert!(!is_abandoned(folder.path()), "young and owned");
        owner.unlock().unwrap();
        assert!(!is_abandoned(folder.path()), "young: its owner may be about to lock it");

        let two_minutes_ago = SystemTime::now() - 2 * SWEEP_AFTER;
        File::open(folder.path()).unwrap().set_modified(two_minutes_ago).unwrap();

        assert!(is_abandoned(folder.path()));
        owner.lock().unwrap();
        assert!(!is_abandoned(folder.path()), "old and owned");
    }

    #[test]
    fn a_folder_in_use_is_not_abandoned_and_a_dropped_one_is_gone() {
        let folder = Folder::new("place").expect("folder");
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        assert!(!is_abandoned(&path), "its owner lives");

        drop(folder);

        assert!(!path.exists());
    }
}
