//! Does every fence that was given survive a power cut?
//!
//! The files are on a disk of their own, an ext4 in an image. In the middle of the work whoever writes to it is stopped,
//! and the image of that moment is all that is left: what the system had not written through is gone. On that disk the
//! storage starts again, and the next fence of every key must be above each one that was given. Where nothing is synced
//! fences come again, so the cut is a real one.
//!
//! SQLite syncs promises alone, and needs to see that the machine was started again: its workers see an earlier boot than
//! the one after the cut. Where they see the same one, fences come again as well.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use syncguard::connect;
use syncguard_testkit::process::wait_for;
use syncguard_testkit::redis::Appendonly;
use syncguard_testkit::{Disk, PostgresOptions, PostgresServer, RedisOptions, RedisServer};

use crate::TTL_MS;
use crate::check;
use crate::fleet::Fleet;
use crate::history::{Answer, History};
use crate::time::{MILLI, now};
use crate::worker::Orders;

/// What is cut off from its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Powered {
    /// A file that promises fences ahead, and a machine that boots after the cut.
    Sqlite,
    /// A file whose every acquire is synced. Nobody notices the boot.
    SyncedSqlite,
    /// The control: a file that promises fences ahead, and nobody notices the boot.
    SqliteWithoutBoot,
    /// A Redis that syncs its append-only file before every reply.
    Redis,
    /// A `PostgreSQL` that is set to commit without waiting for its disk: acquire asks for more by itself.
    Postgres,
    /// The control: a Redis that never syncs.
    UnsyncedRedis,
}

impl Powered {
    /// Those that promise to survive.
    pub const DURABLE: [Self; 4] = [Self::Sqlite, Self::SyncedSqlite, Self::Redis, Self::Postgres];

    /// Those that must lose, or the others prove nothing.
    pub const CONTROLS: [Self; 2] = [Self::SqliteWithoutBoot, Self::UnsyncedRedis];
}

/// What a power cut left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Fences that had been given.
    pub given: usize,
    /// Keys that had any.
    pub keys: usize,
    /// Keys whose first fence after the cut is not above the last one before it.
    pub lost: usize,
}

/// Cuts the power once, after some work of two processes; `None` without root. `program` has the command `worker`.
///
/// # Errors
/// When a server or the disk cannot be started again.
pub fn cut_power(powered: Powered, program: PathBuf, folder: &Path, seed: u64) -> Result<Option<Cut>> {
    let Some(mut disk) = Disk::image(192)? else { return Ok(None) };
    let mut server = Server::start(powered, disk.path())?;
    // What the set-up wrote is on the disk; the work's writes must get there by themselves.
    disk.sync()?;
    let orders = (0..2).map(|worker| orders(&server.url(), folder, seed + worker)).collect();
    let boot = tempfile::tempdir()?;
    let program = if powered == Powered::Sqlite { in_an_earlier_boot(&program, boot.path())? } else { program };
    let mut fleet = Fleet::start(program, folder.to_owned(), orders)?;
    wait_for("fences to be given", Duration::from_mins(2), || Ok((fences_given(folder)? >= 40).then_some(())))?;
    std::thread::sleep(Duration::from_millis(seed * 7_919 % 900));
    if matches!(server, Server::File(..)) {
        (0..fleet.len()).try_for_each(|number| fleet.signal(number, Signal::STOP))?;
    }
    server.freeze();
    // Replies that were on their way still arrive; what is frozen sends no more.
    std::thread::sleep(Duration::from_millis(300));
    disk.cut_power()?;
    let (count, given) = (fences_given(folder)?, highest_fences(folder)?);
    fleet.kill_all()?;
    server.restart();
    let lost = count_lost(&server.url(), &given)?;
    Ok(Some(Cut { given: count, keys: given.len(), lost }))
}

