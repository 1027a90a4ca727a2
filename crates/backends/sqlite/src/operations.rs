//! What does each operation do to the tables?
//!
//! Every function here runs inside a transaction that nobody else can write into, reads the clock there, decides
//! by the one liveness predicate, and checks everything that can be wrong *before* its first write: a
//! [`Failure::Own`] leaves the transaction to the other operations in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, params};
use syncguard_core::time::{CLEANUP_GUARD_MS, free_in, is_live};
use syncguard_core::{
    AbsentReason, AcquireOutcome, AskOutcome, Clock, Contention, ExtendOutcome, Extension, Key, Label, Lease,
    LockError, LockId, ReleaseOutcome, Timestamp, Ttl,
};

use crate::reserve::Giver;
use crate::row::{Stored, lock_of_id, lock_of_key};

const TAKE: &str = include_str!("../sql/take.sql");
const FREE: &str = include_str!("../sql/free.sql");
const RENEW: &str = include_str!("../sql/renew.sql");
const ASK: &str = include_str!("../sql/ask.sql");
const PURGE: &str = include_str!("../sql/purge.sql");
const PURGE_KEY: &str = include_str!("../sql/purge_key.sql");

/// How many dead locks one transaction removes: others want their turn too.
pub(crate) const PURGE_AT_ONCE: u64 = 2_000;

/// Something that writes.
#[derive(Debug)]
pub(crate) enum Operation {
    Acquire(Acquire),
    Release {
        lock_id: LockId,
    },
    Extend {
        lock_id: LockId,
        ttl: Ttl,
    },
    Ask {
        lock_id: LockId,
    },
    Purge,
    /// Asked for by a look, which does not wait for it.
    PurgeKey {
        name: String,
        _cleaning: Cleaning,
    },
}

/// One attempt to acquire, with the names under which it is stored.
#[derive(Debug)]
pub(crate) struct Acquire {
    pub(crate) key: Key,
    pub(crate) name: String,
    pub(crate) fence_name: String,
    pub(crate) lock_id: LockId,
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
}

/// What an operation led to, once its transaction is committed.
#[derive(Debug)]
pub(crate) enum Answer {
    Acquired(AcquireOutcome),
    /// With the name that became free, for waiters.
    Released(ReleaseOutcome, Option<String>),
    Extended(ExtendOutcome),
    Asked(AskOutcome),
    Purged(u64),
}

/// A removal on its way: while it exists, no look starts another one.
#[derive(Debug)]
pub(crate) struct Cleaning(Arc<AtomicBool>);

impl Cleaning {
    /// None while another removal is on its way.
    pub(crate) fn begin(is_cleaning: &Arc<AtomicBool>) -> Option<Self> {
        (!is_cleaning.swap(true, Ordering::AcqRel)).then(|| Self(is_cleaning.clone()))
    }
}

impl Drop for Cleaning {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Why an operation has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Its own fault, and nothing was written: the rest of the transaction goes on.
    Own(LockError),
    /// The transaction is lost.
    Storage(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Storage(error)
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Own(error)
    }
}

impl Operation {
    /// Whether it must be on the disk before it is answered, where every commit is to be durable.
    ///
    /// A fence that was handed out must never be handed out again, and a lease that was promised must not shrink. A
    /// release or a purge that a power cut undoes is only a lock that its lease ends, a lost mark a question to repeat.
    pub(crate) fn must_survive_a_power_cut(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Extend { .. })
    }

    /// Whether it is still worth doing when its caller has left: freeing a lock is, taking one is not.
    pub(crate) fn outlives_its_caller(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::PurgeKey { .. })
    }

    /// Does it, inside the caller's transaction.
    pub(crate) fn run(&self, db: &Connection, clock: &dyn Clock, fences: &mut Giver) -> Result<Answer, Failure> {
        match self {
            Self::Acquire(request) => acquire(db, request, clock.wall(), fences).map(Answer::Acquired),
            Self::Release { lock_id } => {
                release(db, lock_id, clock.wall()).map(|(outcome, freed)| Answer::Released(outcome, freed))
            }
            Self::Extend { lock_id, ttl } => extend(db, lock_id, *ttl, clock.wall()).map(Answer::Extended),
            Self::Ask { lock_id } => ask(db, lock_id, clock.wall()).map(Answer::Asked),
            Self::Purge => {
                let limit = i64::try_from(PURGE_AT_ONCE).unwrap_or(i64::MAX);
                let removed = db.prepare_cached(PURGE)?.execute(params![newest_dead(clock), limit])?;
                Ok(Answer::Purged(u64::try_from(removed).unwrap_or(u64::MAX)))
            }
            Self::PurgeKey { name, .. } => {
                let removed = db.prepare_cached(PURGE_KEY)?.execute(params![newest_dead(clock), name])?;
                Ok(Answer::Purged(u64::try_from(removed).unwrap_or(u64::MAX)))
            }
        }
    }

    /// The answer that needs no transaction: somebody else holds the lock in the committed state.
    pub(crate) fn answer_without_writing(&self, db: &Connection, clock: &dyn Clock) -> Option<Answer> {
        let Self::Acquire(request) = self else { return None };
        let held = lock_of_key(db, &request.name).ok()??;
        match answer_held(&held, &request.lock_id, clock.wall()) {
            Some(Ok(contended @ AcquireOutcome::Contended(_))) => Some(Answer::Acquired(contended)),
            _ => None,
        }
    }
}

