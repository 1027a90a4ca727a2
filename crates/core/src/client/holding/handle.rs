//! Do I still hold the lock?
//!
//! [`LockHandle`] is what the work done under a lock may ask: it reads the clock whenever it is asked, so loss is seen
//! even if no task ran in between. What it believes is decided by `belief`; this file adds the clock, the sleepers and
//! the backend.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::client::holding::belief::{Belief, Granted, Noticed};
use crate::client::holding::heartbeat::Renewal;
use crate::client::shared::Shared;
use crate::sync::{Handle, Mutex, MutexGuard, Notify, sleep, timeout};
use crate::{
    BootTime, ErrorCode, ExtendOutcome, Fence, IntoTtl, Key, LockError, LockId, LossReason, ReleaseErrorHook, Result,
    Timestamp, Ttl,
};

/// Timers stand still while the machine sleeps; looking at the clock at least this often bounds how late loss is seen.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// The longest one extend may take.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one extend to a lease of this length may take: a sixth of it, so that after one on a connection that went
/// silent the next one still succeeds within the third of the lease in which it was due. A second is always given, as
/// far as that is no more than a third: backends take a shorter silence for a slow answer.
pub(crate) fn extend_bound(ttl: Ttl) -> Duration {
    let ttl = ttl.duration();
    (ttl / 6).max(Duration::from_secs(1)).min(ttl / 3).clamp(Duration::from_millis(10), EXTEND_TIMEOUT)
}

/// What an extend that was cut off is told as.
pub(crate) fn no_answer() -> LockError {
    LockError::new(ErrorCode::NetworkTimeout, "the renewal was not answered in time").ambiguous()
}

/// A view of a held lock, for the work done under it. Cheap to clone; does not keep the lock.
#[derive(Clone)]
pub struct LockHandle(pub(crate) Arc<HeldLock>);

/// One acquisition, shared by its guard, its handles and its renewal.
pub(crate) struct HeldLock {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Key,
    pub(crate) lock_id: LockId,
    fence: Fence,
    /// The local time from which the hold counts: when the request left that was granted.
    acquired: BootTime,
    /// What the holder believes. Never locked across an await.
    belief: Mutex<Belief>,
    /// Whether an answer of the backend said that somebody asks for the lock. Never taken back.
    asked: AtomicBool,
    /// Wakes whoever sleeps by the belief. Notified after every change of it.
    pub(crate) changed: Notify,
    /// One extend at a time: two replies out of order would leave the older deadline.
    pub(crate) extending: tokio::sync::Mutex<()>,
    /// The runtime that the lock was acquired on: renewal and the release of a dropped guard run there.
    pub(crate) runtime: Option<Handle>,
    /// The process that acquired it. A fork shares the guard but not the lock.
    pub(crate) process: u32,
    /// Written by the renewal's task, read by who stands by for it and by whoever explains a loss.
    pub(crate) renewal: Renewal,
    pub(crate) on_release_error: Option<ReleaseErrorHook>,
}

/// What a new hold is made of.
pub(crate) struct NewHold {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Key,
    pub(crate) lock_id: LockId,
    pub(crate) fence: Fence,
    pub(crate) granted: Granted,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_release_error: Option<ReleaseErrorHook>,
}

impl LockHandle {
    pub(crate) fn new(hold: NewHold) -> Self {
        let hold_until = hold.max_hold.map(|longest| hold.granted.sent + longest);
        Self(Arc::new(HeldLock {
            shared: hold.shared,
            key: hold.key,
            lock_id: hold.lock_id,
            fence: hold.fence,
            acquired: hold.granted.sent,
            belief: Mutex::new(Belief::new(hold.granted, hold_until)),
            asked: AtomicBool::new(false),
            changed: Notify::new(),
            extending: tokio::sync::Mutex::default(),
            runtime: Handle::try_current().ok(),
            process: std::process::id(),
            renewal: Renewal::default(),
            on_release_error: hold.on_release_error,
        }))
    }

    /// Returns the fence of this acquisition. Hand it to every resource that can compare it.
    pub fn fence(&self) -> Fence {
        self.0.fence
    }

    /// Returns the key that is locked.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// Returns the secret that owns the lock.
    pub fn lock_id(&self) -> &LockId {
        &self.0.lock_id
    }

