//! Is this path fit to hold locks, and is it still the file that was opened?
//!
//! Everything here works on names (`lstat`, `access`, `statfs`) and never opens the database itself: closing *any*
//! descriptor of a file drops all POSIX locks that the process has on it, SQLite's included.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, OFlags};

use crate::error::{Fault, replaced};

/// The mode of a file that nobody else may use: lock ids are secrets.
const OWNER_ONLY: u32 = 0o600;

/// Which file a name stood for at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    pub(crate) fn at(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|metadata| Self::of(&metadata))
    }
}

/// The absolute name of the file: its directory without symbolic links, its own name as given.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, Fault> {
    let shown = path.display();
    if path.as_os_str() == ":memory:" {
        return Err(Fault::invalid("`:memory:` is not a file").hint("use the url `memory:` for locks of one process"));
    }
    let Some(name) = path.file_name() else {
        return Err(Fault::invalid(format!("{shown} does not name a file")).hint("name a file, like locks.db"));
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Fault::invalid(format!("the directory of {shown} does not exist"))
            .hint("create the directory first, or name another path"),
        _ => Fault::invalid(format!("the directory of {shown} cannot be reached: {}", error.kind()))
            .hint("check the permissions along the path"),
    })?;
    Ok(parent.join(name))
}

/// Checks the directory and the file, and creates the file if there is none.
pub(crate) fn prepare(path: &Path, mode: Option<u32>) -> Result<Identity, Fault> {
    check_directory(path)?;
    check_owners(path, mode)?;
    let mut patience = if mode.is_some() { 100 } else { 0 };
    loop {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) => match check_file(path, &metadata).and_then(|()| check_mode(path, mode)) {
                Ok(()) => return Ok(Identity::of(&metadata)),
                // Another user may have made it a moment ago, and be about to open it to the group.
                Err(_) if metadata.len() == 0 && patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(fault) => return Err(fault),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(path, mode.unwrap_or(OWNER_ONLY))?,
            Err(error) => return Err(refused(path, &error)),
        }
    }
}

fn create(path: &Path, mode: u32) -> Result<(), Fault> {
    // Exclusive, so it never follows a link and never touches what another process made a moment ago.
    match OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(path) {
        // The umask has its say in the mode of a new file, but not in a change of it.
        Ok(file) => file.set_permissions(Permissions::from_mode(mode)).map_err(|error| refused(path, &error)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(refused(path, &error)),
    }
}

/// Opens a file beside the database, and creates it with the database's mode and owners if there is none: as SQLite
/// does with its own files, so that whoever may use the database may use all of it.
pub(crate) fn open_beside(database: &Path, path: &Path) -> io::Result<File> {
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(no_follow);
    // Two processes may create and delete in turns, but not for long.
    for _ in 0..8 {
        // Without O_CREAT first: in sticky directories the kernel refuses that flag for files of other users.
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match options.clone().create_new(true).mode(OWNER_ONLY).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                let like = std::fs::symlink_metadata(database)?;
                // Only root can give a file away. For others the directory's setgid bit decides about the group.
                let _ = std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid()));
                file.set_permissions(Permissions::from_mode(like.mode() & 0o666))?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Checks that a file that exists has the mode that was asked for.
pub(crate) fn check_mode(path: &Path, mode: Option<u32>) -> Result<(), Fault> {
    let Some(wanted) = mode else { return Ok(()) };
    let found = std::fs::symlink_metadata(path).map_err(|error| refused(path, &error))?.mode() & 0o777;
    if found == wanted {
        return Ok(());
    }
    Err(Fault::invalid(format!("{} has mode {found:03o}, not {wanted:03o}", path.display())).hint(
        "change the mode of the file and of those beside it (-wal, -shm, -queue) with chmod, or leave `mode` out",
    ))
}

fn refused(path: &Path, error: &io::Error) -> Fault {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Fault::unavailable(format!("the disk of {shown} is full")).hint("free some space")
        }
        kind => Fault::invalid(format!("{shown} cannot be created: {kind}"))
            .hint("name a path in a directory that you may write to"),
    }
}

/// Refuses what a stranger put into a directory where everybody may: he reads our ids, keeps our turn for ever, lets locks overlap
/// by a trigger, or cuts off the index under us. With a mode the file is shared on purpose. Elsewhere only those may put files
/// there who were given the directory.
pub(crate) fn check_owners(path: &Path, mode: Option<u32>) -> Result<(), Fault> {
    let directory = path.parent().unwrap_or(Path::new("/")).metadata().map_err(|error| refused(path, &error))?;
    if mode.is_some() || directory.mode() & 0o002 == 0 {
        return Ok(());
    }
    let trusted = [rustix::process::geteuid().as_raw(), 0, directory.uid()];
    for member in ["", "-wal", "-shm", "-queue"].map(|suffix| beside(path, suffix)) {
        if std::fs::symlink_metadata(&member).is_ok_and(|found| !trusted.contains(&found.uid())) {
            let what =
                format!("{} belongs to another user, in a directory where everybody may put files", member.display());
            return Err(Fault::invalid(what)
                .hint("name a file in a directory of your own; users who share a file on purpose all say mode=660"));
        }
    }
    Ok(())
}

