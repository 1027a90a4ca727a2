//! How does a request become one transaction?
//!
//! The *decision* is one statement that does the work. On a connection of our own, whose session has the settings that
//! it needs, that statement is the transaction. Behind a pooler and on a pool that was brought along a *gate* travels
//! before it that bounds the waits, in one transaction ([`pipeline`](crate::pipeline)); an acquire that met somebody else
//! at its key goes the same way. What the statements decide stands in `sql/*.sql`; what the answers mean, in
//! [`row`](crate::row).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, ExtendOutcome, Extension, Key, LockId, LockInfo, Lookup, ReleaseOutcome, Result,
    Timestamp, Ttl,
};
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use crate::backend::Inner;
use crate::builder::Prepared;
use crate::many::{Decision, Met, Question, Turn};
use crate::names::Names;
use crate::pipeline::Manner;
use crate::pool::{Session, deadline};
use crate::row::{column, read_absent, read_acquire, read_info, read_released};
use crate::statement::{Call, Hidden, Param, Sql, Statements, flag, number, text};
use crate::{error, pipeline, schema};

impl Inner {
    /// Makes sure that the tables are there, and learns which columns they have.
    pub(crate) async fn ensure_schema(&self) -> Result<()> {
        let mut session = self.pool.get(self.deadline()).await?;
        session.begin();
        let create = self.settings.auto_create_tables;
        let schema = schema::ensure(session.client(), &self.tables, create, self.settings.timeout).await?;
        session.finished();
        self.columns.store(schema.optional.place(), Ordering::Release);
        Ok(())
    }

    pub(crate) async fn set_up_schema(&self) -> Result<()> {
        let mut session = self.pool.get(self.deadline()).await?;
        session.begin();
        schema::set_up(session.client(), &self.tables).await?;
        session.finished();
        self.look_again(&mut session, self.deadline()).await?;
        Ok(())
    }

    /// The statements for the columns that are there.
    pub(crate) fn statements(&self) -> &Statements {
        &self.statements[self.columns.load(Ordering::Acquire)]
    }

    /// Looks which columns are there; whether they are others than before.
    async fn look_again(&self, session: &mut Session, deadline: Instant) -> Result<bool> {
        session.begin();
        let looking = timeout_at(deadline, schema::look(session.client(), &self.tables)).await;
        let schema = looking.map_err(|_| error::no_answer())?.map_err(|error| error::from_statement(&error))?;
        session.finished();
        let place = schema.optional.place();
        Ok(self.columns.swap(place, Ordering::AcqRel) != place)
    }

    pub(crate) fn deadline(&self) -> Instant {
        deadline(self.settings.timeout)
    }

    /// A request that hangs for longer than a third of the lease is better given up and sent again.
    fn deadline_within(&self, ttl: Ttl) -> Instant {
        deadline(self.settings.timeout.min((ttl.duration() / 3).max(Duration::from_secs(1))))
    }

    /// How statements are sent on this connection.
    pub(crate) fn manner(&self, session: &Session) -> Manner {
        // Once one connection was seen to lead through a pooler, others may too.
        let is_direct = session.behind_pooler() == Some(false) && self.pool.behind_pooler() == Some(false);
        let is_named = match self.settings.prepared {
            Prepared::Always => true,
            Prepared::Never => false,
            Prepared::Auto => is_direct,
        };
        Manner { is_named, is_direct }
    }

    pub(crate) async fn acquire(self: &Arc<Self>, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let deadline = self.deadline_within(request.ttl);
        let names = Names::new(request.key)?;
        // Waiting here costs no connection. The order matters: a place among the acquires is taken only by who can use
        // it.
        let _turn = self.turns.take(&names.lock, deadline).await?;
        let values = AcquireValues::new(&names, request, self.settings.fence_floor);
        match self.meet(|| Question::acquire(&names, request), deadline).await? {
            Met::First(turn) => self.acquire_alone(&values, Some(turn), deadline).await,
            Met::Decided(Decision::Acquire(outcome)) => Ok(outcome),
            Met::Decided(Decision::Release(_)) | Met::Undecided => self.acquire_alone(&values, None, deadline).await,
        }
    }

