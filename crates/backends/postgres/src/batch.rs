//! How do several operations become one round trip?
//!
//! A carrier has a connection and everybody who may go: acquires as one statement, or releases as one, on connections of
//! our own, whose sessions have the settings that they need; elsewhere one operation at a time. One operation alone is the
//! same statement without arrays. A statement that failed did nothing for anybody, so each is asked again by itself: a
//! strange row never fails the others.

use std::sync::{Arc, PoisonError};

use syncguard_core::{AcquireOutcome, AcquireRequest, LockId, ReleaseOutcome, Result};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::admission::{Carrier, Line, Load, Question};
use crate::backend::Inner;
use crate::error;
use crate::names::Names;
use crate::pace::Road;
use crate::pool::{Use, acquire_slots};
use crate::row::{column, read_acquire, read_released};
use crate::statement::{Hidden, Sql, Statements, Values};

/// What goes together with others of its kind.
pub(crate) trait Batched: Question {
    const USE: Use;

    /// The statement for one of them, and the one for several.
    fn statement(all: &Statements) -> &[Sql; 2];

    fn values(all: &[Arc<Self>]) -> Values;

    /// `None` where somebody else is at the row.
    fn read(row: &Row) -> Result<Option<Self::Answer>>;
}

/// A lock that is wanted.
pub(crate) struct Acquire {
    names: Names,
    lock_id: LockId,
    ttl: i64,
    user_key: String,
    label: Option<String>,
    floored: bool,
}

impl Acquire {
    pub(crate) fn new(names: Names, request: AcquireRequest<'_>, floored: bool) -> Self {
        Self {
            names,
            lock_id: request.lock_id.clone(),
            ttl: request.ttl.as_millis(),
            user_key: request.key.as_str().to_owned(),
            label: request.label.map(|label| label.as_str().to_owned()),
            floored,
        }
    }
}

impl Question for Acquire {
    type Answer = AcquireOutcome;

    fn name(&self) -> &str {
        &self.names.lock
    }
}

impl Batched for Acquire {
    const USE: Use = Use::Statement;

    fn statement(all: &Statements) -> &[Sql; 2] {
        &all.acquire
    }

    fn values(all: &[Arc<Self>]) -> Values {
        let text =
            |pick: fn(&Self) -> &str| one_or_many(all, |one| pick(one).to_owned(), [Type::TEXT, Type::TEXT_ARRAY]);
        vec![
            text(|one| &one.names.lock),
            text(|one| &one.names.fence),
            text(|one| one.lock_id.as_str()),
            one_or_many(all, |one| one.ttl, [Type::INT8, Type::INT8_ARRAY]),
            text(|one| &one.user_key),
            one_or_many(all, |one| one.label.clone(), [Type::TEXT, Type::TEXT_ARRAY]),
            (Box::new(all.first().is_some_and(|one| one.floored)), Type::BOOL),
        ]
    }

    fn read(row: &Row) -> Result<Option<AcquireOutcome>> {
        match column::<Option<bool>>(row, "passed")? {
            Some(false) => Ok(None),
            _ => read_acquire(row).map(Some),
        }
    }
}

/// A lock that is given back.
pub(crate) struct Release(pub(crate) LockId);

impl Question for Release {
    type Answer = ReleaseOutcome;

    fn name(&self) -> &str {
        self.0.as_str()
    }
}

impl Batched for Release {
    const USE: Use = Use::Release;

    fn statement(all: &Statements) -> &[Sql; 2] {
        &all.release
    }

    fn values(all: &[Arc<Self>]) -> Values {
        vec![one_or_many(all, |one| one.0.as_str().to_owned(), [Type::TEXT, Type::TEXT_ARRAY])]
    }

    fn read(row: &Row) -> Result<Option<ReleaseOutcome>> {
        match column::<Option<bool>>(row, "again")? {
            Some(true) => Ok(None),
            _ => read_released(row).map(Some),
        }
    }
}

