//! What becomes of a lock that nobody can hold any more?
//!
//! An attempt whose caller left, or whose answer was lost, may have acquired the lock, or may *still* acquire it when a delayed
//! request arrives. Its id is released at once, again after 250 ms and 1 s, and once after its lease: what remains beyond
//! that is bounded by the ttl.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::locker::Shared;
use crate::{
    AcquireOutcome, BootTime, FenceToken, Key, LockBackend, LockError, LockId, ReleaseErrorHook, ReleaseOutcome, Result,
};

/// The longest one release may take before it counts as failed.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest lease that is watched to its end. Longer ones are left to expire.
const LONGEST_WATCH: Duration = Duration::from_secs(120);

type Call<F> = Pin<Box<dyn Future<Output = Result<AcquireOutcome<F>>> + Send>>;

/// Releases an id whose acquire has an unknown outcome, now and until it cannot matter any more.
pub(crate) fn reap<F: FenceToken>(
    shared: &Arc<Shared<F>>,
    runtime: Option<&Handle>,
    lock_id: LockId,
    lease_end: BootTime,
) {
    let task = reap_until(shared.clone(), lock_id, lease_end);
    spawn(shared, runtime, task);
}

/// Awaits an acquire that its caller abandoned, and gives back what it got.
pub(crate) fn finish_and_undo<F: FenceToken>(
    shared: &Arc<Shared<F>>,
    runtime: Option<&Handle>,
    call: Call<F>,
    lock_id: LockId,
    lease_end: BootTime,
) {
    let owned = shared.clone();
    spawn(shared, runtime, async move {
        // Releasing before the acquire has arrived would release nothing, so its end is awaited first.
        match timeout(RELEASE_TIMEOUT, call).await {
            Ok(Ok(AcquireOutcome::Contended(_))) => {}
            Ok(Err(error)) if !error.is_ambiguous() => {}
            _ => reap_until(owned, lock_id, lease_end).await,
        }
    });
}

/// Releases on behalf of a guard that was dropped. Tries again while the lease could still be alive.
pub(crate) fn release_dropped<F: FenceToken>(
    shared: &Arc<Shared<F>>,
    runtime: Option<&Handle>,
    key: Key,
    lock_id: LockId,
    hook: Option<ReleaseErrorHook>,
) {
    let owned = shared.clone();
    spawn(shared, runtime, async move {
        let mut pauses = [Duration::from_millis(250), Duration::from_secs(1)].into_iter();
        loop {
            let Err(error) = release(&owned, &lock_id).await else { return };
            match pauses.next() {
                Some(pause) if error.is_transient() => sleep(pause).await,
                _ => return report(&error, &key, &lock_id, hook.as_ref()),
            }
        }
    });
}

/// One release with its own bound in time.
pub(crate) async fn release<F: FenceToken>(shared: &Shared<F>, lock_id: &LockId) -> Result<ReleaseOutcome> {
    match timeout(RELEASE_TIMEOUT, shared.backend.release(lock_id)).await {
        Ok(outcome) => outcome,
        Err(_) => {
            Err(LockError::new(crate::ErrorCode::NetworkTimeout, "the release was not answered in time").ambiguous())
        }
    }
}

/// Tells of a release that failed. A hook that panics harms nothing.
pub(crate) fn report(error: &LockError, key: &Key, lock_id: &LockId, hook: Option<&ReleaseErrorHook>) {
    crate::trace::release_failed(error, key, lock_id);
    if let Some(hook) = hook {
        let call = std::panic::AssertUnwindSafe(|| hook(error, key, lock_id));
        let _ = std::panic::catch_unwind(call);
    }
}

async fn reap_until<F: FenceToken>(shared: Arc<Shared<F>>, lock_id: LockId, lease_end: BootTime) {
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
    tokio::spawn(async move {
        sleep(left).await;
        let _ = release(&shared, &lock_id).await;
    });
}

/// Runs a task on the runtime that the caller was made on. Without one the lease ends the lock.
fn spawn<F: FenceToken>(
    shared: &Arc<Shared<F>>,
    runtime: Option<&Handle>,
    task: impl Future<Output = ()> + Send + 'static,
) {
    if let Some(runtime) = runtime {
        shared.background.spawn_on(task, runtime);
    }
}