    /// A place among the acquires.
    pub(crate) async fn slot(&self, deadline: Instant) -> Result<SemaphorePermit<'_>> {
        let waiting = timeout_at(deadline, self.acquires.acquire()).await;
        waiting.ok().and_then(Result::ok).ok_or_else(error::all_busy)
    }

    /// Decides by a statement for this request only. With a `turn`, by the one that does not wait for the key.
    async fn acquire_alone(
        &self,
        values: &AcquireValues<'_>,
        turn: Option<Turn>,
        deadline: Instant,
    ) -> Result<AcquireOutcome> {
        let _slot = self.slot(deadline).await?;
        let mut session = self.pool.get(deadline).await?;
        let row = match self.acquire_on(&mut session, values, turn, deadline).await {
            // Nothing was done, and the session is fit for another try.
            Err(error) if error::names_missing_column(&error) && self.look_again(&mut session, deadline).await? => {
                self.acquire_on(&mut session, values, None, deadline).await
            }
            outcome => outcome,
        }?;
        read_acquire(&row)
    }

    /// Decides by one statement where the connection is ours alone. Whoever finds somebody else at the key comes again
    /// with the gate, which waits for the advisory lock before the deciding statement takes its snapshot; it gives its
    /// turn to others before it waits.
    async fn acquire_on(
        &self,
        session: &mut Session,
        values: &AcquireValues<'_>,
        turn: Option<Turn>,
        deadline: Instant,
    ) -> Result<Row> {
        let (manner, params) = (self.manner(session), values.params());
        if let Some(turn) = turn.filter(|_| manner.is_direct) {
            let call = Call { sql: &self.statements().acquire_alone, params: &params };
            let started = Instant::now();
            let outcome = pipeline::decide(session, manner, call, deadline).await;
            turn.finished(started.elapsed(), 1);
            match outcome {
                Err(error) if error::undid_itself(&error) => {}
                Ok(row) if column::<Option<bool>>(&row, "passed")? == Some(false) => {}
                outcome => return outcome,
            }
        }
        let gate = [text(&values.storage_key), text(&self.lock_timeout), text(&self.statement_timeout)];
        let gate = Call { sql: &self.statements().acquire_gate, params: &gate };
        let call = Call { sql: &self.statements().acquire, params: &params };
        pipeline::transact(session, manner, gate, call, deadline).await
    }

    pub(crate) async fn release(self: &Arc<Self>, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let deadline = self.deadline();
        match self.meet(|| Question::Release(lock_id.clone()), deadline).await? {
            Met::First(turn) => {
                let started = Instant::now();
                let outcome = self.release_alone(lock_id, deadline).await;
                turn.finished(started.elapsed(), 1);
                outcome
            }
            Met::Decided(Decision::Release(outcome)) => Ok(outcome),
            Met::Decided(Decision::Acquire(_)) | Met::Undecided => self.release_alone(lock_id, deadline).await,
        }
    }

    async fn release_alone(&self, lock_id: &LockId, deadline: Instant) -> Result<ReleaseOutcome> {
        let id = Hidden(lock_id.as_str());
        let row = self.change(|all| &all.release, &[text(&id)], deadline).await?;
        read_released(&row)
    }

    pub(crate) async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let deadline = self.deadline_within(ttl);
        let (id, ttl) = (Hidden(lock_id.as_str()), ttl.as_millis());
        let row = self.change(|all| &all.extend, &[text(&id), number(&ttl)], deadline).await?;
        match column::<Option<i64>>(&row, "expires_at_ms")? {
            Some(millis) => {
                let asked = column::<Option<bool>>(&row, "asked")?.unwrap_or(false);
                Ok(ExtendOutcome::Extended(Extension::new(Timestamp::from_millis(millis)).asked_for(asked)))
            }
            None => read_absent(&row).map(|why| ExtendOutcome::Absent(Some(why))),
        }
    }

    pub(crate) async fn is_locked(self: &Arc<Self>, key: &Key) -> Result<bool> {
        let names = Names::new(key)?;
        let storage_key = Hidden(&names.lock);
        let Some(row) = self.ask_one(|all| &all.is_locked, &storage_key).await? else { return Ok(false) };
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
            let (storage_key, deadline) = (Hidden(&storage_key), inner.deadline());
            drop(inner.change(|all| &all.purge_key, &[text(&storage_key)], deadline).await);
        });
    }

    pub(crate) async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let row = match query {
            Lookup::Key(key) => {
                let names = Names::new(key)?;
                self.ask_one(|all| &all.lookup_by_key, &Hidden(&names.lock)).await?
            }
            Lookup::LockId(id) => self.ask_one(|all| &all.lookup_by_lock_id, &Hidden(id.as_str())).await?,
        };
        let Some(row) = row else { return Ok(None) };
        let Some(info) = read_info(&row)? else { return Ok(None) };
        let is_asked_for = match query {
            Lookup::Key(key) => info.reveal().key == key,
            Lookup::LockId(id) => info.reveal().lock_id == id,
        };
        Ok(is_asked_for.then_some(info))
    }

    pub(crate) async fn purge(&self) -> Result<u64> {
        let mut total = 0;
        loop {
            let row = self.change(|all| &all.purge, &[], self.deadline()).await?;
            let removed = u64::try_from(column::<i64>(&row, "removed")?).unwrap_or(0);
            total += removed;
            if removed < 1000 {
                return Ok(total);
            }
        }
    }

    async fn ask_one(&self, pick: impl Fn(&Statements) -> &Sql, name: &Hidden<'_>) -> Result<Option<Row>> {
        let rows = self.ask_all(pick, &[text(name)]).await?;
        Ok(rows.into_iter().next())
    }

    /// Runs a statement that only reads.
    pub(crate) async fn ask_all(&self, pick: impl Fn(&Statements) -> &Sql, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let deadline = self.deadline();
        let mut session = self.pool.get(deadline).await?;
        let manner = self.manner(&session);
        let call = || Call { sql: pick(self.statements()), params };
        match pipeline::ask(&mut session, manner, call(), deadline).await {
            Err(error) if error::names_missing_column(&error) && self.look_again(&mut session, deadline).await? => {
                pipeline::ask(&mut session, manner, call(), deadline).await
            }
            outcome => outcome,
        }
    }

    /// Runs a statement that takes the locks it needs by itself, in a transaction of its own.
    pub(crate) async fn change(
        &self,
        pick: impl Fn(&Statements) -> &Sql,
        params: &[Param<'_>],
        deadline: Instant,
    ) -> Result<Row> {
        let mut session = self.pool.get(deadline).await?;
        let call = || Call { sql: pick(self.statements()), params };
        match self.change_on(&mut session, call(), deadline).await {
            // Nothing was done, and the session is fit for another try.
            Err(error) if error::names_missing_column(&error) && self.look_again(&mut session, deadline).await? => {
                self.change_on(&mut session, call(), deadline).await
            }
            outcome => outcome,
        }
    }

    async fn change_on(&self, session: &mut Session, decision: Call<'_>, deadline: Instant) -> Result<Row> {
        let manner = self.manner(session);
        if manner.is_direct {
            return pipeline::decide(session, manner, decision, deadline).await;
        }
        let gate = [text(&self.lock_timeout), text(&self.statement_timeout)];
        let gate = Call { sql: &self.statements().bounds_gate, params: &gate };
        pipeline::transact(session, manner, gate, decision, deadline).await
    }
}

