//! What does the caller want?
//!
//! A request is built by value, validated once when it is used, and then carried out by `acquisition`. Its settings are
//! one value, [`LockOptions`], which requests for several locks and elections have as well.

use crate::client::holding::heartbeat::{self, KeepAlive};
use crate::client::plan::Plan;
use crate::client::waiting::acquisition;
use crate::sync::Instant;
use crate::{Contention, Guard, Key, LockError, LockHandle, LockOptions, Locker, LossReason, Result};

/// What becomes of the work when its lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// It is dropped, and the caller gets [`LockLost`](crate::ErrorCode::LockLost).
    #[default]
    Stop,
    /// It goes on; it may ask [`LockHandle::check`] itself. For work whose resource checks the fence.
    Continue,
}

impl OnLost {
    /// Does the work; `None` if it was stopped by the loss, which is asked for before each poll of the work.
    pub(crate) async fn heed<Running: Future>(
        self,
        lost: impl Future<Output = LossReason>,
        work: impl FnOnce() -> Running,
    ) -> Option<Running::Output> {
        match self {
            Self::Continue => Some(work().await),
            Self::Stop => tokio::select! {
                biased;
                _ = lost => None,
                value = work() => Some(value),
            },
        }
    }
}

/// A request for one lock. Finish it with [`try_acquire`](Self::try_acquire), [`acquire`](Self::acquire) or
/// [`run`](Self::run).
#[must_use = "a request does nothing until it is used"]
#[derive(Clone)]
pub struct LockRequest {
    locker: Locker,
    // Kept as it was judged: its error surfaces where the caller already handles errors.
    key: Result<Key>,
    options: LockOptions,
    /// When the budget began, for the later ones of several locks.
    started: Option<Instant>,
}

/// What one attempt led to.
#[must_use = "the lock may be somebody else's"]
#[derive(Debug)]
pub enum Attempt {
    /// The lock is held.
    Acquired(Guard),
    /// Somebody else holds it, perhaps with how long at the most.
    Contended(Contention),
}

/// The value of work that has finished, and whether its lock lasted as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report<T> {
    /// What the work returned.
    pub value: T,
    /// Why the lock was not held any more when the work finished; `None` when it was.
    pub loss: Option<LossReason>,
}

impl<T> Report<T> {
    /// Makes the report of work that returned `value`, with the reason why its lock was not held any more by then.
    pub const fn new(value: T, loss: Option<LossReason>) -> Self {
        Self { value, loss }
    }
}

impl LockRequest {
    pub(crate) fn new(locker: Locker, key: Result<Key>) -> Self {
        let options = locker.0.defaults.clone();
        Self { locker, key, options, started: None }
    }

    /// Counts the budget from an earlier moment: several locks share one.
    pub(crate) fn counted_from(mut self, started: Instant) -> Self {
        self.started = Some(started);
        self
    }

    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    pub(crate) fn key(&self) -> Result<&Key> {
        self.key.as_ref().map_err(LockError::clone)
    }

    /// What becomes of the work when the lock is lost.
    pub(crate) fn heeds(&self) -> OnLost {
        self.options.on_lost
    }

    crate::__lock_settings!(options);

