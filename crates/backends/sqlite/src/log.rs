//! When is SQLite's log written into the file?
//!
//! Every process that opens the file alone reads the whole log first, page by page. SQLite lets it grow to a thousand
//! pages, since writing it back waits for the disk twice; but commands that open the file, lock once and end would read
//! five hundred pages each, far more than all their other work. So a process that meets a log which is longer than a
//! few commands' worth writes it back once, after its first answer and while its caller is at work. From then on, a
//! process that stays pays as rarely as before.
//!
//! It is never done before an answer or within a writer's turn: other processes go on meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::hooks::Wal;
use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, MAIN_DB};

/// What one start may find without minding: sixteen locks and releases.
const SHORT: i32 = 100;
/// Where a process that stays writes the log back, as SQLite itself would.
const LONG: i32 = 1_000;

/// The log behind the writer's connection.
#[derive(Debug)]
pub(crate) struct Log {
    /// How many pages it has, told by SQLite after every commit.
    pages: Arc<AtomicI32>,
    /// How many it may have. Short until this process has written it back once.
    limit: i32,
}

impl Log {
    /// Has the connection tell the length of its log instead of writing it back within a commit.
    pub(crate) fn of(db: &mut Connection) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicI32::new(0));
        let told = pages.clone();
        db.wal_hook(Some(move |_: &mut Wal, pages| {
            told.store(pages, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self { pages, limit: SHORT })
    }

    /// Writes the log back if the last commit left it too long.
    pub(crate) fn shorten(&mut self, db: &Connection) {
        if self.pages.swap(0, Ordering::Relaxed) < self.limit {
            return;
        }
        // Where it fails, or somebody still reads, the log stays and the next commit tells its length again.
        if db.wal_checkpoint_v2(Some(MAIN_DB), CheckpointMode::PASSIVE).is_ok() {
            self.limit = LONG;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_written_back_early_once_and_then_as_rarely_as_by_sqlite() {
        let directory = tempfile::tempdir().unwrap();
        let mut db = Connection::open(directory.path().join("locks.db")).unwrap();
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
        db.execute_batch("PRAGMA synchronous = OFF; CREATE TABLE one (x); INSERT INTO one VALUES (0)").unwrap();
        let mut log = Log::of(&mut db).unwrap();

        // Every commit adds one page, and the one after a write-back begins the log anew.
        let mut lengths = Vec::new();
        for _ in 0..SHORT + LONG + LONG / 2 {
            db.execute_batch("UPDATE one SET x = x + 1").unwrap();
            lengths.push(log.pages.load(Ordering::Relaxed));
            log.shorten(&db);
        }

        let peaks: Vec<i32> = lengths.windows(2).filter(|pair| pair[1] < pair[0]).map(|pair| pair[0]).collect();
        assert_eq!(peaks, [SHORT, LONG]);
    }
}
