//! What may operators see, and what does it cost those who lock?
//!
//! A listing goes through the primary key in short statements, each with a snapshot of its own, so it keeps no row
//! version alive. Between two of them it pauses for a few times as long as the server worked, so that locks beside it
//! keep nearly all of their speed.

use std::sync::{Arc, Mutex, PoisonError};

use syncguard_core::{AskOutcome, Counts, Cursor, Inspect, ListRequest, LockError, LockId, Page, Result, WakeHint};
use tokio::time::{Instant, sleep_until};

use crate::backend::{Inner, PostgresBackend};
use crate::error;
use crate::listener::EVERY_KEY;
use crate::row::{column, read_info};
use crate::statement::{number, text};

/// How many times as long as a step took a listing waits before the next.
const PAUSE: u32 = 4;

impl Inspect for PostgresBackend {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        self.inner().list(request).await
    }

    async fn count(&self) -> Result<Counts> {
        let rows = self.inner().ask_all(|all| &all.count, Vec::new()).await?;
        let row = rows.first().ok_or_else(error::no_row)?;
        let number = |name| column::<i64>(row, name).map(|count| u64::try_from(count).unwrap_or(0));
        Ok(Counts::new(number("locks")?, number("counters")?))
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        let inner = self.inner();
        let asking = inner.change(|all| &all.ask, vec![text(lock_id.as_str())], inner.deadline()).await;
        let row = asking.map_err(|error| if error::names_missing_column(&error) { no_room() } else { error })?;
        Ok(if column(&row, "asked")? { AskOutcome::Asked } else { AskOutcome::Absent })
    }

    /// Hints at releases that somebody waited for, which are notified anyway. Letting every release notify would slow
    /// down every commit of the database.
    async fn changes(&self) -> WakeHint {
        match &self.inner().listener {
            Some(listener) => listener.subscribe(EVERY_KEY).await,
            None => WakeHint::never(),
        }
    }
}

fn no_room() -> LockError {
    LockError::invalid("the lock table has no column `holder`, so a holder cannot be asked")
        .with_hint("call setup_schema(), or run the SQL that schema_sql() prints; then connect again")
}

impl Inner {
    async fn list(self: &Arc<Self>, request: ListRequest<'_>) -> Result<Page> {
        let size = i64::from(request.page_size.clamp(1, 10_000));
        let after = request.cursor.map_or("", Cursor::as_str);
        if request.cursor.is_some() {
            self.pause().await;
        }
        let begun = Instant::now();
        let rows = self.ask_all(|all| &all.list, vec![text(request.prefix), text(after), number(size)]).await?;
        *lock(&self.next_page) = Some(Instant::now() + begun.elapsed() * PAUSE);
        let first = rows.first().ok_or_else(error::no_row)?;
        let next = column::<Option<String>>(first, "next_key")?.map(Cursor::new);
        let present = rows.iter().filter(|row| matches!(column(row, "present"), Ok(true)));
        // A row that is no lock is passed over: a listing shows what is held.
        let locks = present.filter_map(|row| read_info(row).ok().flatten()).collect();
        Ok(Page::new(locks, next))
    }

    async fn pause(&self) {
        let until = *lock(&self.next_page);
        if let Some(until) = until {
            sleep_until(until).await;
        }
    }
}

// One assignment under it, so a panic leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
