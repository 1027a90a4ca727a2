//! Which mistakes must the tests be able to see?
//!
//! A module of the core in the copy of the tree that `cargo xtask prove` makes, and nowhere else. A test switches one of the
//! classic mistakes on and proves that the test named for it in `docs/guarantees.md` turns red; `xtask/src/mistakes.rs` says
//! where in the code each is planted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::client::holding::belief::Granted;
use crate::time::Clock;
use crate::{BootTime, LossReason};

/// The mistakes that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeededBug {
    /// The deadline counts from the reply: a slow reply lets the guard outlive its lease.
    DeadlineFromReply,
    /// The deadline is the stored expiry, read on this machine's wall clock.
    DeadlineByTheWall,
    /// A lease that is owned up to counts as new.
    IgnoresTheAge,
    /// Leases are measured on a clock that stands still while the machine sleeps.
    ClockStopsInSleep,
    /// Renewal goes on after the lock was lost.
    RenewsTheLost,
    /// Renewal goes on after the lock was released.
    RenewsTheReleased,
    /// One failed renewal ends renewal.
    OneFailureEndsRenewal,
    /// Only the task that waits for the loss sets it; whoever asks in between is told of an old state.
    LossOnlyByTheTask,
    /// A retry after a lost reply asks under a new id and forgets the old one.
    NewIdOnRetry,
    /// The release heeds the caller's cancelled token.
    ReleaseUnderTheCallersToken,
    /// Dropping a guard spawns on whatever runtime there is.
    DropSpawnsWithoutAHandle,
    /// Fences are written without leading zeros.
    UnpaddedFence,
    /// The limit of fences is compared as text.
    LimitComparedAsText,
    /// Keys are taken as they come.
    NoNormalisation,
    /// Errors show the key.
    RawKeyInErrors,
    /// Waiters march in step.
    NoJitter,
}

static PLANTED: RwLock<Option<SeededBug>> = RwLock::new(None);
static TURN: Mutex<()> = Mutex::new(());

/// A mistake that is switched on, until this is dropped.
pub struct Planted(#[allow(dead_code, reason = "held for its drop")] MutexGuard<'static, ()>);

/// Switches a mistake on, on all threads. Tests that do so take turns.
#[must_use]
pub fn plant(bug: SeededBug) -> Planted {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *PLANTED.write().unwrap_or_else(PoisonError::into_inner) = Some(bug);
    Planted(turn)
}

impl Drop for Planted {
    fn drop(&mut self) {
        *PLANTED.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

pub(crate) fn has(bug: SeededBug) -> bool {
    *PLANTED.read().unwrap_or_else(PoisonError::into_inner) == Some(bug)
}

/// Whether somebody goes on renewing although the lock is over.
pub(crate) fn goes_on_when_it_is_over() -> bool {
    has(SeededBug::RenewsTheLost) || has(SeededBug::RenewsTheReleased)
}

/// Whether a lock is renewed after this loss.
pub(crate) fn is_renewed_after(loss: LossReason) -> bool {
    match loss {
        LossReason::Released => has(SeededBug::RenewsTheReleased),
        _ => has(SeededBug::RenewsTheLost),
    }
}

/// From when, and for how long, a lease is believed in: as it was granted.
pub(crate) fn granted(granted: Granted, received: BootTime, clock: &dyn Clock) -> Granted {
    if has(SeededBug::DeadlineFromReply) {
        return Granted { sent: received, ..granted };
    }
    if has(SeededBug::DeadlineByTheWall) {
        let left = Some(granted.expires_at.since(clock.wall()));
        return Granted { sent: received, left, ..granted };
    }
    granted
}

/// The clock that leases are measured on.
pub(crate) fn clock(clock: Arc<dyn Clock>) -> Arc<dyn Clock> {
    if has(SeededBug::ClockStopsInSleep) { Arc::new(Timers(clock)) } else { clock }
}

/// The clock of timers, which stands still while the machine sleeps.
#[derive(Debug)]
struct Timers(Arc<dyn Clock>);

impl Clock for Timers {
    fn boot(&self) -> BootTime {
        crate::TokioClock.boot()
    }

    fn wall(&self) -> crate::Timestamp {
        self.0.wall()
    }
}
