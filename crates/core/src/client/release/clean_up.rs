//! What becomes of a lock that nobody can hold any more?
//!
//! An attempt whose caller left, or whose answer was lost, may have acquired the lock, or may *still* acquire it when a
//! delayed request arrives. Its id is released at once, again after 250 ms and 1 s, and once after its lease: what
//! remains beyond that is bounded by the ttl.

use std::sync::Arc;
use std::time::Duration;

use crate::client::shared::Shared;
use crate::contract::erased::PendingAcquire;
use crate::events::trace;
use crate::sync::{Handle, sleep, spawn, timeout};
use crate::{AcquireOutcome, BootTime, Key, LockError, LockHandle, LockId, ReleaseErrorHook, ReleaseOutcome, Result};

/// The longest one release may take before it counts as failed.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest lease that is watched to its end. Longer ones are left to expire.
const LONGEST_WATCH: Duration = Duration::from_secs(120);

/// Releases an id whose acquire has an unknown outcome, now and until it cannot matter any more.
pub(crate) fn reap(shared: &Arc<Shared>, runtime: Option<&Handle>, lock_id: LockId, lease_end: BootTime) {
    shared.background.spawn(runtime, reap_until(shared.clone(), lock_id, lease_end));
}

/// An acquire whose caller left before its answer.
pub(crate) struct Abandoned {
    pub(crate) call: PendingAcquire,
    pub(crate) lock_id: LockId,
    pub(crate) lease_end: BootTime,
    /// Whether an earlier request under the same id may own the lock, whatever this one is answered.
    pub(crate) was_unknown: bool,
}

/// Awaits an acquire that its caller abandoned, and gives back what it, or an earlier one under its id, got.
pub(crate) fn finish_and_undo(shared: &Arc<Shared>, runtime: Option<&Handle>, abandoned: Abandoned) {
    let owned = shared.clone();
    shared.background.spawn(runtime, async move {
        // Releasing before the acquire has arrived would release nothing, so its end is awaited first.
        let nothing_was_got = match timeout(RELEASE_TIMEOUT, abandoned.call).await {
            Ok(Ok(AcquireOutcome::Contended(_))) => true,
            Ok(Err(error)) => !error.is_ambiguous(),
            _ => false,
        };
        if abandoned.was_unknown || !nothing_was_got {
            reap_until(owned, abandoned.lock_id, abandoned.lease_end).await;
        }
    });
}

/// Releases on behalf of a guard that was dropped. Tries again while the lease could still be alive.
pub(crate) fn release_dropped(lock: &LockHandle) {
    let (held, owned) = (&lock.0, lock.clone());
    held.shared.background.spawn(held.runtime.as_ref(), async move {
        let held = &owned.0;
        let mut pauses = [Duration::from_millis(250), Duration::from_secs(1)].into_iter();
        while let Err(error) = release(&held.shared, &held.lock_id).await {
            match pauses.next() {
                Some(pause) if error.is_transient() => sleep(pause).await,
                _ => {
                    report(&error, &held.key, &held.lock_id, held.on_release_error.as_ref());
                    break;
                }
            }
        }
        held.end_release();
    });
}

/// One release with its own bound in time.
pub(crate) async fn release(shared: &Shared, lock_id: &LockId) -> Result<ReleaseOutcome> {
    match timeout(RELEASE_TIMEOUT, shared.release(lock_id)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let late = LockError::new(crate::ErrorCode::NetworkTimeout, "the release was not answered in time");
            Err(late.ambiguous().with_lock_id(lock_id))
        }
    }
}

/// Tells of a release that failed. A hook that panics harms nothing.
pub(crate) fn report(error: &LockError, key: &Key, lock_id: &LockId, hook: Option<&ReleaseErrorHook>) {
    trace::release_failed(error, key, lock_id);
    if let Some(hook) = hook {
        let call = std::panic::AssertUnwindSafe(|| hook(error, key, lock_id));
        let _ = std::panic::catch_unwind(call);
    }
}

async fn reap_until(shared: Arc<Shared>, lock_id: LockId, lease_end: BootTime) {
    for pause in [Duration::ZERO, Duration::from_millis(250), Duration::from_millis(750)] {
        sleep(pause).await;
        if matches!(release(&shared, &lock_id).await, Ok(ReleaseOutcome::Released)) {
            return;
        }
    }
    let left = lease_end.since(shared.clock.boot());
    if left.is_zero() || left > LONGEST_WATCH {
        return;
    }
    // Not tracked: whoever drains must not wait for a whole lease.
    spawn(async move {
        sleep(left).await;
        let _ = release(&shared, &lock_id).await;
    });
}
