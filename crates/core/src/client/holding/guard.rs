//! Who gives the lock back?
//!
//! The guard: it owns the acquisition and releases it, by hand or when it is dropped. What it knows of the lock is in
//! `handle`.

use std::fmt;
use std::ops::Deref;

use crate::client::release::clean_up;
use crate::{LockHandle, LockId, ReleaseOutcome, Result};

/// The owner of a held lock: releases it when dropped.
///
/// Everything that can be asked of a held lock is on [`LockHandle`], to which this derefs.
///
/// Bind it to a name: `let _ = request.acquire().await?` drops the guard, and with it the lock, at once, and no
/// compiler warns of it. `let _guard = …` keeps it to the end of the block.
///
/// # Drop
/// Dropping a guard starts a bounded release on the runtime that the guard was made on and never blocks or panics;
/// [`Locker::shutdown`](crate::Locker::shutdown) and [`Locker::drain`](crate::Locker::drain) wait for it. Without a
/// runtime the lease ends the lock. In a forked child nothing is released: the lock is the parent's. A guard given to
/// [`std::mem::forget`] with renewal on is renewed until the process ends; use [`Guard::leak`] instead.
#[must_use = "a dropped guard releases its lock at once; bind it to a name (not to `_`)"]
pub struct Guard {
    handle: LockHandle,
}

impl Guard {
    pub(crate) fn new(handle: LockHandle) -> Self {
        Self { handle }
    }

    /// Returns a view that can be given away.
    pub fn handle(&self) -> LockHandle {
        self.handle.clone()
    }

    /// Gives the lock back. Renewal stops with the call, whatever its result.
    ///
    /// A second release answers [`Absent`](ReleaseOutcome::Absent) without asking the backend. One that failed may be
    /// tried again.
    ///
    /// # Errors
    /// What the backend reports.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the release to the guard's drop.
    #[doc(alias = "unlock")]
    pub async fn release(&self) -> Result<ReleaseOutcome> {
        let held = &self.handle.0;
        if !held.begin_release() {
            return Ok(ReleaseOutcome::Absent(None));
        }
        let outcome =
            clean_up::release(&held.shared, &held.lock_id).await.map_err(|error| error.with_key(&held.key))?;
        held.end_release();
        Ok(outcome)
    }

    /// Releases, and tells the hook if that failed for good. After a passing fault the drop tries again and tells in
    /// the end.
    pub(crate) async fn release_quietly(&self) {
        let held = &self.handle.0;
        if let Err(error) = self.release().await
            && !error.is_transient()
        {
            clean_up::report(&error, &held.key, &held.lock_id, held.on_release_error.as_ref());
            held.end_release();
        }
    }

    /// Lets go of the guard without releasing: the lock stays until its lease ends, and the id can extend or release
    /// it.
    pub fn leak(self) -> LockId {
        self.handle.0.end_release();
        self.handle.0.lock_id.clone()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let held = &self.handle.0;
        if held.process != std::process::id() || !held.begin_release() {
            return;
        }
        clean_up::release_dropped(&self.handle);
    }
}

impl Deref for Guard {
    type Target = LockHandle;

    fn deref(&self) -> &LockHandle {
        &self.handle
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.handle, f)
    }
}
