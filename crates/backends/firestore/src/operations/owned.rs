//! Which lock does an id own, and what may be done with it?
//!
//! Found by a query on `lockId`, without a limit: a lock id is unique, so two documents that carry one mean that
//! somebody copied data. A dead copy is passed over (and cleaned up by the next write); several live ones are nobody's
//! to touch. Writes name the version that the query returned, so a takeover in between is never harmed.

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::structured_query::field_filter::Operator;
use syncguard_core::time::is_live;
use syncguard_core::{AbsentReason, LockError, LockId, Result, Timestamp};

use super::cleanup::{earlier, is_long_dead};
use super::retry::WriteRetry;
use crate::backend::FirestoreBackend;
use crate::document::{LOCK_ID, StoredLock, string};
use crate::error::{Kind, RpcError};

/// What a lock id owns at a moment.
pub(crate) struct Owned {
    pub(crate) live: Option<StoredLock>,
    /// Documents with this id whose lease is over.
    dead: Vec<StoredLock>,
    pub(crate) now: Timestamp,
    /// The time by which copies are judged that are to be removed.
    cleanup_now: Timestamp,
}

impl Owned {
    pub(crate) fn absent(&self) -> AbsentReason {
        if self.dead.is_empty() { AbsentReason::NotFound } else { AbsentReason::Expired }
    }

    /// Copies that have been dead for long enough to be removed beside the live one.
    pub(crate) fn leftovers(&self) -> impl Iterator<Item = &StoredLock> {
        self.dead.iter().filter(|lock| is_long_dead(lock, self.cleanup_now))
    }
}

impl FirestoreBackend {
    pub(crate) async fn find_owned(&self, lock_id: &LockId, retry: &WriteRetry) -> Result<Owned> {
        let filter = (LOCK_ID, Operator::Equal, string(lock_id.as_str()));
        let found = self.rpc.find(&self.options.collection, filter, None, retry.patience).await;
        let found = found.map_err(|error| self.explain_query(error, LOCK_ID, retry))?;
        let now = self.now();
        let mut owned = Owned { live: None, dead: Vec::new(), now, cleanup_now: earlier(now, found.read_time) };
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

    /// A query that fails on a precondition lacks its index.
    pub(crate) fn explain_query(&self, error: RpcError, field: &str, retry: &WriteRetry) -> LockError {
        if error.kind != Kind::Answered(tonic::Code::FailedPrecondition) {
            return retry.read_failed(error);
        }
        let (collection, project, database) = (&self.options.collection, &self.options.project, &self.options.database);
        LockError::invalid(format!("the single-field index on `{field}` is missing")).with_hint(format!(
            "gcloud firestore indexes fields update {field} --collection-group={collection} \
             --index=order=ascending --project={project} --database='{database}'"
        ))
    }
}
