//! Do I still hold the lock?
//!
//! A guard believes until its deadline: the local time of **send** + ttl − a margin, on a clock that counts suspend. So it
//! stops believing before the storage frees the lock, whatever became of replies, timers or the machine's sleep. The clock is read
//! when somebody asks, so loss is seen even if no task ran in between, and loss is for ever.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::attempt::{Grant, Plan};
use crate::locker::Shared;
use crate::reaper;
use crate::{
    BootTime, ErrorCode, ExtendOutcome, Fence, FenceToken, HasFence, Key, LockBackend, LockError, LockId,
    ReleaseErrorHook, ReleaseOutcome, Result, Timestamp, Ttl,
};

/// Timers stand still while the machine sleeps; looking at the clock at least this often bounds how late loss is seen.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// The longest one extend may take; a third of the lease if that is shorter.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a lock is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReason {
    /// The backend said that the lock is not there.
    Absent,
    /// The lease ended, or must be presumed to have: no renewal succeeded in time.
    Expired,
    /// The longest hold that the request allowed is over.
    MaxHold,
    /// It was released (or its release was begun).
    Released,
}

impl LossReason {
    fn describe(self) -> &'static str {
        match self {
            Self::Absent => "the backend does not know it any more",
            Self::Expired => "its lease ended before it could be renewed",
            Self::MaxHold => "it reached its longest hold",
            Self::Released => "it was released",
        }
    }
}

/// The owner of a held lock: releases it when dropped.
///
/// Everything that can be asked of a held lock is on [`LockHandle`], to which this derefs.
///
/// # Drop
/// Dropping a guard starts a bounded release on the runtime that the guard was made on and never blocks or panics;
/// [`Locker::drain`](crate::Locker::drain) waits for it. Without a runtime the lease ends the lock. In a forked child nothing is
/// released: the lock is the parent's. A guard given to [`std::mem::forget`] with renewal on is renewed until the process ends;
/// use [`Guard::leak`] instead.
#[must_use = "a dropped guard releases its lock"]
pub struct Guard<F: FenceToken = Fence> {
    handle: LockHandle<F>,
}

/// A view of a held lock, for the work done under it. Cheap to clone; does not keep the lock.
pub struct LockHandle<F: FenceToken = Fence>(Arc<Held<F>>);

impl<F: FenceToken> Clone for LockHandle<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Held<F: FenceToken> {
    shared: Arc<Shared<F>>,
    key: Key,
    lock_id: LockId,
    fence: F,
    acquired: BootTime,
    belief: Mutex<Belief>,
    /// Wakes whoever sleeps by the belief when it changes.
    changed: Notify,
    /// One extend at a time: two replies out of order would leave the older deadline.
    extending: tokio::sync::Mutex<()>,
    runtime: Option<Handle>,
    /// A fork shares the guard but not the lock.
    process: u32,
    on_release_error: Option<ReleaseErrorHook>,
}

/// What the guard believes. Changed only under its mutex; `phase` never returns to `Held`.
struct Belief {
    phase: Phase,
    deadline: BootTime,
    expires_at: Timestamp,
    ttl: Ttl,
    /// No renewal follows: the end of this lease is the longest hold.
    final_lease: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    Lost(LossReason),
    /// A release was begun and may have failed. It may be tried again; the lock is not believed in.
    Releasing,
    Released,
}

/// When a lease of this length, asked for at `sent`, stops being believed in.
fn deadline(sent: BootTime, ttl: Ttl) -> BootTime {
    sent + ttl.duration().saturating_sub(margin(ttl))
}

/// The same for a grant that may be older than the request that it answers: what is left of it on the backend's clock
/// bounds it too. So an earlier attempt whose failure was wrongly called certain cannot make a guard believe too long.
fn deadline_of_grant(sent: BootTime, ttl: Ttl, left: Option<Duration>) -> BootTime {
    let by_request = deadline(sent, ttl);
    match left.filter(|_| crate::seeded::heeds_the_age()) {
        Some(left) => by_request.min(sent + left.saturating_sub(margin(ttl))),
        None => by_request,
    }
}

fn margin(ttl: Ttl) -> Duration {
    (ttl.duration() / 100).max(Duration::from_millis(5))
}

impl<F: FenceToken> Guard<F> {
    /// `None` when the grant arrived after its own deadline.
    pub(crate) fn from_grant(shared: &Arc<Shared<F>>, plan: &Plan, grant: Grant<F>) -> Option<Self> {
        let counted_from = crate::seeded::counted_from(grant.sent, grant.received);
        let deadline = deadline_of_grant(counted_from, plan.ttl, grant.lease.left());
        if grant.received >= deadline {
            return None;
        }
        let belief = Belief {
            phase: Phase::Held,
            deadline,
            expires_at: grant.lease.expires_at,
            ttl: plan.ttl,
            final_lease: false,
        };
        let held = Held {
            shared: shared.clone(),
            key: plan.key.clone(),
            lock_id: grant.lock_id,
            fence: grant.lease.fence,
            acquired: counted_from,
            belief: Mutex::new(belief),
            changed: Notify::new(),
            extending: tokio::sync::Mutex::default(),
            runtime: Handle::try_current().ok(),
            process: std::process::id(),
            on_release_error: plan.on_release_error.clone(),
        };
        Some(Self { handle: LockHandle(Arc::new(held)) })
    }

