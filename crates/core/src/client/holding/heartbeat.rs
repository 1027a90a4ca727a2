//! Who keeps a lease alive while the work runs?
//!
//! A task per guard: it extends every third of the lease, survives any number of failures while time is left, and ends
//! with the guard. It follows a lease that was shortened by hand, and never renews a lock that is lost, released or at
//! its longest hold. Where the runtime of that task may stand still, `standby` renews in its place.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::client::holding::handle::{HeldLock, extend_bound, no_answer};
use crate::client::holding::renewal_thread::{Renewable, Ticket};
use crate::events::trace;
use crate::sync::{sleep, timeout};
use crate::{BootTime, ExtendOutcome, LockHandle, Result, Ttl};

/// A backend takes a silence of one second for a dead connection; this is a little more.
const TELLING_SILENCE: Duration = Duration::from_millis(1_100);

/// How a lock is kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    pub(crate) ttl: Ttl,
    pub(crate) every: Duration,
}

/// How the renewal of one lock gets on: whether its task moves is seen from outside of its runtime.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    /// Empty for a lock that is not kept alive. Written once, before the task starts.
    plan: OnceLock<KeepAlive>,
    /// Whether the task has been polled: a runtime that nobody runs must be named for it.
    ran: AtomicBool,
    /// When the task moves again at the latest, in milliseconds of the boot clock. Written before every wait of the
    /// task, and by whoever renewed in its place.
    promised: AtomicU64,
    /// Whether the turn to extend is the task's own. Only then may somebody extend beside it.
    has_turn: AtomicBool,
    /// Whether it was told that the runtime does not run: once is enough.
    told: AtomicBool,
    ticket: OnceLock<Ticket>,
}

impl Renewal {
    /// Whether it was asked for and its task has not been polled once.
    pub(crate) fn never_ran(&self) -> bool {
        self.plan.get().is_some() && !self.ran.load(Ordering::Relaxed)
    }

    pub(crate) fn keep(&self, ticket: Ticket) {
        // A lock starts its renewal once, so there is no other ticket.
        let _ = self.ticket.set(ticket);
    }

    fn promise(&self, at: BootTime) {
        let millis = u64::try_from(at.since_start().as_millis()).unwrap_or(u64::MAX);
        self.promised.store(millis, Ordering::Relaxed);
    }

    fn promised(&self) -> BootTime {
        BootTime::from_start(Duration::from_millis(self.promised.load(Ordering::Relaxed)))
    }
}

/// Starts the renewal of a freshly acquired lock, if its request asked for it.
pub(crate) fn start(lock: &LockHandle, plan: Option<KeepAlive>) {
    if let (Some(plan), Some(runtime)) = (plan, &lock.0.runtime) {
        // A lock is acquired once, so nothing was planned before.
        let _ = lock.0.renewal.plan.set(plan);
        lock.0.promise(plan, None);
        runtime.spawn(renew(lock.clone(), plan));
        // Schedules have a clock of their own, which no thread outside of them can follow.
        #[cfg(not(all(test, syncguard_shuttle)))]
        crate::client::holding::renewal_thread::watch(lock);
    }
}

async fn renew(lock: LockHandle, plan: KeepAlive) {
    lock.0.renewal.ran.store(true, Ordering::Relaxed);
    let mut failed = None;
    loop {
        // Listened for before the lease is looked at, so that no change falls between the two.
        let mut changed = std::pin::pin!(lock.0.changed.notified());
        changed.as_mut().enable();
        let pause = lock.0.promise(plan, failed);
        tokio::select! {
            () = sleep(pause) => {}
            _ = lock.lost() => return,
            () = changed => continue,
        }
        match extend_as_the_task(&lock, plan.ttl).await {
            Ok(ExtendOutcome::Extended(_)) => failed = None,
            Ok(ExtendOutcome::Absent(_)) => return,
            Err(error) => {
                trace::renewal_failed(&error, lock.key());
                failed = Some(lock.0.shared.clock.boot());
            }
        }
    }
}

async fn extend_as_the_task(lock: &LockHandle, ttl: Ttl) -> Result<ExtendOutcome> {
    lock.0.promise_within(extend_bound(ttl));
    let _turn = lock.0.extending.lock().await;
    lock.0.renewal.has_turn.store(true, Ordering::Release);
    let outcome = lock.extend_in_turn(ttl).await;
    lock.0.renewal.has_turn.store(false, Ordering::Release);
    outcome
}

impl HeldLock {
    /// Promises to renew when it is due, and returns how long that is from now.
    fn promise(&self, plan: KeepAlive, failed: Option<BootTime>) -> Duration {
        let due = self.belief().next_renewal(plan.ttl, plan.every, failed);
        let now = self.shared.clock.boot();
        self.renewal.promise(due.max(now));
        due.since(now)
    }

    fn promise_within(&self, time: Duration) {
        self.renewal.promise(self.shared.clock.boot() + time);
    }
}

impl Renewable for HeldLock {
    fn overdue_at(&self) -> Option<BootTime> {
        let plan = self.renewal.plan.get()?;
        if self.believed_for().is_zero() {
            return None;
        }
        // Late enough that a busy runtime keeps its promise, early enough for two tries on new connections.
        Some(self.renewal.promised() + plan.ttl.duration().saturating_sub(plan.every) / 4)
    }

    fn renew(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(renew_in_its_place(LockHandle(self)))
    }
}

async fn renew_in_its_place(lock: LockHandle) {
    let Some(plan) = lock.0.renewal.plan.get() else { return };
    if !lock.0.renewal.told.swap(true, Ordering::Relaxed) {
        trace::runtime_stands_still(lock.key());
    }
    // Shorter than the task's own: much of the lease is over already.
    let pause = (plan.every / 16).clamp(Duration::from_millis(5), Duration::from_millis(250));
    while lock.loss().is_none() {
        match extend_beside_the_task(&lock, plan.ttl, pause).await {
            Some(Ok(ExtendOutcome::Extended(_))) => {
                lock.0.promise_within(plan.every);
                return;
            }
            Some(Ok(ExtendOutcome::Absent(_))) => return,
            Some(Err(error)) => {
                trace::renewal_failed(&error, lock.key());
                sleep(pause).await;
            }
            None => {}
        }
    }
}

/// Extends although the task may stand still in the middle of its own extend. `None` when a caller's extend stands in
/// the middle: it may be a shorter one, so the lease must not be made longer beside it.
async fn extend_beside_the_task(lock: &LockHandle, ttl: Ttl, patience: Duration) -> Option<Result<ExtendOutcome>> {
    // The task's extend is by the same ttl: whichever of the two arrives last leaves a lease that lasts as long as
    // either is believed in.
    let _turn = match lock.0.extending.try_lock() {
        Ok(turn) => Some(turn),
        Err(_) if lock.0.renewal.has_turn.load(Ordering::Acquire) => None,
        Err(_) => Some(timeout(patience, lock.0.extending.lock()).await.ok()?),
    };
    // A connection of the runtime that stands still answers nobody; its backend must notice while time is left.
    let bound = (lock.0.believed_for() / 3).max(TELLING_SILENCE).min(extend_bound(ttl));
    let answer = timeout(bound, lock.extend_in_turn(ttl)).await;
    Some(answer.unwrap_or_else(|_| Err(no_answer())))
}