    /// Returns the length of the present lease.
    pub fn ttl(&self) -> Ttl {
        self.0.belief().ttl()
    }

    /// Returns when the lease ends on the *backend's* clock. For people; [`remaining`](Self::remaining) is for
    /// decisions.
    pub fn expires_at(&self) -> Timestamp {
        self.0.belief().expires_at()
    }

    /// Returns how much longer the lock may be believed in; zero once it is lost or released. Reads the clock.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Returns how long the lock has been held, by the local clock.
    pub fn held_for(&self) -> Duration {
        self.0.held_for()
    }

    /// Returns whether the lock may still be believed in. Reads the clock.
    #[doc(alias = "is_lost")]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Returns why the lock is not held any more, or `None` while it is. Reads the clock; a reason is final.
    pub fn loss(&self) -> Option<LossReason> {
        self.0.loss()
    }

    /// Returns `Ok` while the lock is held. Call it before each step that must not run twice.
    ///
    /// # Errors
    /// [`LockLost`](ErrorCode::LockLost) at and after the deadline, also if no task ran in between.
    pub fn check(&self) -> Result<()> {
        if self.is_held() { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Resolves when the lock is lost, must be presumed lost, or was released.
    ///
    /// While the runtime is polled it resolves at the guard's deadline (as late as a timer is), which lies 1 % of the
    /// ttl and at least 5 ms *before* the lease ends in the storage, and within a second after the machine slept. Every
    /// poll reads the clock: in a `select!` that is `biased` and names it first, nothing after it is polled at or after
    /// the deadline.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) -> LossReason {
        let mut told = std::pin::pin!(self.told_of_loss());
        // A process that was stopped goes on where it was, before its runtime has looked at any timer.
        std::future::poll_fn(|context| match self.loss() {
            Some(reason) => std::task::Poll::Ready(reason),
            None => told.as_mut().poll(context),
        })
        .await
    }

    async fn told_of_loss(&self) -> LossReason {
        loop {
            self.remaining_below(Duration::ZERO).await;
            if let Some(reason) = self.0.loss_at(self.0.shared.clock.boot()) {
                return reason;
            }
        }
    }

    /// Resolves when [`remaining`](Self::remaining) has come down to `threshold`, also through loss or release. Follows
    /// renewals.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn remaining_below(&self, threshold: Duration) {
        loop {
            let changed = self.0.changed.notified();
            let remaining = self.remaining();
            if remaining <= threshold {
                return;
            }
            tokio::select! {
                () = sleep(remaining.saturating_sub(threshold).min(LONGEST_NAP)) => {}
                () = changed => {}
            }
        }
    }

    /// Returns whether somebody asked for the lock, as far as the last renewal told.
    pub fn is_asked_for(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Resolves when somebody asks for the lock ([`Inspect::ask`](crate::Inspect::ask)); what to do is the holder's
    /// choice. The news comes with a renewal, so a lock that is not renewed never hears of it. Otherwise it
    /// never resolves, not even when the lock is lost.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn asked_to_release(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.is_asked_for() {
                return;
            }
            changed.await;
        }
    }

    /// Replaces the lease by now + ttl: it may shorten. It never passes the request's longest hold.
    ///
    /// Answers [`Absent`](ExtendOutcome::Absent) without asking the backend once the lock is lost or released. A reply
    /// that comes after the deadline does not revive the lock.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) for a bad ttl, otherwise what the backend reports; the lock is
    /// still held then until its deadline.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the lease was replaced; the guard believes in the shorter of the two.
    #[doc(alias = "renew")]
    pub async fn extend(&self, ttl: impl IntoTtl) -> Result<ExtendOutcome> {
        self.extend_by(ttl.into_ttl()?).await
    }

    async fn extend_by(&self, ttl: Ttl) -> Result<ExtendOutcome> {
        let _turn = self.0.extending.lock().await;
        self.extend_in_turn(ttl).await
    }

    /// Extends for whoever has the turn.
    pub(crate) async fn extend_in_turn(&self, ttl: Ttl) -> Result<ExtendOutcome> {
        let held = &self.0;
        if self.loss().is_some() {
            return Ok(ExtendOutcome::Absent(None));
        }
        let sent = held.shared.clock.boot();
        let Some(ttl) = held.within_the_hold(ttl, sent) else {
            held.lose(LossReason::MaxHold);
            return Ok(ExtendOutcome::Absent(None));
        };
        // A lease that gets shorter counts from now on: the reply may be lost after the server acted.
        held.change(|belief| belief.may_shorten(sent, ttl));
        let outcome = held.ask_to_extend(ttl).await?;
        match outcome {
            ExtendOutcome::Absent(_) => held.lose(LossReason::Absent),
            ExtendOutcome::Extended(extension) => {
                let renewed = Granted { sent, ttl, expires_at: extension.expires_at, left: None };
                // Noticed here first, so that a loss in the meantime is told of.
                if self.loss().is_some() || !held.change(|belief| belief.renew(renewed, held.shared.clock.boot())) {
                    return Ok(ExtendOutcome::Absent(None));
                }
                if extension.is_asked_for {
                    held.asked.store(true, Ordering::Relaxed);
                    held.changed.notify_waiters();
                }
            }
        }
        Ok(outcome)
    }

    pub(crate) fn lost_error(&self) -> LockError {
        let reason = self.loss().unwrap_or(LossReason::Released);
        let held_for = Duration::from_millis(u64::try_from(self.held_for().as_millis()).unwrap_or(u64::MAX));
        let why = match reason {
            LossReason::Expired if self.0.renewal.never_ran() => {
                "its lease ended, and its renewal never ran: the runtime that it was acquired on is blocked or not polled"
            }
            reason => reason.describe(),
        };
        LockError::new(ErrorCode::LockLost, format!("the lock was lost after {held_for:?}: {why}"))
            .with_hint("writes that check the fence are safe; others may overlap with the next holder's")
            .with_key(&self.0.key)
            .with_lock_id(&self.0.lock_id)
    }
}

