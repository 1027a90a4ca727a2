//! What does the caller want?
//!
//! A request is built by value, validated once when it is used, and then carried out by `acquisition`. Defaults are
//! those of the specification: 30 s lease, 5 s budget, 10 retries from 100 ms, exponential, equal jitter. Requests for
//! several locks and elections wrap this one, so every setting means the same on all three.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::holding::heartbeat::{self, KeepAlive};
use crate::client::plan::Plan;
use crate::client::waiting::acquisition;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::sync::Instant;
use crate::{
    Contention, Guard, IntoKey, IntoLabel, IntoTtl, Key, Label, LockError, LockHandle, LockId, Locker, LossReason,
    ReleaseErrorHook, Result, Ttl,
};

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
    // The words are kept as they were judged: their errors surface where the caller already handles errors.
    key: Result<Key>,
    ttl: Result<Ttl>,
    label: Option<Result<Label>>,
    policy: RetryPolicy,
    /// Whether the caller chose a number of retries. If not, a long budget lifts the default one.
    retries_were_set: bool,
    /// When the budget began, for the later ones of several locks.
    started: Option<Instant>,
    cancel: Vec<CancellationToken>,
    keep_alive: bool,
    renew_every: Option<Duration>,
    max_hold: Option<Duration>,
    on_lost: OnLost,
    on_release_error: Option<ReleaseErrorHook>,
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
        let on_release_error = locker.0.on_release_error.clone();
        Self {
            locker,
            key,
            ttl: Ok(Ttl::DEFAULT),
            label: None,
            policy: RetryPolicy::default(),
            retries_were_set: false,
            started: None,
            cancel: Vec::new(),
            keep_alive: false,
            renew_every: None,
            max_hold: None,
            on_lost: OnLost::default(),
            on_release_error,
        }
    }

    /// The same request for another key.
    pub(crate) fn for_key(mut self, key: impl IntoKey) -> Self {
        self.key = key.into_key();
        self
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

    /// Sets the length of the lease. Default 30 s.
    pub fn ttl(mut self, ttl: impl IntoTtl) -> Self {
        self.ttl = ttl.into_ttl();
        self
    }

    /// Sets the whole budget for getting the lock: a wall, also for an attempt in flight. Default 5 s.
    ///
    /// Zero means one attempt. A budget above the default lifts the default limit of ten retries, since a waiter
    /// who says ten minutes means ten minutes; delays then stay below 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(timeout);
        self
    }

    /// Waits without limit (the cancellation token still ends it).
    pub fn wait_forever(mut self) -> Self {
        self.policy.timeout = None;
        self
    }

    /// Sets how many attempts may follow the first. Default 10.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.policy.max_retries = Some(retries);
        self.retries_were_set = true;
        self
    }

    /// Retries until the budget ends.
    pub fn unlimited_retries(mut self) -> Self {
        self.policy.max_retries = None;
        self.retries_were_set = true;
        self
    }

    /// Sets the delay before the first retry. Default 100 ms.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.policy.retry_delay = delay;
        self
    }

    /// Sets the longest delay between attempts.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.policy.max_delay = Some(delay);
        self
    }

    /// Sets how delays grow. Default exponential.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// Sets how much of a delay is random. Default half.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.jitter = jitter;
        self
    }

    /// Ends waiting at once when the token fires. When it is called twice, either token does. It never keeps a held
    /// lock from being released.
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.cancel.push(token);
        self
    }

    /// Renews the lease every third of its length for as long as the guard lives.
    ///
    /// The renewal is a task of the runtime that the lock is acquired on. Where that stands still, because its caller
    /// computes or all its threads are blocked, a thread of the library renews instead, and a warning tells of it. A lock
    /// is kept for as long as its guard lives, also by work that hangs: [`max_hold`](Self::max_hold) sets a limit.
    pub fn keep_alive(mut self) -> Self {
        self.keep_alive = true;
        self
    }

    /// Renews at this interval instead of a third of the lease. Turns renewal on.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.keep_alive = true;
        self.renew_every = Some(interval);
        self
    }

    /// Sets the longest time that the lock is held: no renewal passes it, and the lock counts as lost then.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// Sets what becomes of the work of [`run`](Self::run) when the lock is lost. Default: it is stopped.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// Sets what the holder calls itself, for people who wonder who holds the lock.
    pub fn label(mut self, label: impl IntoLabel) -> Self {
        self.label = Some(label.into_label());
        self
    }

    /// Calls the hook when a release of this lock failed.
    pub fn on_release_error(mut self, hook: impl Fn(&LockError, &Key, &LockId) + Send + Sync + 'static) -> Self {
        self.on_release_error = Some(Arc::new(hook));
        self
    }

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
        let strict = self.on_lost == OnLost::Stop;
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
        let on_lost = self.on_lost;
        let guard = self.acquire().await?;
        let Some(value) = on_lost.heed(guard.lost(), || work(guard.handle())).await else {
            return Err(guard.lost_error());
        };
        let loss = guard.loss();
        Ok((guard, Report { value, loss }))
    }

    fn validate(&self) -> Result<(Plan, Option<KeepAlive>)> {
        let key = self.key()?.clone();
        let label = self.label.clone().transpose()?;
        let ttl = match self.max_hold {
            Some(longest) if longest < self.ttl.clone()?.duration() => Ttl::new(longest)?,
            _ => self.ttl.clone()?,
        };
        let every = self.renew_every.unwrap_or(ttl.duration() / 3);
        if self.keep_alive && (every.is_zero() || every >= ttl.duration()) {
            return Err(LockError::invalid("the renewal interval must be above zero and below the ttl")
                .with_hint("leave it out: a third of the ttl leaves room for two failures"));
        }
        let policy = self.effective_policy();
        policy.validate()?;
        crate::client::runtime::require()?;
        let plan = Plan {
            key,
            ttl,
            label,
            policy,
            started: self.started,
            cancel: self.cancel.clone(),
            max_hold: self.max_hold,
            on_release_error: self.on_release_error.clone(),
        };
        Ok((plan, self.keep_alive.then_some(KeepAlive { ttl, every })))
    }

    fn effective_policy(&self) -> RetryPolicy {
        let mut policy = self.policy.clone();
        let patient = policy.timeout.is_none_or(|timeout| timeout > RetryPolicy::DEFAULT_TIMEOUT);
        if patient && !self.retries_were_set {
            policy.max_retries = None;
        }
        // Hints may be lost: whoever retries for ever must not sleep for ever.
        if patient && policy.max_retries.is_none() {
            policy.max_delay.get_or_insert(RetryPolicy::PATIENT_MAX_DELAY);
        }
        policy
    }
}
