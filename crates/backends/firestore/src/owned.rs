//! Which lock does an id own, and what may be done with it?
//!
//! Found by a query on `lockId`, without a limit: a lock id is unique, so two documents that carry one mean that somebody
//! copied data. A dead copy is passed over (and cleaned up by the next write); several live ones are nobody's to
//! touch. Writes name the version that the query returned, so a takeover in between is never harmed.

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::structured_query::field_filter::Operator;
use syncguard_core::time::{CLEANUP_GUARD_MS, is_live};
use syncguard_core::{AbsentReason, ExtendOutcome, LockError, LockId, ReleaseOutcome, Result, Timestamp, Ttl};

use crate::attempt::Attempt;
use crate::backend::FirestoreBackend;
use crate::document::{EXPIRES_AT, LOCK_ID, StoredLock, delete, integer, string, write_expiry};
use crate::error::{Kind, RpcError};

/// What a lock id owns at a moment.
pub(crate) struct Owned {
    pub(crate) live: Option<StoredLock>,
    /// Documents with this id whose lease is over.
    dead: Vec<StoredLock>,
    pub(crate) now: Timestamp,
}

impl Owned {
    fn absent(&self) -> AbsentReason {
        if self.dead.is_empty() { AbsentReason::NotFound } else { AbsentReason::Expired }
    }

    /// Copies that have been dead for long enough to be removed beside the live one.
    fn leftovers(&self) -> impl Iterator<Item = &StoredLock> {
        self.dead.iter().filter(|lock| is_long_dead(lock, self.now))
    }
}

impl FirestoreBackend {
    pub(crate) async fn find_owned(&self, lock_id: &LockId, attempt: &Attempt) -> Result<Owned> {
        let filter = (LOCK_ID, Operator::Equal, string(lock_id.as_str()));
        let found = self.rpc.find(&self.options.collection, filter, None, attempt.deadline).await;
        let found = found.map_err(|error| self.explain_query(error, attempt))?;
        let now = self.now();
        let mut owned = Owned { live: None, dead: Vec::new(), now };
        let mut live = 0_u32;
        let copies = found.documents.len();
        for document in found.documents {
            let lock = StoredLock::read(document)?;
            // The index answered; whether it is really ours is for the document to say.
            if lock.lock_id != *lock_id {
                continue;
            }
            if is_live(lock.expires_at, now) {
                live += 1;
                owned.live = Some(lock);
            } else {
                owned.dead.push(lock);
            }
        }
        if copies > 1 {
            tracing::warn!(target: "syncguard", lock_id_hash = %lock_id.hash(), copies, live, "several documents carry one lock id");
        }
        if live > 1 {
            return Err(LockError::internal(format!("{live} live locks carry one lock id"))
                .with_hint("documents were copied by hand or restored; remove the copies, or let their leases end"));
        }
        Ok(owned)
    }

    pub(crate) async fn release_owned(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let mut attempt = self.begin();
        let mut last_seen: Option<Timestamp> = None;
        loop {
            let owned = self.find_owned(lock_id, &attempt).await?;
            let Some(lock) = &owned.live else {
                // We saw it alive, asked for its deletion, and nobody may have taken a living lease: that was us.
                let ours = attempt.is_doubtful() && last_seen.is_some_and(|expiry| is_live(expiry, owned.now));
                return Ok(if ours { ReleaseOutcome::Released } else { ReleaseOutcome::Absent(Some(owned.absent())) });
            };
            let mut writes = vec![delete(lock)];
            writes.extend(owned.leftovers().map(delete));
            last_seen = Some(lock.expires_at);
            match self.rpc.commit(writes, attempt.deadline).await {
                Ok(()) => return Ok(ReleaseOutcome::Released),
                Err(error) => attempt.write_failed(error).await?,
            }
        }
    }

    pub(crate) async fn extend_owned(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let mut attempt = self.begin();
        loop {
            let owned = self.find_owned(lock_id, &attempt).await?;
            let Some(lock) = &owned.live else { return Ok(ExtendOutcome::Absent(Some(owned.absent()))) };
            let expires_at = owned.now.plus(ttl);
            let mut writes = vec![write_expiry(lock, expires_at)];
            writes.extend(owned.leftovers().map(delete));
            match self.rpc.commit(writes, attempt.deadline).await {
                Ok(()) => return Ok(ExtendOutcome::Extended { expires_at }),
                Err(error) => attempt.write_failed(error).await?,
            }
        }
    }

    /// Removes a lock that has been dead for long. Its failure is nobody's failure.
    pub(crate) async fn clean_up(&self, lock: &StoredLock, now: Timestamp) {
        if is_long_dead(lock, now) {
            let deleted = self.rpc.commit(vec![delete(lock)], self.begin().deadline).await;
            if let Err(error) = deleted {
                tracing::debug!(target: "syncguard", kind = ?error.kind, "a dead lock was not cleaned up");
            }
        }
    }

    /// Removes every lock that has been dead for long, by this machine's clock *and* by the server's: a clock that runs
    /// ahead must not sweep away what others hold.
    pub(crate) async fn purge(&self) -> Result<u64> {
        let mut purged = 0;
        for _ in 0..PURGE_ROUNDS {
            let attempt = self.begin();
            let now = self.now();
            let limit = now.as_millis().saturating_sub(CLEANUP_GUARD_MS);
            let filter = (EXPIRES_AT, Operator::LessThan, integer(limit));
            let found = self.rpc.find(&self.options.collection, filter, Some(PURGE_BATCH), attempt.deadline).await;
            let found = found.map_err(RpcError::into_lock_error)?;
            let more = i32::try_from(found.documents.len()).is_ok_and(|count| count >= PURGE_BATCH);
            let server_now = found.read_time.map_or(now, server_time).min(now);
            // What is not a lock is not ours to remove.
            let locks = found.documents.into_iter().filter_map(|document| StoredLock::read(document).ok());
            let writes: Vec<_> =
                locks.filter(|lock| is_long_dead(lock, server_now)).map(|lock| delete(&lock)).collect();
            if writes.is_empty() {
                break;
            }
            purged += self.rpc.write_each(writes, attempt.deadline).await.map_err(RpcError::into_lock_error)?;
            if !more {
                break;
            }
        }
        Ok(purged)
    }

    /// A query that fails on a precondition lacks its index.
    fn explain_query(&self, error: RpcError, attempt: &Attempt) -> LockError {
        if error.kind != Kind::Answered(tonic::Code::FailedPrecondition) {
            return attempt.read_failed(error);
        }
        let (collection, project, database) = (&self.options.collection, &self.options.project, &self.options.database);
        LockError::invalid("the single-field index on `lockId` is missing").with_hint(format!(
            "gcloud firestore indexes fields update lockId --collection-group={collection} \
             --index=order=ascending --project={project} --database='{database}'"
        ))
    }
}

const PURGE_BATCH: i32 = 300;
/// Bounds one call; the next one goes on where this one stopped.
const PURGE_ROUNDS: u32 = 100;

fn is_long_dead(lock: &StoredLock, now: Timestamp) -> bool {
    now.as_millis().saturating_sub(lock.expires_at.as_millis()) > CLEANUP_GUARD_MS
}

fn server_time(time: prost_types::Timestamp) -> Timestamp {
    let millis = time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000));
    Timestamp::from_millis(millis)
}
