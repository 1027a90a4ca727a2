//! Is this file fit to carry locks?
//!
//! One line per question that an operator would ask, in the order in which trouble shows. The look at the file is one
//! look of the reader thread; the probe takes a real lock on a reserved key and gives it back.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rusqlite::Connection;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Clock, HealthReport, HealthStatus, Key, LockBackend, LockError, Result,
    SystemClock, Ttl,
};

use crate::backend::SqliteBackend;
use crate::connect;
use crate::file::{self, Medium};
use crate::pool::Pool;

/// The key that the probe locks.
const PROBE_KEY: &str = "syncguard:doctor:probe";

// Checking every page takes about a second per gigabyte; beyond this an operator runs `PRAGMA quick_check` himself.
const LARGEST_CHECKED: i64 = 256 << 20;

const LITTLE_SPACE: u64 = 64 << 20;

/// What the reader thread saw.
struct Seen {
    version: i32,
    journal_mode: String,
    bytes: i64,
    integrity: Option<String>,
    locks: i64,
    counters: i64,
}

pub(crate) async fn report(backend: &SqliteBackend) -> HealthReport {
    let mut report = HealthReport::default();
    let path = backend.path().to_path_buf();
    let looked = {
        let path = path.clone();
        backend.pool().read(move |db| look(db).map_err(|error| Pool::unread(&path, &error))).await
    };
    match looked {
        Ok(seen) => {
            report.push(HealthStatus::Pass, "file", format!("{}, layout {}", path.display(), seen.version));
            check_permissions(&path, &mut report);
            check_medium(&path, &mut report);
            check_contents(&seen, &mut report);
        }
        Err(error) => {
            fail(&mut report, "file", &error);
            check_permissions(&path, &mut report);
            check_medium(&path, &mut report);
        }
    }
    check_durability(backend.pool(), &mut report);
    probe(backend, &mut report).await;
    check_waking(backend, &mut report);
    report.push(HealthStatus::Info, "clock", "this machine's clock decides; there is no other");
    report
}

fn look(db: &Connection) -> rusqlite::Result<Seen> {
    let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0));
    let bytes = number("PRAGMA page_count")? * number("PRAGMA page_size")?;
    let integrity = if bytes <= LARGEST_CHECKED {
        Some(db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?)
    } else {
        None
    };
    Ok(Seen {
        version: db.query_row("PRAGMA user_version", [], |row| row.get(0))?,
        journal_mode: connect::journal_mode(db)?,
        bytes,
        integrity,
        locks: number("SELECT count(*) FROM syncguard_locks")?,
        counters: number("SELECT count(*) FROM syncguard_fence_counters")?,
    })
}

fn check_permissions(path: &Path, report: &mut HealthReport) {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        report.push(HealthStatus::Fail, "permissions", "the file is not there");
        return;
    };
    let mode = metadata.mode() & 0o777;
    if mode & 0o007 != 0 {
        report
            .push(HealthStatus::Warn, "permissions", format!("mode {mode:04o}: others can read the lock ids in it"))
            .hint("chmod o= the file and those beside it; share locks with a group by mode 660");
    } else if mode & 0o070 != 0 {
        let detail = format!("mode {mode:04o}: shared with the group {}", metadata.gid());
        report.push(HealthStatus::Pass, "permissions", detail);
    } else {
        report.push(HealthStatus::Pass, "permissions", format!("mode {mode:04o}"));
    }
}

fn check_medium(path: &Path, report: &mut HealthReport) {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match file::medium(directory) {
        Medium::Local => report.push(HealthStatus::Pass, "filesystem", "local"),
        Medium::Memory => report
            .push(HealthStatus::Warn, "filesystem", "in memory: fences start over when the machine restarts")
            .hint("put the file on a disk"),
        Medium::Fuse => report
            .push(HealthStatus::Warn, "filesystem", "FUSE: whether it keeps locks and memory maps is not known")
            .hint("put the file on a local disk"),
        Medium::Network(name) => report
            .push(HealthStatus::Fail, "filesystem", format!("{name}: a network filesystem"))
            .hint("put the file on a local disk"),
    };
    if let Ok(space) = rustix::fs::statvfs(directory) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let detail = format!("{} MiB free", free >> 20);
        if free < LITTLE_SPACE {
            report.push(HealthStatus::Warn, "space", detail).hint("free some space: a full disk stops acquisitions");
        } else {
            report.push(HealthStatus::Pass, "space", detail);
        }
    }
}

fn check_contents(seen: &Seen, report: &mut HealthReport) {
    match seen.integrity.as_deref() {
        Some("ok") => report.push(HealthStatus::Pass, "integrity", "every page is in order"),
        // SQLite names pages and tables here, never values.
        Some(complaint) => report
            .push(HealthStatus::Fail, "integrity", complaint.lines().next().unwrap_or_default())
            .hint("restore the file from a backup, or move it away to start over (fences start over too)"),
        None => report.push(HealthStatus::Info, "integrity", "not checked: the file is large"),
    };
    match seen.journal_mode.as_str() {
        "wal" => report.push(HealthStatus::Pass, "journal", "wal"),
        other => report
            .push(HealthStatus::Fail, "journal", format!("{other}: readers and writers block each other"))
            .hint("something changed the file's mode; open it with syncguard again"),
    };
    let kib = seen.bytes >> 10;
    report.push(
        HealthStatus::Info,
        "contents",
        format!("{} locks (dead ones included), {} fence counters, {kib} KiB", seen.locks, seen.counters),
    );
}

fn check_durability(pool: &Pool, report: &mut HealthReport) {
    let how = if pool.is_durable() {
        "every acquire is on the disk: a power cut repeats no fence"
    } else {
        "fences are promised to the disk ahead: a power cut repeats none"
    };
    report.push(HealthStatus::Pass, "durability", how);
}

async fn probe(backend: &SqliteBackend, report: &mut HealthReport) {
    let before = SystemClock.boot();
    match take_and_give_back(backend).await {
        Ok(true) => {
            let micros = SystemClock.boot().since(before).as_micros();
            report.push(HealthStatus::Pass, "probe", format!("acquired, extended and released in {micros} µs"));
        }
        Ok(false) => {
            report.push(HealthStatus::Info, "probe", "another doctor holds the probe lock");
        }
        Err(error) => fail(report, "probe", &error),
    }
}

async fn take_and_give_back(backend: &SqliteBackend) -> Result<bool> {
    let key = Key::new(PROBE_KEY)?;
    let lock_id = backend.new_lock_id(&key);
    let request = AcquireRequest::new(&key, &lock_id, Ttl::from_millis(5_000)?);
    if let AcquireOutcome::Contended(_) = backend.acquire(request).await? {
        return Ok(false);
    }
    let extended = backend.extend(&lock_id, Ttl::from_millis(5_000)?).await?.is_extended();
    let released = backend.release(&lock_id).await?.is_released();
    if extended && released { Ok(true) } else { Err(LockError::internal("the probe lock was lost at once")) }
}

fn check_waking(backend: &SqliteBackend, report: &mut HealthReport) {
    if backend.pool().hears_other_processes() {
        report.push(HealthStatus::Pass, "wake-up", "releases of other processes are heard");
    } else {
        report
            .push(HealthStatus::Warn, "wake-up", "the kernel gives no watch: waiters in other processes poll")
            .hint("raise fs.inotify.max_user_instances");
    }
}

fn fail(report: &mut HealthReport, name: &'static str, error: &LockError) {
    let line = report.push(HealthStatus::Fail, name, error.to_string());
    if let Some(hint) = error.hint() {
        line.hint(hint.to_owned());
    }
}
