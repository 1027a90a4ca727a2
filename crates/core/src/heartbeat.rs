//! Who keeps a lease alive while the work runs?
//!
//! A task per guard: it extends every third of the lease, survives any number of failures while time is left, and ends
//! with the guard. It follows a lease that was shortened by hand, and never renews a lock that is lost, released or at
//! its longest hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{ExtendOutcome, FenceToken, LockHandle, Ttl, trace};

/// How a lock is kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) ttl: Ttl,
    pub(crate) every: Duration,
}

/// Whether a renewal that was asked for has ever run: a runtime that nobody polls renews nothing, and must be named for
/// it.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    asked: AtomicBool,
    ran: AtomicBool,
}

impl Renewal {
    /// Whether it was asked for and its task has not been polled once.
    pub(crate) fn never_ran(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && !self.ran.load(Ordering::Relaxed)
    }
}

/// Starts the renewal of a freshly acquired lock, if its request asked for it.
pub(crate) fn start<F: FenceToken>(lock: &LockHandle<F>, plan: Option<KeepAlive>) {
    if let (Some(plan), Some(runtime)) = (plan, &lock.0.runtime) {
        lock.0.renewal.asked.store(true, Ordering::Relaxed);
        runtime.spawn(renew(lock.clone(), plan));
    }
}

async fn renew<F: FenceToken>(lock: LockHandle<F>, plan: KeepAlive) {
    lock.0.renewal.ran.store(true, Ordering::Relaxed);
    let mut due = Instant::now() + plan.every;
    loop {
        // Listened for before the lease is looked at, so that no change falls between the two.
        let mut changed = std::pin::pin!(lock.0.changed.notified());
        changed.as_mut().enable();
        if lock.ttl() < plan.ttl {
            // Somebody shortened the lease by hand: it has to be renewed sooner.
            due = due.min(Instant::now() + lock.remaining() / 2);
        }
        tokio::select! {
            () = sleep_until(due) => {}
            _ = lock.lost() => return,
            () = changed => continue,
        }
        match lock.extend_by(plan.ttl).await {
            Ok(ExtendOutcome::Extended(_)) => due = Instant::now() + plan.every,
            Ok(ExtendOutcome::Absent(_)) => return,
            Err(error) => {
                trace::renewal_failed(&error, lock.key());
                // Sooner than the next turn, so that the lease has room for several failures.
                let pause = (plan.every / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
                due = Instant::now() + pause;
            }
        }
    }
}
