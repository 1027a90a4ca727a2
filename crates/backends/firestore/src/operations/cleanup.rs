//! How do dead locks go away?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::structured_query::field_filter::Operator;
use syncguard_core::time::CLEANUP_GUARD_MS;
use syncguard_core::{Result, Timestamp};

use crate::backend::FirestoreBackend;
use crate::document::{EXPIRES_AT, StoredLock, delete, integer};
use crate::error::RpcError;

const PURGE_BATCH: i32 = 300;
/// Bounds one call; the next one goes on where this one stopped.
const PURGE_ROUNDS: u32 = 100;

impl FirestoreBackend {
    /// Begins to remove a lock if it has been dead for long. Nobody waits for it, one removal at a time is enough, and
    /// its failure is nobody's failure.
    pub(crate) fn clean_up_later(&self, lock: &StoredLock, now: Timestamp) {
        if !is_long_dead(lock, now) || self.is_cleaning.swap(true, Ordering::AcqRel) {
            return;
        }
        let cleaning = Cleaning(self.is_cleaning.clone());
        let (rpc, delete, patience) = (self.rpc.clone(), delete(lock), self.begin().patience);
        tokio::spawn(async move {
            if let Err(error) = rpc.commit(vec![delete], patience).await {
                tracing::debug!(target: "syncguard", kind = ?error.kind, "a dead lock was not cleaned up");
            }
            drop(cleaning);
        });
    }

    /// Removes every lock that has been dead for long, by this machine's clock *and* by the server's: a clock that runs
    /// ahead must not sweep away what others hold.
    pub(crate) async fn purge(&self) -> Result<u64> {
        let mut purged = 0;
        for _ in 0..PURGE_ROUNDS {
            let retry = self.begin();
            let now = self.now();
            let limit = now.as_millis().saturating_sub(CLEANUP_GUARD_MS);
            let filter = (EXPIRES_AT, Operator::LessThan, integer(limit));
            let found = self.rpc.find(&self.options.collection, filter, Some(PURGE_BATCH), retry.patience).await;
            let found = found.map_err(RpcError::into_lock_error)?;
            let more = i32::try_from(found.documents.len()).is_ok_and(|count| count >= PURGE_BATCH);
            let server_now = earlier(now, found.read_time);
            // What is not a lock is not ours to remove.
            let locks = found.documents.into_iter().filter_map(|document| StoredLock::read(document).ok());
            let writes: Vec<_> =
                locks.filter(|lock| is_long_dead(lock, server_now)).map(|lock| delete(&lock)).collect();
            if writes.is_empty() {
                break;
            }
            purged += self.rpc.write_each(writes, retry.patience).await.map_err(RpcError::into_lock_error)?;
            if !more {
                break;
            }
        }
        Ok(purged)
    }
}

/// Whether a lock is past the cleanup guard.
pub(crate) fn is_long_dead(lock: &StoredLock, now: Timestamp) -> bool {
    now.as_millis().saturating_sub(lock.expires_at.as_millis()) > CLEANUP_GUARD_MS
}

/// The time by which cleanup judges: this machine's or the server's, whichever is behind. A clock that runs ahead must
/// not remove what others hold.
pub(crate) fn earlier(now: Timestamp, read_time: Option<prost_types::Timestamp>) -> Timestamp {
    read_time.map_or(now, |time| {
        let millis = time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000));
        Timestamp::from_millis(millis).min(now)
    })
}

/// A removal on its way. Its end lets the next one begin, also when it ends with its runtime.
struct Cleaning(Arc<AtomicBool>);

impl Drop for Cleaning {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