    /// A view that can be given away.
    pub fn handle(&self) -> LockHandle<F> {
        self.handle.clone()
    }

    /// Gives the lock back. Renewal stops with the call, whatever its result.
    ///
    /// A second release answers [`Absent`](ReleaseOutcome::Absent) without asking the backend. One that failed may be tried again.
    ///
    /// # Errors
    /// What the backend reports.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the guard's drop.
    pub async fn release(&self) -> Result<ReleaseOutcome> {
        let held = &self.handle.0;
        if !held.begin_release() {
            return Ok(ReleaseOutcome::Absent(None));
        }
        let outcome = reaper::release(&held.shared, &held.lock_id).await.map_err(|error| held.explain(error))?;
        held.belief().phase = Phase::Released;
        Ok(outcome)
    }

    /// Releases, and tells the hook if that failed for good. After a passing fault the drop tries again and tells in the end.
    pub(crate) async fn release_quietly(&self) {
        let held = &self.handle.0;
        if let Err(error) = self.release().await
            && !error.is_transient()
        {
            reaper::report(&error, &held.key, &held.lock_id, held.on_release_error.as_ref());
            held.belief().phase = Phase::Released;
        }
    }

    /// Lets go of the guard without releasing: the lock stays until its lease ends, and the id can extend or release it.
    pub fn leak(self) -> LockId {
        let held = &self.handle.0;
        held.belief().phase = Phase::Released;
        held.changed.notify_waiters();
        held.lock_id.clone()
    }
}

impl<F: FenceToken> Drop for Guard<F> {
    fn drop(&mut self) {
        let held = &self.handle.0;
        if held.process != std::process::id() || !held.begin_release() {
            return;
        }
        reaper::release_dropped(
            &held.shared,
            held.runtime.as_ref(),
            held.key.clone(),
            held.lock_id.clone(),
            held.on_release_error.clone(),
        );
    }
}

impl<F: FenceToken> Deref for Guard<F> {
    type Target = LockHandle<F>;

    fn deref(&self) -> &LockHandle<F> {
        &self.handle
    }
}

impl<F: FenceToken> LockHandle<F> {
    /// The fence of this acquisition. Hand it to every resource that can compare it.
    pub fn fence(&self) -> Fence
    where
        F: HasFence,
    {
        self.0.fence.into_fence()
    }

    /// The fence as the backend's own type, for code generic over both kinds.
    pub fn fence_token(&self) -> F {
        self.0.fence
    }

    /// What is locked.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// The secret that owns the lock.
    pub fn lock_id(&self) -> &LockId {
        &self.0.lock_id
    }

    /// The length of the present lease.
    pub fn ttl(&self) -> Ttl {
        self.0.belief().ttl
    }

    /// When the lease ends on the *backend's* clock. For people; [`remaining`](Self::remaining) is for decisions.
    pub fn expires_at(&self) -> Timestamp {
        self.0.belief().expires_at
    }

    /// How much longer the lock may be believed in; zero once it is lost or released. Reads the clock.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// How long it has been held, by the local clock.
    pub fn held_for(&self) -> Duration {
        self.0.shared.clock.boot().since(self.0.acquired)
    }

    /// Whether the lock may still be believed in. Reads the clock.
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Why the lock is not held any more, if it is not. Reads the clock; an answer that is not `None` is final.
    pub fn loss(&self) -> Option<LossReason> {
        self.0.loss()
    }

    /// Nothing while the lock is held. Put it before each step that must not run twice.
    ///
    /// # Errors
    /// [`LockLost`](ErrorCode::LockLost) at and after the deadline, also if no task ran in between.
    pub fn check(&self) -> Result<()> {
        if self.is_held() { Ok(()) } else { Err(self.lost_error()) }
    }

