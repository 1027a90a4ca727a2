//! How does a request become one transaction?
//!
//! The *decision* is one statement that does the work. On a connection of our own, whose session has the settings that
//! it needs, that statement is the transaction. Behind a pooler and on a pool that was brought along a *gate* travels
//! before it that bounds the waits, in one transaction ([`pipeline`](crate::pipeline)). What the statements decide stands
//! in `sql/*.sql`; what the answers mean, in [`row`](crate::row).
//!
//! Whatever is asked is asked in a task that runs by itself: acquires and releases by a carrier of their
//! [line](crate::admission), everything else by a task of its own that ends when its caller leaves. So a future that nobody
//! polls keeps no connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, ExtendOutcome, Extension, Key, LockId, LockInfo, Lookup, ReleaseOutcome, Result,
    Timestamp, Ttl,
};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_postgres::Row;

use crate::backend::Inner;
use crate::batch::{Acquire, Release};
use crate::builder::Prepared;
use crate::names::Names;
use crate::pipeline::{self, Manner};
use crate::pool::{Use, deadline};
use crate::row::{column, read_absent, read_info};
use crate::session::Session;
use crate::statement::{Call, Sql, Statements, Values, number, text};
use crate::{error, schema};

/// How long who met somebody else at its key waits before it comes again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

impl Inner {
    /// Makes sure that the tables are there, and learns which columns they have.
    pub(crate) async fn ensure_schema(&self) -> Result<()> {
        let mut session = self.pool.get(Use::Transaction, self.deadline()).await?;
        session.begin();
        let create = self.settings.auto_create_tables;
        let schema = schema::ensure(session.client(), &self.tables, create, self.settings.timeout).await?;
        session.finished();
        self.columns.store(schema.optional.place(), Ordering::Release);
        Ok(())
    }

    pub(crate) async fn set_up_schema(&self) -> Result<()> {
        let mut session = self.pool.get(Use::Transaction, self.deadline()).await?;
        session.begin();
        schema::set_up(session.client(), &self.tables).await?;
        session.finished();
        self.look_again(&mut session, self.deadline()).await?;
        Ok(())
    }

    /// Looks which columns are there: the place of the statements for them.
    async fn look_again(&self, session: &mut Session, deadline: Instant) -> Result<usize> {
        session.begin();
        let looking = timeout_at(deadline, schema::look(session.client(), &self.tables)).await;
        let schema = looking.map_err(|_| error::no_answer())?.map_err(|error| error::from_statement(&error))?;
        session.finished();
        let place = schema.optional.place();
        self.columns.store(place, Ordering::Release);
        Ok(place)
    }

    pub(crate) fn deadline(&self) -> Instant {
        deadline(self.settings.timeout)
    }

    /// A request that hangs for longer than a third of the lease is better given up and sent again.
    fn deadline_within(&self, ttl: Ttl) -> Instant {
        deadline(self.settings.timeout.min((ttl.duration() / 3).max(Duration::from_secs(1))))
    }

    /// Whether operations may share a statement: only on sessions that are ours alone, as far as is known before one is
    /// taken.
    pub(crate) fn goes_together(&self) -> bool {
        self.pool.behind_pooler() == Some(false)
    }

    pub(crate) async fn acquire(self: &Arc<Self>, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let deadline = self.deadline_within(request.ttl);
        let question = Acquire::new(Names::new(request.key)?, request, self.settings.fence_floor);
        let question = Arc::new(question);
        self.until_decided(deadline, || self.ask_to_acquire(question.clone(), deadline)).await
    }

    pub(crate) async fn release(self: &Arc<Self>, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let (deadline, question) = (self.deadline(), Arc::new(Release(lock_id.clone())));
        self.until_decided(deadline, || self.ask_to_release(question.clone(), deadline)).await
    }

    pub(crate) async fn extend(self: &Arc<Self>, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let deadline = self.deadline_within(ttl);
        let row = self.until_decided(deadline, || async {
            let values = vec![text(lock_id.as_str()), number(ttl.as_millis())];
            let row = self.change(|all| &all.extend, values, deadline).await?;
            Ok((column::<Option<bool>>(&row, "again")? != Some(true)).then_some(row))
        });
        let row = row.await?;
        match column::<Option<i64>>(&row, "expires_at_ms")? {
            Some(millis) => {
                let asked = column::<Option<bool>>(&row, "asked")?.unwrap_or(false);
                Ok(ExtendOutcome::Extended(Extension::new(Timestamp::from_millis(millis)).asked_for(asked)))
            }
            None => read_absent(&row).map(|why| ExtendOutcome::Absent(Some(why))),
        }
    }

