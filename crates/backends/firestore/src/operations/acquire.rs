//! How is a lock taken?
//!
//! Lock and counter are read together, and written together on the condition that neither has changed.

use syncguard_core::time::{free_in, is_live};
use syncguard_core::{AcquireOutcome, AcquireRequest, Contention, Fence, Lease, LockError, LockId, Result, Timestamp};

use crate::backend::FirestoreBackend;
use crate::document::{Holder, NewLock, StoredCounter, StoredLock, expect_key, refuse_clash, write_counter};
use crate::names::DocumentIds;
use crate::rpc::Answer;

impl FirestoreBackend {
    pub(crate) async fn acquire_lock(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let ids = DocumentIds::of(request.key)?;
        let lock_name = self.lock_name(&ids);
        let counter_name = self.rpc.name(&self.options.fence_collection, &ids.counter);
        let mut retry = self.begin();
        loop {
            let names = [lock_name.clone(), counter_name.clone()];
            let read = self.rpc.read(names, retry.patience).await.map_err(|error| retry.read_failed(error))?;
            if self.options.strict_clock {
                self.skew.require_sane()?;
            }
            // Read after the wait for the answer, and again in every try: a lease is never granted from an old time.
            let now = self.now();
            let grant = match decide(read, request, now, self.options.fence_floor)? {
                Decision::Answer(outcome) => return Ok(outcome),
                Decision::Take(grant) => grant,
            };
            let new = NewLock {
                lock_id: request.lock_id,
                key: request.key,
                fence: grant.fence,
                acquired_at: now,
                expires_at: now.plus(request.ttl),
                holder: Holder { label: request.label.cloned(), ttl: Some(request.ttl), is_asked_for: false },
            };
            // Both documents were read, so both writes name the version that was seen.
            let writes = vec![
                new.write(lock_name.clone(), grant.lock_version),
                write_counter(counter_name.clone(), grant.fence, request.key, grant.counter_version),
            ];
            match self.rpc.commit(writes, retry.patience).await {
                Ok(()) => {
                    if !retry.was_disputed() {
                        self.window.won();
                    }
                    return Ok(AcquireOutcome::Acquired(Lease::new(grant.fence, new.expires_at).observed_at(now)));
                }
                Err(error) => {
                    if error.is_conflict() {
                        self.window.lost();
                    }
                    retry.write_failed(error).await?;
                }
            }
        }
    }
}

enum Decision {
    Answer(AcquireOutcome),
    Take(Grant),
}

struct Grant {
    fence: Fence,
    lock_version: Option<prost_types::Timestamp>,
    counter_version: Option<prost_types::Timestamp>,
}

/// What the two documents mean for somebody who wants the lock now.
fn decide(read: Answer<2>, request: AcquireRequest<'_>, now: Timestamp, floor: bool) -> Result<Decision> {
    let [lock, counter] = read.documents;
    let lock = lock.map(StoredLock::read).transpose()?;
    if let Some(held) = &lock {
        expect_key(&held.key, request.key)?;
        if is_live(held.expires_at, now) {
            return Ok(Decision::Answer(answer_held(held, request.lock_id, now)));
        }
    }
    let counter = counter.as_ref().map(StoredCounter::read).transpose()?;
    if let Some(key) = counter.as_ref().and_then(|counter| counter.key.as_ref()) {
        refuse_clash(key, request.key)?;
    }
    // A dead lock remembers a fence too: should its counter have been lost, the next one still rises.
    let last = counter.as_ref().map_or(0, |counter| counter.value);
    let seen = lock.as_ref().map_or(0, |lock| lock.fence.get());
    let next = last.max(seen).saturating_add(1);
    let fence = Fence::new(if floor { next.max(server_millis(read.read_time)?) } else { next })?;
    Ok(Decision::Take(Grant {
        fence,
        lock_version: lock.map(|lock| lock.version),
        counter_version: counter.map(|counter| counter.version),
    }))
}

/// A lock held under the very id that asks was taken by this caller: an earlier answer was lost.
fn answer_held(held: &StoredLock, asking: &LockId, now: Timestamp) -> AcquireOutcome {
    if held.lock_id == *asking {
        return AcquireOutcome::Acquired(Lease::new(held.fence, held.expires_at).observed_at(now));
    }
    AcquireOutcome::Contended(Contention::free_in(free_in(held.expires_at, now)))
}

fn server_millis(read_time: Option<prost_types::Timestamp>) -> Result<u64> {
    let time = read_time.ok_or_else(|| LockError::internal("firestore gave no read time to base the fence on"))?;
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    Ok(seconds.saturating_mul(1000).saturating_add(u64::try_from(time.nanos / 1_000_000).unwrap_or(0)))
}