    /// Resolves when the lock is lost, must be presumed lost, or was released.
    ///
    /// While the runtime is polled it resolves at or before the deadline, and within a second after the machine slept.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) -> LossReason {
        loop {
            self.remaining_below(Duration::ZERO).await;
            if let Some(reason) = self.loss() {
                return reason;
            }
        }
    }

    /// Resolves when [`remaining`](Self::remaining) has come down to `threshold`, also through loss or release. Follows renewals.
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

    /// Replaces the lease by now + ttl: it may shorten.
    ///
    /// Answers [`Absent`](ExtendOutcome::Absent) without asking the backend once the lock is lost or released. A reply that comes
    /// after the deadline does not revive the lock.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) for a bad ttl, otherwise what the backend reports; the lock is still held then
    /// until its deadline.
    ///
    /// # Cancel safety
    /// Dropping the future leaves it open whether the lease was replaced; the guard believes in the shorter of the two.
    pub async fn extend(&self, ttl: Duration) -> Result<ExtendOutcome> {
        self.extend_by(Ttl::new(ttl)?, false).await
    }

    pub(crate) async fn extend_by(&self, ttl: Ttl, final_lease: bool) -> Result<ExtendOutcome> {
        let held = &self.0;
        let _turn = held.extending.lock().await;
        if self.loss().is_some() {
            return Ok(ExtendOutcome::Absent(None));
        }
        let sent = held.shared.clock.boot();
        // A lease that gets shorter counts from now on: the reply may be lost after the server acted.
        held.lower_deadline(deadline(sent, ttl));
        let bound = EXTEND_TIMEOUT.min(ttl.duration() / 3).max(Duration::from_millis(10));
        let outcome = match tokio::time::timeout(bound, held.shared.backend.extend(&held.lock_id, ttl)).await {
            Ok(outcome) => outcome.map_err(|error| held.explain(error))?,
            Err(_) => {
                let late = LockError::new(ErrorCode::NetworkTimeout, "the renewal was not answered in time");
                return Err(held.explain(late.ambiguous()));
            }
        };
        match outcome {
            ExtendOutcome::Absent(_) => held.lose(LossReason::Absent),
            ExtendOutcome::Extended { expires_at } => {
                let renewed =
                    Belief { phase: Phase::Held, deadline: deadline(sent, ttl), expires_at, ttl, final_lease };
                if !held.believe(renewed) {
                    return Ok(ExtendOutcome::Absent(None));
                }
            }
        }
        Ok(outcome)
    }

    pub(crate) fn lost_error(&self) -> LockError {
        let reason = self.loss().unwrap_or(LossReason::Released);
        let held_for = Duration::from_millis(u64::try_from(self.held_for().as_millis()).unwrap_or(u64::MAX));
        LockError::new(ErrorCode::LockLost, format!("the lock was lost after {held_for:?}: {}", reason.describe()))
            .with_hint("writes that check the fence are safe; others may overlap with the next holder's")
            .with_key(&self.0.key)
            .with_lock_id(&self.0.lock_id)
    }

    pub(crate) fn boot(&self) -> BootTime {
        self.0.shared.clock.boot()
    }

    pub(crate) fn acquired(&self) -> BootTime {
        self.0.acquired
    }

    pub(crate) fn lose(&self, reason: LossReason) {
        self.0.lose(reason);
    }

    /// Spawns a task that belongs to this lock.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.0.runtime {
            runtime.spawn(task);
        }
    }
}

impl<F: FenceToken> Held<F> {
    // Every change of a belief is one assignment, so a panic elsewhere leaves it whole.
    fn belief(&self) -> MutexGuard<'_, Belief> {
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loss(&self) -> Option<LossReason> {
        let mut belief = self.belief();
        if belief.phase == Phase::Held && self.shared.clock.boot() >= belief.deadline {
            let reason = if belief.final_lease { LossReason::MaxHold } else { LossReason::Expired };
            belief.phase = Phase::Lost(reason);
            drop(belief);
            self.changed.notify_waiters();
            return Some(reason);
        }
        match belief.phase {
            Phase::Held => None,
            Phase::Lost(reason) => Some(reason),
            Phase::Releasing | Phase::Released => Some(LossReason::Released),
        }
    }

    fn remaining(&self) -> Duration {
        if self.loss().is_some() {
            return Duration::ZERO;
        }
        self.belief().deadline.since(self.shared.clock.boot())
    }

    fn lose(&self, reason: LossReason) {
        let mut belief = self.belief();
        if belief.phase == Phase::Held {
            belief.phase = Phase::Lost(reason);
        }
        drop(belief);
        self.changed.notify_waiters();
    }

    fn lower_deadline(&self, to: BootTime) {
        let mut belief = self.belief();
        if to < belief.deadline {
            belief.deadline = to;
            drop(belief);
            self.changed.notify_waiters();
        }
    }

    /// Takes over a renewed lease, unless the lock was lost or released while the reply travelled.
    fn believe(&self, renewed: Belief) -> bool {
        if self.loss().is_some() {
            return false;
        }
        let mut belief = self.belief();
        if belief.phase != Phase::Held {
            return false;
        }
        *belief = renewed;
        drop(belief);
        self.changed.notify_waiters();
        true
    }

    /// Whether there is anything to release. From here on nothing is renewed.
    fn begin_release(&self) -> bool {
        let mut belief = self.belief();
        if belief.phase == Phase::Released {
            return false;
        }
        belief.phase = Phase::Releasing;
        drop(belief);
        self.changed.notify_waiters();
        true
    }

    fn explain(&self, error: LockError) -> LockError {
        error.with_key(&self.key).with_lock_id(&self.lock_id)
    }
}

impl<F: FenceToken> fmt::Debug for Guard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.handle, f)
    }
}

impl<F: FenceToken> fmt::Debug for LockHandle<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.0.key)
            .field("lock_id", &self.0.lock_id)
            .field("fence", &self.0.fence)
            .field("remaining", &self.remaining())
            .finish()
    }
}
