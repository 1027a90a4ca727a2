//! How do several requests become one round trip?
//!
//! Acquires as one statement and releases as another, sent together, and only on connections of our own, whose sessions
//! have the settings that they need. What such a statement leaves undecided, and everything it took back, is asked again
//! alone: a strange row or a crowded key never fails the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, LockError, LockId, ReleaseOutcome, Result};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::backend::Inner;
use crate::names::Names;
use crate::pipeline;
use crate::pool::Session;
use crate::row::{column, read_acquire, read_released};
use crate::statement::{Call, HiddenList, Param, flag};
use crate::together::{Asked, Entered, Place, Together};

/// How long a statement for many is given at least, as much as one alone.
const SHORTEST: Duration = Duration::from_secs(1);

/// What goes together.
pub(crate) enum Question {
    Acquire(AcquireQuestion),
    Release(LockId),
}

/// An acquire that waits to be asked together with others.
pub(crate) struct AcquireQuestion {
    storage_key: String,
    fence_key: String,
    lock_id: LockId,
    ttl: i64,
    user_key: String,
    label: Option<String>,
}

/// What was decided.
pub(crate) enum Decision {
    Acquire(AcquireOutcome),
    Release(ReleaseOutcome),
}

pub(crate) type Crowd = Together<Question, Decision>;
pub(crate) type Turn = Place<Question, Decision>;

impl Question {
    pub(crate) fn acquire(names: &Names, request: AcquireRequest<'_>) -> Self {
        Self::Acquire(AcquireQuestion {
            storage_key: names.lock.clone(),
            fence_key: names.fence.clone(),
            lock_id: request.lock_id.clone(),
            ttl: request.ttl.as_millis(),
            user_key: request.key.as_str().to_owned(),
            label: request.label.map(|label| label.as_str().to_owned()),
        })
    }
}

/// What an operation is to do after it met others.
pub(crate) enum Met {
    /// Ask alone, by the way that waits for nobody.
    First(Turn),
    Decided(Decision),
    /// Ask alone, by the way that waits.
    Undecided,
}

impl Inner {
    /// Waits for a turn, or for the answer that somebody else fetched.
    pub(crate) async fn meet(self: &Arc<Self>, ask: impl FnOnce() -> Question, deadline: Instant) -> Result<Met> {
        // Whether sessions are ours alone, as far as is known before one is taken.
        if self.pool.behind_pooler() != Some(false) {
            return Ok(Met::Undecided);
        }
        let decided = match self.crowd.enter(ask, deadline).await? {
            Entered::Alone(turn) => return Ok(Met::First(turn)),
            Entered::Lead(turn, all, answer) => {
                tokio::spawn(self.clone().decide_for(all, turn, deadline));
                answer.wait().await?
            }
            Entered::Answered(decided) => decided,
        };
        Ok(decided.map_or(Met::Undecided, Met::Decided))
    }

    /// Asks for all, and answers each.
    async fn decide_for(self: Arc<Self>, all: Vec<Asked<Question, Decision>>, turn: Turn, deadline: Instant) {
        let (mut acquires, mut releases, mut ids) = (Vec::new(), Vec::new(), HashSet::new());
        for asked in all {
            match &asked.question {
                Question::Acquire(_) => acquires.push(asked),
                Question::Release(id) if ids.insert(id.clone()) => releases.push(asked),
                // The statement would free one lock for both.
                Question::Release(_) => asked.answer(Ok(None)),
            }
        }
        let started = Instant::now();
        // Who asks for all has waited longest, and the others need not answer for it.
        let deadline = deadline.max(started + SHORTEST);
        let [taken, freed] = self.ask_for(&mut acquires, &releases, deadline).await;
        let (took, number) = (started.elapsed(), acquires.len() + releases.len());
        answer(acquires, taken, |row| match column::<Option<bool>>(row, "passed")? {
            Some(false) => Ok(None),
            _ => read_acquire(row).map(|outcome| Some(Decision::Acquire(outcome))),
        });
        answer(releases, freed, |row| match column::<Option<bool>>(row, "again")? {
            Some(true) => Ok(None),
            _ => read_released(row).map(|outcome| Some(Decision::Release(outcome))),
        });
        // Who got its answer often asks the next thing at once, and may still go with those who wait.
        tokio::task::yield_now().await;
        turn.finished(took, number);
    }

