//! Where is the server's program, and as whom does it run?
//!
//! Programs are searched in the folders that [`FOLDERS`] names, in `PATH` and in the places where Debian hides them.
//! What is not found is an error that carries the one line which installs it.

use std::env;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The variable with folders to search first, separated as in `PATH`: how the tests run on another version of a server.
pub const FOLDERS: &str = "SYNCGUARD_TEST_PROGRAMS";

/// A program the tests need, and how to get it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The name of the executable.
    pub name: &'static str,
    /// The Debian package that brings it.
    pub package: &'static str,
}

/// The Redis server; it is also the sentinel and the cluster node.
pub const REDIS_SERVER: Program = Program { name: "redis-server", package: "redis-server" };
/// The PostgreSQL server.
pub const POSTGRES: Program = Program { name: "postgres", package: "postgresql" };
/// The program that makes a PostgreSQL data directory.
pub const INITDB: Program = Program { name: "initdb", package: "postgresql" };
/// The PostgreSQL connection pooler.
pub const PGBOUNCER: Program = Program { name: "pgbouncer", package: "pgbouncer" };

impl Program {
    /// Finds the executable.
    ///
    /// # Errors
    ///
    /// When it is not installed; the message is the line that installs it.
    pub fn find(self) -> Result<PathBuf> {
        self.find_before(&env::var_os(FOLDERS).unwrap_or_default())
    }

    /// Finds the executable in `first`, or where the machine has it.
    fn find_before(self, first: &OsStr) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let places = env::split_paths(first)
            .chain(env::split_paths(&path))
            .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
            .chain(postgres_folders());
        for place in places {
            let candidate = place.join(self.name);
            if candidate.is_file() {
                return Ok(candidate);
            }
        }
        bail!("{} is not installed\nhint: {}", self.name, self.install_line())
    }

    /// The one line that installs it on Debian.
    pub fn install_line(self) -> String {
        format!("apt-get install -y {}  (or `cargo xtask setup`)", self.package)
    }
}

/// Debian keeps the PostgreSQL programs out of `PATH`; the newest version comes first.
fn postgres_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(version_of(folder)));
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        folders.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    folders
}

fn version_of(bin: &Path) -> u32 {
    let version = bin.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// The account a server runs as when the tests run as root: PostgreSQL and `PgBouncer` refuse to be root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to step down to, or `None` when this process is not root and may stay who it is.
    ///
    /// # Errors
    ///
    /// When this is root and the machine knows neither `postgres` nor `nobody`.
    pub fn unprivileged() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = std::fs::read_to_string("/etc/passwd").context("cannot read the accounts of this machine")?;
        let found = ["postgres", "nobody"].iter().find_map(|name| parse_account(&passwd, name));
        match found {
            Some(account) => Ok(Some(account)),
            None => bail!("PostgreSQL does not run as root\nhint: run the tests as an ordinary user"),
        }
    }

    /// Makes `command` run as this account.
    pub fn apply(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }

    /// Gives `path` to this account.
    ///
    /// # Errors
    ///
    /// When the owner cannot be changed.
    pub fn own(self, path: &Path) -> Result<()> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .with_context(|| format!("cannot change the owner of {}", path.display()))
    }
}

fn parse_account(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_program_is_an_error_with_the_line_that_installs_it() {
        let program = Program { name: "no-such-program-here", package: "some-package" };
        let message = program.find().expect_err("absent").to_string();
        assert!(message.contains("no-such-program-here is not installed"), "{message}");
        assert!(message.contains("apt-get install -y some-package"), "{message}");
    }

    #[test]
    fn a_program_in_the_first_folders_is_found_before_the_machines_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = Program { name: "sh", package: "dash" };
        let own = program.find_before(OsStr::new("")).expect("every machine has it");

        std::fs::write(folder.path().join("sh"), "").expect("a file");

        assert_ne!(own, folder.path().join("sh"));
        assert_eq!(program.find_before(folder.path().as_os_str()).expect("there"), folder.path().join("sh"));
    }

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0::/:/bin/sh\nnobodyelse:x:7:8::/:\nnobody:x:65534:65533::/:\n";
        assert_eq!(parse_account(passwd, "nobody"), Some(Account { uid: 65_534, gid: 65_533 }));
        assert_eq!(parse_account(passwd, "nobo"), None);
    }
}
