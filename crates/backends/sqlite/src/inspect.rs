//! What may operators see, and what does it cost those who lock?
//!
//! A listing goes through the primary key in short looks of the reader thread, each with a snapshot of its own, so it
//! neither holds up a writer nor keeps the log from being tidied. Between two looks it pauses, so that it takes little of
//! a core that others may need.

use rusqlite::{Connection, params};
use syncguard_core::time::TOLERANCE_MS;
use syncguard_core::{
    AskOutcome, Counts, Cursor, Inspect, ListRequest, LockBackend, LockId, LockInfo, Page, Result, Timestamp, WakeHint,
};
use tokio::time::Instant;

use crate::backend::{SqliteBackend, crossed};
use crate::listener::EVERY_KEY;
use crate::operations::{Answer, Operation};
use crate::pool::Pool;
use crate::row::Stored;

const LIST: &str = include_str!("../sql/list.sql");
const COUNT: &str = include_str!("../sql/count.sql");

impl Inspect for SqliteBackend {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        if request.cursor.is_some() {
            self.pool().pace.wait().await;
        }
        let (clock, path) = (self.clock(), self.path().to_path_buf());
        let step = Step {
            prefix: request.prefix.to_owned(),
            after: request.cursor.map_or_else(String::new, |cursor| cursor.as_str().to_owned()),
            size: request.page_size.clamp(1, 10_000),
        };
        let begun = Instant::now();
        let look = move |db: &Connection| step.take(db, clock.wall()).map_err(|error| Pool::unread(&path, &error));
        let page = self.pool().read(look).await;
        self.pool().pace.took(begun.elapsed());
        page
    }

    async fn count(&self) -> Result<Counts> {
        let (clock, path) = (self.clock(), self.path().to_path_buf());
        let look = move |db: &Connection| {
            let newest_dead = clock.wall().as_millis().saturating_sub(TOLERANCE_MS);
            let number = |row: &rusqlite::Row<'_>, at| row.get::<_, i64>(at).map(i64::unsigned_abs);
            db.prepare_cached(COUNT)
                .and_then(|mut count| {
                    count.query_row([newest_dead], |row| Ok(Counts::new(number(row, 0)?, number(row, 1)?)))
                })
                .map_err(|error| Pool::unread(&path, &error))
        };
        self.pool().read(look).await
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        match self.write(Operation::Ask { lock_id: lock_id.clone() }).await? {
            Answer::Asked(outcome) => Ok(outcome),
            _ => Err(crossed()),
        }
    }

    /// Hints at every release, and at what this process acquires. A hint at every acquisition of other processes would
    /// cost each of them a write, and wake everybody who waits for a lock.
    async fn changes(&self) -> WakeHint {
        self.pool().subscribe(EVERY_KEY)
    }
}

/// One step of a listing, on its way to the reader.
struct Step {
    prefix: String,
    /// The key where the step before ended; empty at the beginning.
    after: String,
    size: u32,
}

impl Step {
    fn take(&self, db: &Connection, now: Timestamp) -> rusqlite::Result<Page> {
        let mut statement = db.prepare_cached(LIST)?;
        let mut rows = statement.query(params![self.prefix, self.after, self.size])?;
        let (mut locks, mut looked_at, mut last) = (Vec::new(), 0, None);
        while let Some(row) = rows.next()? {
            // A name that is no text comes after every text.
            let Ok(name) = row.get::<_, String>(0) else { return Ok(Page::new(locks, None)) };
            if !name.starts_with(&self.prefix) {
                return Ok(Page::new(locks, None));
            }
            locks.extend(Stored::from_row(row).ok().and_then(|stored| shown(stored, now)));
            looked_at += 1;
            last = Some(name);
        }
        let next = if looked_at < self.size { None } else { last.map(Cursor::new) };
        Ok(Page::new(locks, next))
    }
}

/// A row that is no lock is passed over: a listing shows what is held.
fn shown(stored: Stored, now: Timestamp) -> Option<LockInfo> {
    stored.into_live_info(now).ok().flatten()
}
