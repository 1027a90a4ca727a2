//! Who keeps a lease alive while the work runs?
//!
//! A task per guard: it extends every third of the lease, survives any number of failures while time is left, and ends with the
//! guard. It never renews a lock that is lost, released or at its longest hold.

use std::time::Duration;

use tokio::time::sleep;

use crate::{ExtendOutcome, FenceToken, LockHandle, LossReason, Ttl};

/// How a lock is kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) ttl: Ttl,
    pub(crate) every: Duration,
    pub(crate) max_hold: Option<Duration>,
}

/// Starts the renewal of a freshly acquired lock, if its request asked for it.
pub(crate) fn start<F: FenceToken>(lock: &LockHandle<F>, plan: Option<KeepAlive>) {
    if let Some(plan) = plan {
        lock.spawn(renew(lock.clone(), plan));
    }
}

async fn renew<F: FenceToken>(lock: LockHandle<F>, plan: KeepAlive) {
    let mut pause = plan.every;
    loop {
        tokio::select! {
            () = sleep(pause) => {}
            _ = lock.lost() => return,
        }
        let Some((ttl, is_last)) = next_lease(&lock, plan) else {
            return lock.lose(LossReason::MaxHold);
        };
        match lock.extend_by(ttl, is_last).await {
            Ok(ExtendOutcome::Extended { .. }) if is_last => return,
            Ok(ExtendOutcome::Extended { .. }) => pause = plan.every,
            Ok(ExtendOutcome::Absent(_)) => return,
            Err(error) => {
                crate::trace::renewal_failed(&error, lock.key());
                // Sooner than the next turn, so that the lease has room for several failures.
                pause = (plan.every / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
            }
        }
    }
}

/// The lease to ask for now, and whether it is the last one; `None` when the longest hold is over.
fn next_lease<F: FenceToken>(lock: &LockHandle<F>, plan: KeepAlive) -> Option<(Ttl, bool)> {
    let Some(max_hold) = plan.max_hold else { return Some((plan.ttl, false)) };
    let left = (lock.acquired() + max_hold).since(lock.boot());
    let last = left <= plan.ttl.duration();
    Ttl::new(left.min(plan.ttl.duration())).ok().map(|ttl| (ttl, last))
}