fn newest_dead(clock: &dyn Clock) -> i64 {
    clock.wall().as_millis().saturating_sub(CLEANUP_GUARD_MS)
}

fn acquire(db: &Connection, request: &Acquire, now: Timestamp, fences: &mut Giver) -> Result<AcquireOutcome, Failure> {
    if let Some(held) = lock_of_key(db, &request.name)?
        && let Some(answer) = answer_held(&held, &request.lock_id, now)
    {
        return Ok(answer?);
    }
    let fence = fences.next(db, &request.fence_name)?;
    let expires_at = now.plus(request.ttl);
    db.prepare_cached(TAKE)?.execute(params![
        request.name,
        request.lock_id.as_str(),
        expires_at.as_millis(),
        now.as_millis(),
        fence.to_string(),
        request.key.as_str(),
        request.label.as_ref().map(Label::as_str),
        request.ttl.as_millis(),
    ])?;
    Ok(AcquireOutcome::Acquired(Lease::new(fence, expires_at).observed_at(now)))
}

/// The answer to an acquire that finds a stored lock; none if that lock is dead.
fn answer_held(held: &Stored, asking: &LockId, now: Timestamp) -> Option<Result<AcquireOutcome, LockError>> {
    if !is_live(held.expires_at, now) {
        return None;
    }
    // A live lock that cannot be read is nobody's to take.
    Some(held.parse().map(|(owner, fence)| {
        if owner == *asking {
            AcquireOutcome::Acquired(Lease::new(fence, held.expires_at).observed_at(now))
        } else {
            AcquireOutcome::Contended(Contention::free_in(free_in(held.expires_at, now)))
        }
    }))
}

fn release(db: &Connection, lock_id: &LockId, now: Timestamp) -> Result<(ReleaseOutcome, Option<String>), Failure> {
    let held = match owned(db, lock_id, now)? {
        Ok(held) => held,
        Err(reason) => return Ok((ReleaseOutcome::Absent(Some(reason)), None)),
    };
    let changed = db.prepare_cached(FREE)?.execute(params![held.name, lock_id.as_str()])?;
    expect_one(changed)?;
    Ok((ReleaseOutcome::Released, Some(held.name)))
}

fn extend(db: &Connection, lock_id: &LockId, ttl: Ttl, now: Timestamp) -> Result<ExtendOutcome, Failure> {
    let held = match owned(db, lock_id, now)? {
        Ok(held) => held,
        Err(reason) => return Ok(ExtendOutcome::Absent(Some(reason))),
    };
    let expires_at = now.plus(ttl);
    let renewal = params![held.name, lock_id.as_str(), expires_at.as_millis(), ttl.as_millis()];
    expect_one(db.prepare_cached(RENEW)?.execute(renewal)?)?;
    Ok(ExtendOutcome::Extended(Extension::new(expires_at).asked_for(held.is_asked_for)))
}

fn ask(db: &Connection, lock_id: &LockId, now: Timestamp) -> Result<AskOutcome, Failure> {
    let Ok(held) = owned(db, lock_id, now)? else { return Ok(AskOutcome::Absent) };
    expect_one(db.prepare_cached(ASK)?.execute(params![held.name, lock_id.as_str()])?)?;
    Ok(AskOutcome::Asked)
}

/// Nothing is called done that changed nothing: an index that names a row which is not there is damaged.
fn expect_one(changed: usize) -> Result<(), Failure> {
    if changed == 1 {
        return Ok(());
    }
    Err(LockError::internal("the index of lock ids does not match the locks; nothing was changed")
        .with_hint("run `syncguard doctor`; `REINDEX` repairs an index")
        .into())
}

fn owned(db: &Connection, lock_id: &LockId, now: Timestamp) -> rusqlite::Result<Result<Stored, AbsentReason>> {
    Ok(match lock_of_id(db, lock_id)? {
        None => Err(AbsentReason::NotFound),
        // The index answered; whether the lock is really ours is for the row to say.
        Some(held) if held.lock_id != lock_id.as_str() => Err(AbsentReason::NotFound),
        Some(held) if is_live(held.expires_at, now) => Ok(held),
        Some(_) => Err(AbsentReason::Expired),
    })
}
