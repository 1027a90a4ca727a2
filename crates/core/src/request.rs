//! What does the caller want?
//!
//! A request is built by value, validated once when it is used, and then carried out by `attempt`. Defaults are those of
//! the specification: 30 s lease, 5 s budget, 10 retries from 100 ms, exponential, equal jitter.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::attempt::{self, Plan};
use crate::heartbeat::{self, KeepAlive};
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::{
    Fence, FenceToken, Guard, Key, Label, LockError, LockHandle, LockId, Locker, ReleaseErrorHook, Result, Ttl,
};

/// What becomes of the work when its lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnLost {
    /// It is dropped, and the caller gets [`LockLost`](crate::ErrorCode::LockLost).
    #[default]
    Stop,
    /// It goes on; it may ask [`LockHandle::check`] itself. For work whose resource checks the fence.
    Continue,
}

/// A request for one lock. Finish it with [`try_acquire`](Self::try_acquire), [`acquire`](Self::acquire) or [`run`](Self::run).
#[must_use = "a request does nothing until it is used"]
#[derive(Clone)]
pub struct LockRequest<F: FenceToken = Fence> {
    locker: Locker<F>,
    // Kept as given: errors surface where the caller already handles errors.
    key: Result<Key, Arc<LockError>>,
    ttl: Duration,
    label: Option<Result<Label, Arc<LockError>>>,
    policy: RetryPolicy,
    retries_were_set: bool,
    cancel: Option<CancellationToken>,
    keep_alive: bool,
    renew_every: Option<Duration>,
    max_hold: Option<Duration>,
    on_lost: OnLost,
    on_release_error: Option<ReleaseErrorHook>,
}

impl<F: FenceToken> LockRequest<F> {
    pub(crate) fn new(locker: Locker<F>, key: Result<Key>) -> Self {
        let on_release_error = locker.0.on_release_error.clone();
        Self {
            locker,
            key: key.map_err(Arc::new),
            ttl: Ttl::DEFAULT.duration(),
            label: None,
            policy: RetryPolicy::default(),
            retries_were_set: false,
            cancel: None,
            keep_alive: false,
            renew_every: None,
            max_hold: None,
            on_lost: OnLost::default(),
            on_release_error,
        }
    }

    /// The length of the lease. Default 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The whole budget for getting the lock: a wall, also for an attempt in flight. Default 5 s.
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

    /// How many attempts may follow the first. Default 10.
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

    /// The delay before the first retry. Default 100 ms.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.policy.retry_delay = delay;
        self
    }

    /// The longest delay between attempts.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.policy.max_delay = Some(delay);
        self
    }

    /// How delays grow. Default exponential.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// How much of a delay is random. Default half.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.jitter = jitter;
        self
    }

    /// Ends waiting at once when the token fires. It never keeps a held lock from being released.
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Renews the lease every third of its length for as long as the guard lives.
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

    /// The longest the lock is held: renewal stops so that the lease ends then, and the lock counts as lost.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// What becomes of the work of [`run`](Self::run) when the lock is lost. Default: it is stopped.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// What the holder calls itself, for people who wonder who holds the lock.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(Label::new(label).map_err(Arc::new));
        self
    }

    /// Hears of a release of this lock that failed.
    pub fn on_release_error(mut self, hook: impl Fn(&LockError, &Key, &LockId) + Send + Sync + 'static) -> Self {
        self.on_release_error = Some(Arc::new(hook));
        self
    }

    /// Tries once. Contention is `None`, not an error.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) before any I/O for bad settings,
    /// [`Aborted`](crate::ErrorCode::Aborted) when cancelled, otherwise what the backend reports.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind: an attempt in flight is finished and undone in the background.
    pub async fn try_acquire(self) -> Result<Option<Guard<F>>> {
        let (plan, renewal) = self.validate()?;
        let guard = attempt::once(&self.locker, &plan).await?;
        Ok(guard.inspect(|guard| heartbeat::start(guard, renewal)))
    }

    /// Waits for the lock within the budget.
    ///
    /// # Errors
    /// [`AcquisitionTimeout`](crate::ErrorCode::AcquisitionTimeout) when somebody else held it for the whole budget; the last
    /// transient error when the backend was not to be reached at its end; otherwise as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn acquire(self) -> Result<Guard<F>> {
        let (plan, renewal) = self.validate()?;
        let guard = attempt::until_acquired(&self.locker, &plan).await?;
        heartbeat::start(&guard, renewal);
        Ok(guard)
    }

    /// Waits for the lock, runs the work under it and releases. The work is dropped at the moment the lock is lost.
    ///
    /// The outer result speaks of the lock; what the work returns, also its own `Result`, is inside.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockLost`](crate::ErrorCode::LockLost) when the lock did not last as long as the work. A
    /// release that failed is no error: it is told to the hook, and the lease ends the lock.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    pub async fn run<T>(self, work: impl AsyncFnOnce(LockHandle<F>) -> T) -> Result<T> {
        let on_lost = self.on_lost;
        let guard = self.acquire().await?;
        let finished = match on_lost {
            OnLost::Continue => Some(work(guard.handle()).await),
            OnLost::Stop => tokio::select! {
                biased;
                value = work(guard.handle()) => guard.is_held().then_some(value),
                _ = guard.lost() => None,
            },
        };
        match finished {
            Some(value) => {
                guard.release_quietly().await;
                Ok(value)
            }
            // The backend may be out of reach: the caller learns of the loss now, the release is tried behind its back.
            None => Err(guard.lost_error()),
        }
    }

    fn validate(&self) -> Result<(Plan, Option<KeepAlive>)> {
        let key = self.key.as_ref().map_err(again)?.clone();
        let label = match &self.label {
            Some(label) => Some(label.as_ref().map_err(again)?.clone()),
            None => None,
        };
        let ttl = Ttl::new(self.max_hold.map_or(self.ttl, |longest| self.ttl.min(longest)))?;
        let every = self.renew_every.unwrap_or(ttl.duration() / 3);
        if self.keep_alive && (every.is_zero() || every >= ttl.duration()) {
            return Err(LockError::invalid("the renewal interval must be above zero and below the ttl")
                .with_hint("leave it out: a third of the ttl leaves room for two failures"));
        }
        let policy = self.effective_policy();
        policy.validate()?;
        let renewal = self.keep_alive.then_some(KeepAlive { ttl, every, max_hold: self.max_hold });
        let plan = Plan {
            key,
            ttl,
            label,
            policy,
            cancel: self.cancel.clone(),
            on_release_error: self.on_release_error.clone(),
        };
        Ok((plan, renewal))
    }

    fn effective_policy(&self) -> RetryPolicy {
        let mut policy = self.policy.clone();
        let patient = policy.timeout.is_none_or(|timeout| timeout > RetryPolicy::DEFAULT_TIMEOUT);
        if patient && !self.retries_were_set {
            policy.max_retries = None;
            policy.max_delay.get_or_insert(RetryPolicy::PATIENT_MAX_DELAY);
        }
        policy
    }
}

/// A stored validation error, made anew for this use of the request.
fn again(error: &Arc<LockError>) -> LockError {
    let copy = LockError::new(error.code(), error.to_string());
    match error.hint() {
        Some(hint) => copy.with_hint(hint.to_owned()),
        None => copy,
    }
}
