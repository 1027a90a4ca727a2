//! When is SQLite's log written into the file?
//!
//! Every process that opens the file alone reads the whole log first, page by page. SQLite lets it grow to a thousand
//! pages, since writing it back waits for the disk twice; but commands that open the file, lock once and end would read
//! five hundred pages each, far more than all their other work. So a process that meets a log which is longer than a
//! few commands' worth writes it back once, after its first answer and while its caller is at work. From then on, a
//! process that stays pays as rarely as before.
//!
//! It is never done before an answer or within a writer's turn: other processes go on meanwhile.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::file::beside;

/// What one start may find without minding: sixteen locks and releases.
const SHORT: u64 = 100;
/// Where a process that stays writes the log back, as SQLite itself would.
const LONG: u64 = 1_000;

/// The log behind the writer's connection.
///
/// SQLite tells its length to a hook, which has another form in each version of `rusqlite`, or none. But this crate has
/// to go with the one that the application's own driver allows. So the log itself is asked, whose
/// [layout](https://sqlite.org/fileformat2.html#walformat) stays: a frame counts if it has the salt of the header.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: Option<File>,
    /// How many pages it may have. Short until this process has written it back once.
    limit: u64,
}

impl Log {
    /// Stops the connection from writing its log back within a commit.
    pub(crate) fn of(db: &Connection, path: &Path) -> rusqlite::Result<Self> {
        db.pragma_update(None, "wal_autocheckpoint", 0)?;
        Ok(Self { path: beside(path, "-wal"), file: None, limit: SHORT })
    }

    /// Writes the log back if the last commit left it too long.
    pub(crate) fn shorten(&mut self, db: &Connection) {
        // Where it fails, or somebody still reads, the log stays and is as long after the next commit.
        if self.has(self.limit).unwrap_or(false)
            && db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).is_ok()
        {
            self.limit = LONG;
        }
    }

    /// Whether the log has so many pages that were not written back.
    fn has(&mut self, pages: u64) -> std::io::Result<bool> {
        if self.file.is_none() {
            // SQLite holds no locks by this file: closing it again takes none away.
            self.file = Some(File::open(&self.path)?);
        }
        let Some(log) = &self.file else { return Ok(false) };
        let (mut header, mut salt) = ([0; 24], [0; 8]);
        log.read_exact_at(&mut header, 0)?;
        let page = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        // After the header of the log, of 32 bytes, every page has one of 24, with the salt at its eighth.
        log.read_exact_at(&mut salt, 32 + (pages - 1) * (24 + u64::from(page)) + 8)?;
        Ok(salt == header[16..])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_written_back_early_once_and_then_as_rarely_as_by_sqlite() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db");
        let db = Connection::open(&path).unwrap();
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
        db.execute_batch("PRAGMA synchronous = OFF; CREATE TABLE one (x); INSERT INTO one VALUES (0)").unwrap();
        let mut log = Log::of(&db, &path).unwrap();
        let before = (1..100_000).take_while(|pages| log.has(*pages).unwrap_or(false)).last().unwrap();

        // Every commit adds one page, and the one after a write-back begins the log anew.
        let mut written_back = Vec::new();
        for commit in 1..=SHORT + LONG + LONG / 2 {
            db.execute_batch("UPDATE one SET x = x + 1").unwrap();
            if log.has(log.limit).unwrap_or(false) {
                written_back.push(before + commit);
            }
            log.shorten(&db);
        }

        assert_eq!(written_back, [SHORT, SHORT + LONG]);
    }
}