    /// The rows of both statements; none where many must not be decided at once.
    async fn ask_for(
        &self,
        acquires: &mut Vec<Asked<Question, Decision>>,
        releases: &[Asked<Question, Decision>],
        deadline: Instant,
    ) -> [Result<Vec<Row>>; 2] {
        let (_slot, mut session) = match self.connection_for(!acquires.is_empty(), deadline).await {
            Ok(both) => both,
            Err(error) => return [Err(error.clone()), Err(error)],
        };
        let manner = self.manner(&session);
        if !manner.is_direct {
            return [Ok(Vec::new()), Ok(Vec::new())];
        }
        // Who left while this waited for its connection may have given its lock id back already: a lock that is taken
        // for it now would be nobody's.
        acquires.retain(Asked::is_wanted);
        let values = AcquireLists::new(acquires);
        let to_acquire = values.params(&self.settings.fence_floor);
        let ids = HiddenList(
            releases
                .iter()
                .filter_map(|asked| match &asked.question {
                    Question::Release(id) => Some(id.as_str()),
                    Question::Acquire(_) => None,
                })
                .collect::<Vec<_>>(),
        );
        let to_release: [Param<'_>; 1] = [(&ids, Type::TEXT_ARRAY)];
        let statements = self.statements();
        let calls = [
            (!acquires.is_empty()).then_some(Call { sql: &statements.acquire_many, params: &to_acquire }),
            (!releases.is_empty()).then_some(Call { sql: &statements.release_many, params: &to_release }),
        ];
        pipeline::decide_both(&mut session, manner, calls, deadline).await
    }

    async fn connection_for(
        &self,
        acquires: bool,
        deadline: Instant,
    ) -> Result<(Option<SemaphorePermit<'_>>, Session)> {
        let slot = if acquires { Some(self.slot(deadline).await?) } else { None };
        Ok((slot, self.pool.get(deadline).await?))
    }
}

/// The parameters of `acquire_many.sql`, kept alive while they are sent.
struct AcquireLists<'a> {
    storage_keys: HiddenList<&'a str>,
    fence_keys: HiddenList<&'a str>,
    lock_ids: HiddenList<&'a str>,
    ttls: Vec<i64>,
    user_keys: HiddenList<&'a str>,
    labels: HiddenList<Option<&'a str>>,
}

impl<'a> AcquireLists<'a> {
    fn new(all: &'a [Asked<Question, Decision>]) -> Self {
        let questions = || {
            all.iter().filter_map(|asked| match &asked.question {
                Question::Acquire(question) => Some(question),
                Question::Release(_) => None,
            })
        };
        let texts = |pick: fn(&'a AcquireQuestion) -> &'a str| HiddenList(questions().map(pick).collect());
        Self {
            storage_keys: texts(|question| &question.storage_key),
            fence_keys: texts(|question| &question.fence_key),
            lock_ids: texts(|question| question.lock_id.as_str()),
            ttls: questions().map(|question| question.ttl).collect(),
            user_keys: texts(|question| &question.user_key),
            labels: HiddenList(questions().map(|question| question.label.as_deref()).collect()),
        }
    }

    fn params<'b>(&'b self, floored: &'b bool) -> [Param<'b>; 7] {
        [
            (&self.storage_keys, Type::TEXT_ARRAY),
            (&self.fence_keys, Type::TEXT_ARRAY),
            (&self.lock_ids, Type::TEXT_ARRAY),
            (&self.ttls, Type::INT8_ARRAY),
            (&self.user_keys, Type::TEXT_ARRAY),
            (&self.labels, Type::TEXT_ARRAY),
            flag(floored),
        ]
    }
}

/// Gives everybody its answer. What certainly did nothing is asked again alone, so that one request's failure is not
/// everybody's.
fn answer<Q, A>(all: Vec<Asked<Q, A>>, rows: Result<Vec<Row>>, read: impl Fn(&Row) -> Result<Option<A>>) {
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) if error.is_ambiguous() => {
            return all.into_iter().for_each(|asked| asked.answer(Err(error.clone())));
        }
        Err(_) => Vec::new(),
    };
    if rows.is_empty() {
        return all.into_iter().for_each(|asked| asked.answer(Ok(None)));
    }
    let mut answers: Vec<Option<Result<Option<A>>>> = all.iter().map(|_| None).collect();
    for row in &rows {
        let place = column::<i64>(row, "place").ok().and_then(|place| usize::try_from(place - 1).ok());
        if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
            *answer = Some(read(row));
        }
    }
    for (asked, answer) in all.into_iter().zip(answers) {
        // The server acted, and did not say for whom.
        let missing = || Err(LockError::internal("postgres answered without a row").ambiguous());
        asked.answer(answer.unwrap_or_else(missing));
    }
}
