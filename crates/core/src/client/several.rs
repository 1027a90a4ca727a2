//! How are several locks taken without a deadlock?
//!
//! In the order of their keys, which is the same in every process, within one budget, all or nothing. Locks already
//! taken are renewed while the rest is waited for, and the loss of one is the loss of all.

use std::fmt;
use std::time::Duration;

use crate::sync::Instant;

use crate::{
    Fence, Guard, Key, LockError, LockHandle, LockOptions, LockRequest, Locker, LossReason, OnLost, Report, Result,
};

/// A request for several locks. Finish it with [`acquire`](Self::acquire) or [`run`](Self::run).
///
/// ```
/// use syncguard_core::{Locker, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let locker = Locker::new(MemoryBackend::new());
/// let moved = locker.lock_all(["account:b", "account:a"]).run(async |locks| locks.len()).await?;
/// assert_eq!(moved, 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until it is used"]
#[derive(Clone)]
pub struct LockAllRequest {
    locker: Locker,
    keys: Vec<Result<Key>>,
    options: LockOptions,
}

impl LockAllRequest {
    pub(crate) fn new(locker: Locker, keys: Vec<Result<Key>>) -> Self {
        let options = locker.0.defaults.clone();
        Self { locker, keys, options }
    }

    crate::__lock_settings!(options);

    /// The request for one of them, which is kept alive while the others are waited for.
    fn one(&self, key: Key) -> LockRequest {
        LockRequest::new(self.locker.clone(), Ok(key)).options(self.options.clone().keep_alive())
    }

    /// Takes all of them or none.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]; [`InvalidArgument`](crate::ErrorCode::InvalidArgument) without any key. Locks that
    /// were already taken are released.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn acquire(self) -> Result<GuardAll> {
        let started = Instant::now();
        let keys = self.sorted()?;
        let mut guards: Vec<Guard> = Vec::with_capacity(keys.len());
        for key in keys {
            // The budget began with the first: a wall that has passed cuts the next attempt at once.
            guards.push(self.one(key).counted_from(started).acquire().await?);
        }
        let all = GuardAll { guards };
        all.check()?;
        Ok(all)
    }

    /// Tries once. `None` when somebody else holds one of them; those that were free are released again.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without its timeout.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind.
    pub async fn try_acquire(self) -> Result<Option<GuardAll>> {
        let mut all = GuardAll { guards: Vec::new() };
        for key in self.sorted()? {
            match self.one(key).try_acquire().await? {
                Some(guard) => all.guards.push(guard),
                None => {
                    all.release().await?;
                    return Ok(None);
                }
            }
        }
        all.check()?;
        Ok(Some(all))
    }

    /// Takes all of them, runs the work under them and releases. The work is dropped when any of them is lost, and not
    /// polled again after the deadline of any.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockLost`](crate::ErrorCode::LockLost) when one did not last.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the locks in the background.
    pub async fn run<Work, Running>(self, work: Work) -> Result<Running::Output>
    where
        Work: FnOnce(Vec<LockHandle>) -> Running,
        Running: Future,
    {
        let strict = self.options.on_lost == OnLost::Stop;
        let (all, report) = self.work_under_the_locks(work).await?;
        if strict && report.loss.is_some() {
            return Err(all.lost_error());
        }
        all.release_quietly().await;
        Ok(report.value)
    }

    /// Does what [`run`](Self::run) does, and keeps the value of work that finished although a lock of it was lost.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`LockLost`](crate::ErrorCode::LockLost) only for work that did not finish.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_and_report<Work, Running>(self, work: Work) -> Result<Report<Running::Output>>
    where
        Work: FnOnce(Vec<LockHandle>) -> Running,
        Running: Future,
    {
        let (all, report) = self.work_under_the_locks(work).await?;
        if report.loss.is_none() {
            all.release_quietly().await;
        }
        Ok(report)
    }

    async fn work_under_the_locks<Work, Running>(self, work: Work) -> Result<(GuardAll, Report<Running::Output>)>
    where
        Work: FnOnce(Vec<LockHandle>) -> Running,
        Running: Future,
    {
        let on_lost = self.options.on_lost;
        let all = self.acquire().await?;
        let handles = all.guards.iter().map(Guard::handle).collect();
        let Some(value) = on_lost.heed(all.lost(), || work(handles)).await else {
            return Err(all.lost_error());
        };
        let loss = all.loss();
        Ok((all, Report { value, loss }))
    }

    fn sorted(&self) -> Result<Vec<Key>> {
        let mut keys = self.keys.iter().cloned().collect::<Result<Vec<_>>>()?;
        if keys.is_empty() {
            return Err(LockError::invalid("lock_all needs at least one key"));
        }
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

/// Several held locks, in the order of their keys. Dropping it releases them all.
#[must_use = "a dropped guard releases its locks"]
pub struct GuardAll {
    guards: Vec<Guard>,
}

impl GuardAll {
    /// Returns the single guards, in the order of their keys.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Returns the fence of each key, in the order of the keys.
    pub fn fences(&self) -> Vec<Fence> {
        self.guards.iter().map(|guard| guard.fence()).collect()
    }

    /// Returns how much longer all of them may be believed in.
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(|guard| guard.remaining()).min().unwrap_or_default()
    }

    /// Returns why one of them is not held any more, or `None` while all are.
    pub fn loss(&self) -> Option<LossReason> {
        self.guards.iter().find_map(|guard| guard.loss())
    }

    /// Returns `Ok` while all of them are held.
    ///
    /// # Errors
    /// [`LockLost`](crate::ErrorCode::LockLost) once one of them is not.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(|guard| guard.check())
    }

    /// Resolves when the first of them is lost.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) -> LossReason {
        let mut waits: Vec<_> = self.guards.iter().map(|guard| Box::pin(guard.lost())).collect();
        std::future::poll_fn(|context| {
            for wait in &mut waits {
                if let std::task::Poll::Ready(reason) = wait.as_mut().poll(context) {
                    return std::task::Poll::Ready(reason);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Releases all of them, the last taken first.
    ///
    /// # Errors
    /// The first failure; the others are still tried.
    pub async fn release(&self) -> Result<()> {
        let mut failure = None;
        for guard in self.guards.iter().rev() {
            if let Err(error) = guard.release().await {
                failure.get_or_insert(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn release_quietly(&self) {
        for guard in self.guards.iter().rev() {
            guard.release_quietly().await;
        }
    }

    fn lost_error(&self) -> LockError {
        let lost = self.guards.iter().find(|guard| !guard.is_held());
        lost.map_or_else(|| LockError::internal("no lock of the set is lost"), |guard| guard.lost_error())
    }
}

impl fmt::Debug for GuardAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