fn check_directory(path: &Path) -> Result<(), Fault> {
    let shown = path.display();
    let directory = path.parent().unwrap_or(Path::new("/"));
    let metadata = directory.metadata().map_err(|error| refused(path, &error))?;
    if !metadata.is_dir() {
        return Err(Fault::invalid(format!("what should be the directory of {shown} is not a directory"))
            .hint("name a path in a directory that you may write to"));
    }
    let world_writable = metadata.mode() & 0o002 != 0;
    let sticky = metadata.mode() & 0o1000 != 0;
    if world_writable && !sticky {
        return Err(Fault::invalid(format!("everybody may replace files in the directory of {shown}"))
            .hint("take the directory's write permission from others: chmod o-w"));
    }
    if let Medium::Network(network) = medium(directory) {
        return Err(Fault::invalid(format!("{shown} is on a network filesystem ({network})"))
            .hint("use a local disk; for locks across machines use redis:// or postgres://"));
    }
    // SQLite keeps its log and its index beside the file.
    if rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        return Err(Fault::invalid(format!("the directory of {shown} cannot be written"))
            .hint("name a path in a directory that you may write to"));
    }
    Ok(())
}

fn check_file(path: &Path, metadata: &Metadata) -> Result<(), Fault> {
    let shown = path.display();
    let kind = metadata.file_type();
    let wrong = if kind.is_symlink() {
        Some("a symbolic link")
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_char_device() || kind.is_block_device() {
        Some("a device")
    } else if !kind.is_file() {
        Some("not a regular file")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        return Err(Fault::invalid(format!("{shown} is {wrong}")).hint("name a regular file"));
    }
    // The log is found by the file's name: under two names SQLite would keep two logs for one file.
    if metadata.nlink() > 1 {
        return Err(Fault::invalid(format!("{shown} has a second name (a hard link)"))
            .hint("remove the other name, or name another file"));
    }
    // The mode is asked too: root may write to a file that its owner marked read-only.
    let writable = metadata.mode() & 0o200 != 0;
    if !writable || rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        return Err(Fault::invalid(format!("{shown} is read-only or belongs to somebody else"))
            .hint("make it readable and writable for you: chmod u+rw"));
    }
    Ok(())
}

/// What a directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Local,
    Memory,
    Fuse,
    /// The write-ahead log needs memory shared by all processes, which stops at the machine's border.
    Network(&'static str),
}

/// What the directory is on. Unknown kinds are local: new local filesystems appear, and a refusal without reason helps
/// nobody.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn medium(directory: &Path) -> Medium {
    // Magic numbers are 32 bits wide; where the field is wider they may come sign-extended.
    rustix::fs::statfs(directory).map_or(Medium::Local, |status| medium_of(i128::from(status.f_type) & 0xffff_ffff))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn medium(_directory: &Path) -> Medium {
    Medium::Local
}

#[cfg_attr(not(any(target_os = "linux", target_os = "android")), allow(dead_code))]
fn medium_of(magic: i128) -> Medium {
    Medium::Network(match magic {
        0x0102_1994 | 0x8584_58f6 => return Medium::Memory,
        0x6573_5546 => return Medium::Fuse,
        0x6969 => "nfs",
        0x517b => "smb",
        0xff53_4d42 => "cifs",
        0xfe53_4d42 => "smb2",
        0x0102_1997 => "9p",
        0x564c => "ncp",
        0x5346_414f | 0x6b41_4653 => "afs",
        0x7375_7245 => "coda",
        0x00c3_6400 => "ceph",
        0x7461_636f => "ocfs2",
        0x0116_1970 => "gfs2",
        0x0bd0_0bd0 => "lustre",
        0x1983_0326 => "beegfs",
        0x4750_4653 => "gpfs",
        0x786f_4256 => "vboxsf",
        _ => return Medium::Local,
    })
}

/// A file of the files: `locks.db` and `-wal` give `locks.db-wal`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// The files of one open database, to notice that somebody took them away.
///
/// A deleted log or index is as bad as a deleted database: the next process would make new ones, and two
/// writers would each believe theirs.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    path: PathBuf,
    members: Vec<(PathBuf, Option<Identity>)>,
}

impl Files {
    /// What is there now. Call it when SQLite has opened its log.
    pub(crate) fn seen_at(path: &Path) -> Self {
        let members = ["", "-wal", "-shm"].map(|suffix| {
            let member = beside(path, suffix);
            let identity = Identity::at(&member);
            (member, identity)
        });
        Self { path: path.to_path_buf(), members: members.into() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether all files are still the ones that were opened.
    pub(crate) fn verify(&self) -> Result<(), Fault> {
        let same = self.members.iter().all(|(path, identity)| Identity::at(path) == *identity);
        if same { Ok(()) } else { Err(replaced(&self.path)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_filesystems_are_known_by_their_magic_numbers() {
        for (magic, name) in [(0x6969, "nfs"), (0xff53_4d42, "cifs"), (0x0102_1997, "9p"), (0xfe53_4d42, "smb2")] {
            assert_eq!(medium_of(magic), Medium::Network(name));
        }
        for local in [0xef53, 0x9123_683e, 0x5846_5342, 0x794c_7630] {
            assert_eq!(medium_of(local), Medium::Local, "ext4, btrfs, xfs, overlayfs");
        }
        assert_eq!(medium_of(0x0102_1994), Medium::Memory);
    }

    #[test]
    fn the_files_beside_a_database_carry_its_name() {
        assert_eq!(beside(Path::new("/a/locks.db"), "-wal"), Path::new("/a/locks.db-wal"));
    }
}