/// A program that runs `program` where the machine seems to be in the boot before this one.
fn in_an_earlier_boot(program: &Path, folder: &Path) -> Result<PathBuf> {
    let (boot_id, wrapper) = (folder.join("boot_id"), folder.join("worker"));
    fs::write(&boot_id, "0f1e2d3c-4b5a-4697-8879-6a5b4c3d2e1f\n")?;
    let mount = r#"mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@""#;
    let (boot_id, program) = (boot_id.display(), program.display());
    fs::write(&wrapper, format!("#!/bin/sh\nexec unshare --mount sh -c '{mount}' '{boot_id}' '{program}' \"$@\"\n"))?;
    fs::set_permissions(&wrapper, Permissions::from_mode(0o700))?;
    Ok(wrapper)
}

fn orders(url: &str, folder: &Path, seed: u64) -> Orders {
    Orders {
        url: url.to_owned(),
        history: PathBuf::new(),
        resources: folder.join("resources"),
        seed,
        keys: 6,
        tasks: 3,
        ttl_ms: TTL_MS,
        until: now() + 600_000 * MILLI,
        nap_ms: None,
        credulous: false,
    }
}

fn fences_given(folder: &Path) -> Result<usize> {
    let operations = check::operations(&History::read_all(folder)?);
    Ok(operations.iter().filter(|operation| matches!(operation.answer, Answer::Acquired(_))).count())
}

fn highest_fences(folder: &Path) -> Result<HashMap<String, u64>> {
    let mut highest: HashMap<String, u64> = HashMap::new();
    for operation in check::operations(&History::read_all(folder)?) {
        if let Answer::Acquired(fence) = operation.answer {
            let known = highest.entry(operation.key).or_default();
            *known = fence.max(*known);
        }
    }
    Ok(highest)
}

/// Takes every key once more.
fn count_lost(url: &str, given: &HashMap<String, u64>) -> Result<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let locker = connect(url).await.context("the storage does not open after the cut")?;
        let mut lost = 0;
        for (key, highest) in given {
            let request = locker.lock(key.as_str()).ttl(Duration::from_millis(TTL_MS));
            // A lock that was held at the cut is free when its lease has ended.
            let guard = request.timeout(Duration::from_mins(1)).acquire().await?;
            lost += usize::from(guard.fence().get() <= *highest);
            guard.release().await?;
        }
        Ok(lost)
    })
}

enum Server {
    /// Where it is, and how it is opened.
    File(PathBuf, &'static str),
    Redis(RedisServer),
    Postgres(PostgresServer),
}

impl Server {
    fn start(powered: Powered, disk: &Path) -> Result<Self> {
        let redis = |sync| RedisServer::try_start(RedisOptions::new().appendonly(sync).on_disk(disk));
        Ok(match powered {
            Powered::Sqlite | Powered::SqliteWithoutBoot => Self::File(disk.join("locks.db"), "normal"),
            Powered::SyncedSqlite => Self::File(disk.join("locks.db"), "full"),
            Powered::Redis => Self::Redis(redis(Appendonly::Always)?),
            Powered::UnsyncedRedis => Self::Redis(redis(Appendonly::Never)?),
            Powered::Postgres => {
                let options = PostgresOptions::new().fsync().config("synchronous_commit = off");
                Self::Postgres(PostgresServer::try_start(options.on_disk(disk))?)
            }
        })
    }

    fn url(&self) -> String {
        match self {
            Self::File(path, synchronous) => format!("sqlite:{}?synchronous={synchronous}", path.display()),
            Self::Redis(server) => server.url(),
            Self::Postgres(server) => server.url(),
        }
    }

    fn freeze(&self) {
        match self {
            Self::File(..) => {}
            Self::Redis(server) => server.pause(),
            Self::Postgres(server) => server.pause(),
        }
    }

    /// Kills what was frozen and starts on what the disk has now.
    fn restart(&mut self) {
        match self {
            Self::File(..) => {}
            Self::Redis(server) => server.restart(),
            Self::Postgres(server) => {
                // Frozen children would keep the dead one's memory, and a new server would not start beside them.
                server.kill_frozen();
                server.restart();
            }
        }
    }
}