/// A parameter of the statement for one, or of the one for several.
fn one_or_many<Q, T>(
    all: &[Arc<Q>],
    pick: impl Fn(&Q) -> T,
    [one, many]: [Type; 2],
) -> (Box<dyn ToSql + Sync + Send>, Type)
where
    T: ToSql + Sync + Send + 'static,
{
    match all {
        [only] => (Box::new(Hidden(pick(only))), one),
        all => (Box::new(Hidden(all.iter().map(|one| pick(one)).collect::<Vec<T>>())), many),
    }
}

/// The lines of one runtime.
pub(crate) struct Lines {
    acquires: Arc<Line<Acquire>>,
    releases: Arc<Line<Release>>,
    /// Ends with the runtime.
    alive: AbortHandle,
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.alive.abort();
    }
}

impl Inner {
    pub(crate) async fn ask_to_acquire(
        self: &Arc<Self>,
        question: Arc<Acquire>,
        deadline: Instant,
    ) -> Result<Option<AcquireOutcome>> {
        let carry = |carrier| drop(tokio::spawn(self.clone().carry(carrier)));
        self.lines().acquires.ask(question, deadline, carry).await
    }

    pub(crate) async fn ask_to_release(
        self: &Arc<Self>,
        question: Arc<Release>,
        deadline: Instant,
    ) -> Result<Option<ReleaseOutcome>> {
        let carry = |carrier| drop(tokio::spawn(self.clone().carry(carrier)));
        self.lines().releases.ask(question, deadline, carry).await
    }

    /// Of the runtime that the caller is on, so that one that stops keeps nobody on another waiting.
    fn lines(&self) -> Arc<Lines> {
        let mut all = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let here = Handle::current().id();
        if let Some(lines) = all.get(&here) {
            return lines.clone();
        }
        all.retain(|_, lines| !lines.alive.is_finished());
        let size = self.pool.size();
        let road = Road::new(size);
        let lines = Arc::new(Lines {
            acquires: Line::new(acquire_slots(size), road.clone()),
            releases: Line::new(size, road),
            alive: tokio::spawn(std::future::pending::<()>()).abort_handle(),
        });
        all.insert(here, lines.clone());
        lines
    }

    /// Asks for everybody in line, as long as anybody is.
    pub(crate) async fn carry<Q: Batched>(self: Arc<Self>, carrier: Carrier<Q>) {
        while let Some(deadline) = carrier.next() {
            let session = self.pool.get(Q::USE, deadline).await;
            // Who came or left while this waited for its connection is asked for, or is not.
            let load = carrier.load(self.goes_together());
            let Some(deadline) = load.deadline() else { continue };
            let mut session = match session {
                Ok(session) => session,
                Err(error) => {
                    load.answer(std::iter::repeat_with(|| Err(error.clone())));
                    continue;
                }
            };
            let started = Instant::now();
            let (pick, values) = (usize::from(load.questions.len() > 1), Q::values(&load.questions));
            let rows = self.ask_on(&mut session, |all| &Q::statement(all)[pick], &values, true, deadline).await;
            if self.goes_together() {
                load.note(started.elapsed());
            }
            // Back before the answers are out, for those who ask next.
            drop(session);
            settle(load, rows);
            tokio::task::yield_now().await;
        }
    }
}

fn settle<Q: Batched>(load: Load<Q>, rows: Result<Vec<Row>>) {
    let number = load.questions.len();
    match rows {
        Ok(rows) => load.answer(in_order::<Q>(&rows, number)),
        Err(error) if number > 1 && !error.is_ambiguous() => load.put_back(),
        // Somebody was there after its snapshot, and it took back what it did.
        Err(error) if error::undid_itself(&error) => load.answer([Ok(None)]),
        Err(error) => load.answer(std::iter::repeat_with(|| Err(error.clone()))),
    }
}

fn in_order<Q: Batched>(rows: &[Row], number: usize) -> Vec<Result<Option<Q::Answer>>> {
    let mut answers: Vec<Option<Result<Option<Q::Answer>>>> = (0..number).map(|_| None).collect();
    for row in rows {
        let place = column::<i64>(row, "place").ok().and_then(|place| usize::try_from(place - 1).ok());
        if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
            *answer = Some(Q::read(row));
        }
    }
    // The server acted, and did not say for whom.
    let missing = || Err(error::no_row().ambiguous());
    answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}