    /// Comes again while somebody else is at the key or its row. No connection is held in between, and nobody depends on
    /// whether this is polled.
    pub(crate) async fn until_decided<T, F>(&self, deadline: Instant, mut ask: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let give_up = deadline.min(Instant::now() + self.settings.lock_timeout);
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(decided) = ask().await? {
                return Ok(decided);
            }
            let now = Instant::now();
            if now >= give_up {
                return Err(error::key_in_use());
            }
            sleep_until(give_up.min(now + pause)).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    pub(crate) async fn is_locked(self: &Arc<Self>, key: &Key) -> Result<bool> {
        let names = Names::new(key)?;
        let Some(row) = self.ask_one(|all| &all.is_locked, &names.lock).await? else { return Ok(false) };
        let live: Option<bool> = column(&row, "live")?;
        let removable: Option<bool> = column(&row, "removable")?;
        if self.settings.cleanup_in_is_locked && removable == Some(true) {
            self.clean_up(names.lock);
        }
        live.ok_or_else(|| error::damaged("expiry"))
    }

    /// Removes one dead lock in the background. Tidying up is a courtesy: nobody waits for it, and there is one at a
    /// time.
    fn clean_up(self: &Arc<Self>, storage_key: String) {
        if self.cleaning.swap(true, Ordering::AcqRel) {
            return;
        }
        let cleaning = Cleaning(self.clone());
        tokio::spawn(async move {
            let inner = &cleaning.0;
            drop(inner.change(|all| &all.purge_key, vec![text(storage_key)], inner.deadline()).await);
        });
    }

    pub(crate) async fn lookup(self: &Arc<Self>, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let row = match query {
            Lookup::Key(key) => {
                let names = Names::new(key)?;
                self.ask_one(|all| &all.lookup_by_key, &names.lock).await?
            }
            Lookup::LockId(id) => self.ask_one(|all| &all.lookup_by_lock_id, id.as_str()).await?,
        };
        let Some(row) = row else { return Ok(None) };
        let Some(info) = read_info(&row)? else { return Ok(None) };
        let is_asked_for = match query {
            Lookup::Key(key) => info.reveal().key == key,
            Lookup::LockId(id) => info.reveal().lock_id == id,
        };
        Ok(is_asked_for.then_some(info))
    }

    pub(crate) async fn purge(self: &Arc<Self>) -> Result<u64> {
        let mut total = 0;
        loop {
            let row = self.change(|all| &all.purge, Vec::new(), self.deadline()).await?;
            let removed = u64::try_from(column::<i64>(&row, "removed")?).unwrap_or(0);
            total += removed;
            if removed < 1000 {
                return Ok(total);
            }
        }
    }

    async fn ask_one(self: &Arc<Self>, pick: fn(&Statements) -> &Sql, name: &str) -> Result<Option<Row>> {
        let rows = self.ask_all(pick, vec![text(name)]).await?;
        Ok(rows.into_iter().next())
    }

    /// Runs a statement that only reads.
    pub(crate) async fn ask_all(self: &Arc<Self>, pick: fn(&Statements) -> &Sql, values: Values) -> Result<Vec<Row>> {
        self.run(pick, values, false, self.deadline()).await
    }

    /// Runs a statement that takes the locks it needs by itself, in a transaction of its own.
    pub(crate) async fn change(
        self: &Arc<Self>,
        pick: fn(&Statements) -> &Sql,
        values: Values,
        deadline: Instant,
    ) -> Result<Row> {
        let rows = self.run(pick, values, true, deadline).await?;
        rows.into_iter().next().ok_or_else(error::no_row)
    }

    async fn run(
        self: &Arc<Self>,
        pick: fn(&Statements) -> &Sql,
        values: Values,
        changes: bool,
        deadline: Instant,
    ) -> Result<Vec<Row>> {
        let inner = self.clone();
        let running = tokio::spawn(async move {
            let mut session = inner.pool.get(Use::Statement, deadline).await?;
            inner.ask_on(&mut session, pick, &values, changes, deadline).await
        });
        let _ends = EndsWithCaller(running.abort_handle());
        running.await.unwrap_or_else(|_| Err(error::no_answer()))
    }

    /// Runs a statement on a connection, and again if it was made for a table that has changed since.
    pub(crate) async fn ask_on(
        &self,
        session: &mut Session,
        pick: impl Fn(&Statements) -> &Sql,
        values: &Values,
        changes: bool,
        deadline: Instant,
    ) -> Result<Vec<Row>> {
        // Once one connection was seen to lead through a pooler, others may too.
        let is_direct = session.behind_pooler() == Some(false) && self.goes_together();
        let is_named = match self.settings.prepared {
            Prepared::Always => true,
            Prepared::Never => false,
            Prepared::Auto => is_direct,
        };
        let manner = Manner { is_named, changes };
        let bounds = vec![text(&*self.lock_timeout), text(&*self.statement_timeout)];
        let mut is_first = true;
        loop {
            let columns = self.columns.load(Ordering::Acquire);
            let statements = &self.statements[columns];
            let gate = Call { sql: &statements.bounds_gate, values: &bounds };
            let gate = (changes && !is_direct).then_some(gate);
            let decision = Call { sql: pick(statements), values };
            let outcome = pipeline::send(session, manner, gate, decision, deadline).await;
            // Nothing was done, and the session is fit for another try.
            let is_stale = match &outcome {
                Err(error) if error::names_missing_column(error) => {
                    self.look_again(session, deadline).await? != columns
                }
                Err(error) if error::must_prepare_again(error) => {
                    session.forget_statements();
                    true
                }
                _ => false,
            };
            if !is_stale || !is_first {
                return outcome;
            }
            is_first = false;
        }
    }
}

/// Ends a task when its caller leaves.
struct EndsWithCaller(AbortHandle);

impl Drop for EndsWithCaller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lets the next clean-up begin when this one ends, also if its task was dropped.
struct Cleaning(Arc<Inner>);

impl Drop for Cleaning {
    fn drop(&mut self) {
        self.0.cleaning.store(false, Ordering::Release);
    }
}