    /// Tries once. Contention is `None`, not an error.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) before any I/O for bad settings and where no tokio
    /// runtime with timers is running, [`Aborted`](crate::ErrorCode::Aborted) when cancelled, otherwise what the
    /// backend reports.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind: an attempt in flight is finished and undone in the background.
    #[doc(alias = "no_wait")]
    #[doc(alias = "try_lock")]
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        match self.attempt().await? {
            Attempt::Acquired(guard) => Ok(Some(guard)),
            Attempt::Contended(_) => Ok(None),
        }
    }

    /// Tries once, and tells of contention how long it may last where the backend knows: for a `Retry-After`, for
    /// example.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn attempt(self) -> Result<Attempt> {
        let (plan, renewal) = self.validate()?;
        Ok(match acquisition::once(&self.locker, &plan).await? {
            Ok(guard) => {
                heartbeat::start(&guard, renewal);
                Attempt::Acquired(guard)
            }
            Err(contention) => Attempt::Contended(contention),
        })
    }

    /// Waits for the lock within the budget.
    ///
    /// # Errors
    /// [`AcquisitionTimeout`](crate::ErrorCode::AcquisitionTimeout) when somebody else held it to the end of the budget;
    /// [`NetworkTimeout`](crate::ErrorCode::NetworkTimeout) or the last transient error when the backend did not answer at
    /// its end; otherwise as [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn acquire(self) -> Result<Guard> {
        let (plan, renewal) = self.validate()?;
        let guard = acquisition::until_acquired(&self.locker, &plan).await?;
        heartbeat::start(&guard, renewal);
        Ok(guard)
    }

    /// Waits for the lock, runs the work under it and releases. The work is dropped at the moment the lock is lost: it is
    /// not polled again after the deadline, also when the process was stopped meanwhile. A step that is running goes on to
    /// the next `.await` that has to wait.
    ///
    /// The outer result speaks of the lock; what the work returns, also its own `Result`, is inside. `run` is strict:
    /// the value of work that finished after its lock was lost is dropped, because another holder may have worked
    /// at the same time. Where that value matters all the same (the receipt of a charge that did happen), use
    /// [`run_and_report`](Self::run_and_report).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockLost`](crate::ErrorCode::LockLost) when the lock did not last as long
    /// as the work. A release that failed is no error: it is told to the hook, and the lease ends the lock.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    #[doc(alias = "with_lock")]
    #[doc(alias = "try_run")]
    pub async fn run<Work, Running>(self, work: Work) -> Result<Running::Output>
    where
        Work: FnOnce(LockHandle) -> Running,
        Running: Future,
    {
        let strict = self.heeds() == OnLost::Stop;
        let (guard, report) = self.work_under_the_lock(work).await?;
        match report.loss {
            // The backend may be out of reach: the caller learns of the loss now, the release is tried behind its back.
            Some(_) if strict => Err(guard.lost_error()),
            _ => {
                guard.release_quietly().await;
                Ok(report.value)
            }
        }
    }

    /// Does what [`run`](Self::run) does, and keeps the value of work that finished although its lock was lost.
    ///
    /// Work that has not finished is still dropped at the moment of the loss, unless [`OnLost::Continue`] was chosen.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`LockLost`](crate::ErrorCode::LockLost) only for work that did not finish.
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_and_report<Work, Running>(self, work: Work) -> Result<Report<Running::Output>>
    where
        Work: FnOnce(LockHandle) -> Running,
        Running: Future,
    {
        let (guard, report) = self.work_under_the_lock(work).await?;
        if report.loss.is_none() {
            guard.release_quietly().await;
        }
        Ok(report)
    }

    async fn work_under_the_lock<Work, Running>(self, work: Work) -> Result<(Guard, Report<Running::Output>)>
    where
        Work: FnOnce(LockHandle) -> Running,
        Running: Future,
    {
        let on_lost = self.heeds();
        let guard = self.acquire().await?;
        let Some(value) = on_lost.heed(guard.lost(), || work(guard.handle())).await else {
            return Err(guard.lost_error());
        };
        let loss = guard.loss();
        Ok((guard, Report { value, loss }))
    }

    fn validate(&self) -> Result<(Plan, Option<KeepAlive>)> {
        let options = &self.options;
        let key = self.key()?.clone();
        let label = options.label.clone().transpose()?;
        let (ttl, renewal) = options.lease()?;
        let policy = options.policy()?;
        crate::client::runtime::require()?;
        let plan = Plan {
            key,
            ttl,
            label,
            policy,
            started: self.started,
            cancel: options.cancel.clone(),
            max_hold: options.max_hold,
            on_release_error: options.on_release_error.clone(),
        };
        Ok((plan, renewal))
    }
}