/// Lets the next clean-up begin when this one ends, also if its task was dropped.
struct Cleaning(Arc<Inner>);

impl Drop for Cleaning {
    fn drop(&mut self) {
        self.0.cleaning.store(false, Ordering::Release);
    }
}

/// The parameters of `acquire.sql`, kept alive while they are sent.
pub(crate) struct AcquireValues<'a> {
    storage_key: Hidden<'a>,
    fence_key: Hidden<'a>,
    lock_id: Hidden<'a>,
    ttl: i64,
    user_key: Hidden<'a>,
    floored: bool,
    label: Option<Hidden<'a>>,
}

impl<'a> AcquireValues<'a> {
    pub(crate) fn new(names: &'a Names, request: AcquireRequest<'a>, floored: bool) -> Self {
        Self {
            storage_key: Hidden(&names.lock),
            fence_key: Hidden(&names.fence),
            lock_id: Hidden(request.lock_id.as_str()),
            ttl: request.ttl.as_millis(),
            user_key: Hidden(request.key.as_str()),
            floored,
            label: request.label.map(|label| Hidden(label.as_str())),
        }
    }

    pub(crate) fn params(&self) -> [Param<'_>; 7] {
        [
            text(&self.storage_key),
            text(&self.fence_key),
            text(&self.lock_id),
            number(&self.ttl),
            text(&self.user_key),
            flag(&self.floored),
            text(&self.label),
        ]
    }
}