impl HeldLock {
    // Every change of a belief is complete when its method returns, so a panic elsewhere leaves it whole.
    pub(crate) fn belief(&self) -> MutexGuard<'_, Belief> {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the belief and wakes who sleeps by it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Belief) -> T) -> T {
        let result = change(&mut self.belief());
        self.changed.notify_waiters();
        result
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.loss_at(self.shared.clock.boot())
    }

    fn loss_at(&self, now: BootTime) -> Option<LossReason> {
        // Bound to a name first: the arms must not run with the belief locked.
        let noticed = self.belief().notice(now);
        match noticed {
            Noticed::Held => None,
            Noticed::Over(reason) => Some(reason),
            Noticed::JustLost(reason) => {
                self.changed.notify_waiters();
                self.shared.tell_loss(&self.key, &self.lock_id, reason, self.held_for());
                Some(reason)
            }
        }
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        if self.change(|belief| belief.lose(reason)) {
            self.shared.tell_loss(&self.key, &self.lock_id, reason, self.held_for());
        }
    }

    /// Whether there is anything to release. A loss that nobody noticed yet is noticed, so that it is told of.
    pub(crate) fn begin_release(&self) -> bool {
        self.loss();
        self.change(Belief::begin_release)
    }

    pub(crate) fn end_release(&self) {
        self.change(Belief::end_release);
        self.shared.tell_hold(self.held_for());
    }

    fn remaining(&self) -> Duration {
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        self.believed_for()
    }

    /// How much longer the lock is believed in. Notices no loss, so it tells nobody of one.
    pub(crate) fn believed_for(&self) -> Duration {
        self.belief().remaining(self.shared.clock.boot())
    }

    fn held_for(&self) -> Duration {
        self.shared.clock.boot().since(self.acquired)
    }

    fn within_the_hold(&self, ttl: Ttl, now: BootTime) -> Option<Ttl> {
        match self.belief().hold_left(now) {
            Some(left) if left < ttl.duration() => Ttl::new(left).ok(),
            _ => Some(ttl),
        }
    }

    async fn ask_to_extend(&self, ttl: Ttl) -> Result<ExtendOutcome> {
        let answer = timeout(extend_bound(ttl), self.shared.extend(&self.lock_id, ttl)).await;
        let answer = answer.unwrap_or_else(|_| Err(no_answer()));
        answer.map_err(|error| error.with_key(&self.key).with_lock_id(&self.lock_id))
    }
}

impl fmt::Debug for LockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.0.key)
            .field("lock_id", &self.0.lock_id)
            .field("fence", &self.0.fence)
            .field("remaining", &self.remaining())
            .finish()
    }
}
