//! Is this file ours, and how is a connection to it set up?
//!
//! A file is ours by its `application_id`, readable by its `user_version`. An empty file becomes ours in one
//! transaction, so a crash leaves either nothing or everything; one of an earlier version gets the columns that it lacks
//! in the same way. Anything else is refused before a byte of it changes.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::channel::CALL_LIMIT;
use crate::error::Fault;
use crate::queue::Queue;
use crate::{reserve, row};

/// `SGLK` in the file's header.
pub(crate) const APPLICATION_ID: i32 = 0x5347_4c4b;

/// The newest layout that this code reads and the one it writes.
pub(crate) const VERSION: i32 = 1;

const SCHEMA: &str = include_str!("../sql/schema.sql");

/// What files of earlier versions lack: how to see it, and how to add it. The layout keeps its number, because programs of
/// those versions go on using the file.
const ADDITIONS: [(&str, &str); 2] = [
    (include_str!("../sql/has_holder_columns.sql"), include_str!("../sql/holder_columns.sql")),
    (include_str!("../sql/has_promise_columns.sql"), include_str!("../sql/promise_columns.sql")),
];

// Our own writers queue before they get here. What is left to wait for is a foreign program or a recovery.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens a connection to a file that exists. Nothing is read yet.
pub(crate) fn connect(path: &Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let opening = |error| Fault::while_opening(path, &error);
    let db = Connection::open_with_flags(path, flags).map_err(opening)?;
    db.busy_timeout(BUSY_TIMEOUT).map_err(opening)?;
    // A short-lived command must not pay for tidying the log, and a foreign file must not be tidied at all.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(opening)?;
    db.set_prepared_statement_cache_capacity(32);
    Ok(db)
}

/// A file that was looked at: ours, or empty and free to become ours.
pub(crate) struct Unclaimed {
    db: Connection,
    is_ready: bool,
}

/// Opens the file and makes sure that it is ours or empty. Nothing is changed yet.
pub(crate) fn open(path: &Path) -> Result<Unclaimed, Fault> {
    let db = connect(path)?;
    let is_ready = match look_at_once(path, &db)? {
        Found::Ours { lacks } => {
            lacks.is_empty() && journal_mode(&db).map_err(|error| Fault::while_opening(path, &error))? == "wal"
        }
        Found::Empty => false,
    };
    Ok(Unclaimed { db, is_ready })
}

impl Unclaimed {
    /// Makes the file ours if it was empty, and complete if an earlier version made it.
    pub(crate) fn claim(self, path: &Path, queue: &mut Queue) -> Result<Connection, Fault> {
        if !self.is_ready {
            let _turn = queue.enter_within(CALL_LIMIT)?;
            make_ours(path, &self.db)?;
        }
        Ok(self.db)
    }
}

/// Looks in one snapshot: between two statements another process may make the file ours, and half of each is a
/// stranger's file.
fn look_at_once(path: &Path, db: &Connection) -> Result<Found, Fault> {
    db.execute_batch("BEGIN").map_err(|error| Fault::while_opening(path, &error))?;
    let found = look(path, db);
    // Nothing was written; a file that cannot be read has no transaction to end either.
    let _ = db.execute_batch("ROLLBACK");
    found
}

enum Found {
    Ours {
        /// What adds the columns that it lacks.
        lacks: Vec<&'static str>,
    },
    Empty,
}

fn look(path: &Path, db: &Connection) -> Result<Found, Fault> {
    let opening = |error| Fault::while_opening(path, &error);
    let shown = path.display();
    let number = |sql| db.query_row(sql, [], |row| row.get::<_, i32>(0));
    let application = number("PRAGMA application_id").map_err(opening)?;
    let version = number("PRAGMA user_version").map_err(opening)?;
    if application == APPLICATION_ID {
        if version == VERSION {
            return lacks(db).map(|lacks| Found::Ours { lacks }).map_err(opening);
        }
        return Err(Fault::invalid(format!("{shown} has layout {version}, this program knows {VERSION}"))
            .hint("use a newer syncguard for this file, or another file"));
    }
    let tables = number("SELECT count(*) FROM sqlite_schema").map_err(opening)?;
    if application == 0 && version == 0 && tables == 0 {
        return Ok(Found::Empty);
    }
    Err(Fault::invalid(format!("{shown} is another program's database; nothing was changed"))
        .hint("name a new file or one made by syncguard"))
}

fn make_ours(path: &Path, db: &Connection) -> Result<(), Fault> {
    let opening = |error| Fault::while_opening(path, &error);
    let mode: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(opening)?;
    if mode != "wal" {
        return Err(Fault::invalid(format!("the filesystem of {} cannot carry a shared log", path.display()))
            .hint("use a local disk"));
    }
    // The first bytes of the file must survive a power cut as well as the first fence.
    db.execute_batch("PRAGMA synchronous = FULL; BEGIN IMMEDIATE").map_err(opening)?;
    let result = look(path, db).and_then(|found| match found {
        // Nothing to add: another process was quicker.
        Found::Ours { lacks } => lacks.iter().try_for_each(|sql| db.execute_batch(sql)).map_err(opening),
        Found::Empty => make_tables(db).map_err(opening),
    });
    let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = db.execute_batch(end).map_err(opening);
    result.and(ended)
}

fn make_tables(db: &Connection) -> rusqlite::Result<()> {
    db.execute_batch(SCHEMA)?;
    lacks(db)?.iter().try_for_each(|sql| db.execute_batch(sql))?;
    db.pragma_update(None, "application_id", APPLICATION_ID)?;
    db.pragma_update(None, "user_version", VERSION)
}

/// What adds to the file what it lacks.
fn lacks(db: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    // These two name every column that may be lacking, and stay prepared for the first lock. To ask for the columns takes
    // longer than all the rest of an opening.
    if [row::LOCK_OF_KEY, reserve::COUNTER].iter().all(|sql| db.prepare_cached(sql).is_ok()) {
        return Ok(Vec::new());
    }
    let mut lacks = Vec::new();
    for (has, add) in ADDITIONS {
        if !db.query_row(has, [], |row| row.get(0))? {
            lacks.push(add);
        }
    }
    Ok(lacks)
}

/// How the file keeps its log.
pub(crate) fn journal_mode(db: &Connection) -> rusqlite::Result<String> {
    db.query_row("PRAGMA journal_mode", [], |row| row.get(0))
}
