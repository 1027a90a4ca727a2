//! Which settings does a request have?
//!
//! One list, as one value: requests for a lock, for several locks, elections and the blocking API carry it, and a locker has
//! one of its own for requests that say nothing else. Defaults are those of the specification: 30 s lease, 5 s budget, 10
//! retries from 100 ms, exponential, equal jitter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::holding::heartbeat::KeepAlive;
use crate::retry::{Backoff, Jitter, RetryPolicy};
use crate::{IntoLabel, IntoTtl, Key, Label, LockError, LockId, OnLost, ReleaseErrorHook, Result, Ttl};

/// The settings of a request, as a value that can be kept and shared.
///
/// ```
/// use std::time::Duration;
/// use syncguard_core::{LockOptions, Locker, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let ours = LockOptions::new().ttl(Duration::from_secs(60)).keep_alive().label("billing");
/// let locker = Locker::builder(MemoryBackend::new()).defaults(ours).build();
/// let guard = locker.lock("invoice:7").timeout(Duration::from_secs(1)).acquire().await?;
/// assert!(guard.remaining() > Duration::from_secs(59));
/// # Ok(())
/// # }
/// ```
#[must_use = "settings do nothing until a request uses them"]
#[derive(Clone)]
pub struct LockOptions {
    // The words are kept as they were judged: their errors surface where the caller already handles errors.
    pub(crate) ttl: Result<Ttl>,
    pub(crate) label: Option<Result<Label>>,
    policy: RetryPolicy,
    /// Whether the caller chose a number of retries. If not, a long budget lifts the default one.
    retries_were_set: bool,
    pub(crate) cancel: Vec<CancellationToken>,
    keep_alive: bool,
    renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) on_lost: OnLost,
    pub(crate) on_release_error: Option<ReleaseErrorHook>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl LockOptions {
    /// Makes the settings of a request that says nothing.
    pub fn new() -> Self {
        Self {
            ttl: Ok(Ttl::DEFAULT),
            label: None,
            policy: RetryPolicy::default(),
            retries_were_set: false,
            cancel: Vec::new(),
            keep_alive: false,
            renew_every: None,
            max_hold: None,
            on_lost: OnLost::default(),
            on_release_error: None,
        }
    }

    /// Takes over other settings as a whole.
    pub fn options(self, options: Self) -> Self {
        options
    }

    /// Sets the length of the lease.
    pub fn ttl(mut self, ttl: impl IntoTtl) -> Self {
        self.ttl = ttl.into_ttl();
        self
    }

    /// Sets what the holder calls itself.
    pub fn label(mut self, label: impl IntoLabel) -> Self {
        self.label = Some(label.into_label());
        self
    }

    /// Sets the whole budget for getting the lock.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.policy.timeout = Some(timeout);
        self
    }

    /// Waits without limit.
    pub fn wait_forever(mut self) -> Self {
        self.policy.timeout = None;
        self
    }

    /// Sets a whole policy of retries at once.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self.retries_were_set = true;
        self
    }

    /// Sets how many attempts may follow the first.
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

    /// Sets the delay before the first retry.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.policy.retry_delay = delay;
        self
    }

    /// Sets the longest delay between attempts.
    pub fn max_delay(mut self, delay: Duration) -> Self {
        self.policy.max_delay = Some(delay);
        self
    }

    /// Sets how delays grow.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// Sets how much of a delay is random.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.policy.jitter = jitter;
        self
    }

    /// Ends waiting at once when the token fires.
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.cancel.push(token);
        self
    }

    /// Renews the lease for as long as the guard lives.
    pub fn keep_alive(mut self) -> Self {
        self.keep_alive = true;
        self
    }

    /// Renews at this interval.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.keep_alive = true;
        self.renew_every = Some(interval);
        self
    }

    /// Sets the longest time that the lock is held.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// Sets what becomes of the work when the lock is lost.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// Calls the hook when a release failed.
    pub fn on_release_error(mut self, hook: impl Fn(&LockError, &Key, &LockId) + Send + Sync + 'static) -> Self {
        self.on_release_error = Some(Arc::new(hook));
        self
    }

    /// The lease that is asked for, and how it is renewed.
    pub(crate) fn lease(&self) -> Result<(Ttl, Option<KeepAlive>)> {
        let ttl = match self.max_hold {
            Some(longest) if longest < self.ttl.clone()?.duration() => Ttl::new(longest)?,
            _ => self.ttl.clone()?,
        };
        let every = self.renew_every.unwrap_or(ttl.duration() / 3);
        if self.keep_alive && (every.is_zero() || every >= ttl.duration()) {
            return Err(LockError::invalid("the renewal interval must be above zero and below the ttl")
                .with_hint("leave it out: a third of the ttl leaves room for two failures"));
        }
        Ok((ttl, self.keep_alive.then_some(KeepAlive { ttl, every })))
    }

    /// The policy, with the limits that a long budget lifts.
    pub(crate) fn policy(&self) -> Result<RetryPolicy> {
        let mut policy = self.policy.clone();
        let patient = policy.timeout.is_none_or(|timeout| timeout > RetryPolicy::DEFAULT_TIMEOUT);
        if patient && !self.retries_were_set {
            policy.max_retries = None;
        }
        // Hints may be lost: whoever retries for ever must not sleep for ever.
        if patient && policy.max_retries.is_none() {
            policy.max_delay.get_or_insert(RetryPolicy::PATIENT_MAX_DELAY);
        }
        policy.validate()?;
        Ok(policy)
    }
}

// Neither the hook nor a token has anything to show.
impl fmt::Debug for LockOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockOptions")
            .field("ttl", &self.ttl)
            .field("label", &self.label)
            .field("retry", &self.policy)
            .field("keep_alive", &self.keep_alive)
            .field("renew_every", &self.renew_every)
            .field("max_hold", &self.max_hold)
            .field("on_lost", &self.on_lost)
            .finish_non_exhaustive()
    }
}

/// Writes the methods by which a request offers the settings, each handed on to the field that has them.
#[doc(hidden)]
#[macro_export]
macro_rules! __lock_settings {
    ($inner:tt) => {
        /// Replaces all settings by a value that was made before.
        pub fn options(mut self, options: $crate::LockOptions) -> Self {
            self.$inner = self.$inner.options(options);
            self
        }

        /// Sets the length of each lease. Default 30 s, 15 s for an election.
        pub fn ttl(mut self, ttl: impl $crate::IntoTtl) -> Self {
            self.$inner = self.$inner.ttl(ttl);
            self
        }

        /// Sets what the holder calls itself, for people who wonder who holds the lock.
        pub fn label(mut self, label: impl $crate::IntoLabel) -> Self {
            self.$inner = self.$inner.label(label);
            self
        }

        /// Sets the whole budget for getting the lock: a wall, also for an attempt in flight. Default 5 s.
        ///
        /// Zero means one attempt. A budget above the default lifts the default limit of ten retries, since a waiter
        /// who says ten minutes means ten minutes; delays then stay below 5 s.
        pub fn timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.$inner = self.$inner.timeout(timeout);
            self
        }

        /// Waits without limit (a cancellation token still ends it).
        pub fn wait_forever(mut self) -> Self {
            self.$inner = self.$inner.wait_forever();
            self
        }

        /// Sets a whole policy of retries at once, budget included.
        pub fn retry(mut self, policy: $crate::retry::RetryPolicy) -> Self {
            self.$inner = self.$inner.retry(policy);
            self
        }

        /// Sets how many attempts may follow the first. Default 10.
        pub fn max_retries(mut self, retries: u32) -> Self {
            self.$inner = self.$inner.max_retries(retries);
            self
        }

        /// Retries until the budget ends.
        pub fn unlimited_retries(mut self) -> Self {
            self.$inner = self.$inner.unlimited_retries();
            self
        }

        /// Sets the delay before the first retry. Default 100 ms.
        pub fn retry_delay(mut self, delay: ::std::time::Duration) -> Self {
            self.$inner = self.$inner.retry_delay(delay);
            self
        }

        /// Sets the longest delay between attempts.
        pub fn max_delay(mut self, delay: ::std::time::Duration) -> Self {
            self.$inner = self.$inner.max_delay(delay);
            self
        }

        /// Sets how delays grow. Default exponential.
        pub fn backoff(mut self, backoff: $crate::retry::Backoff) -> Self {
            self.$inner = self.$inner.backoff(backoff);
            self
        }

        /// Sets how much of a delay is random. Default half.
        pub fn jitter(mut self, jitter: $crate::retry::Jitter) -> Self {
            self.$inner = self.$inner.jitter(jitter);
            self
        }

        /// Ends waiting at once when the token fires. When it is called twice, either token does. It never keeps a held
        /// lock from being released.
        pub fn cancel(mut self, token: $crate::CancellationToken) -> Self {
            self.$inner = self.$inner.cancel(token);
            self
        }

        /// Renews the lease every third of its length for as long as the guard lives.
        ///
        /// The renewal is a task of the runtime that the lock is acquired on. Where that stands still, because its caller
        /// computes or all its threads are blocked, a thread of the library renews instead, and a warning tells of it. A
        /// lock is kept for as long as its guard lives, also by work that hangs: [`max_hold`](Self::max_hold) sets a limit.
        /// Several locks and elections are always kept alive.
        pub fn keep_alive(mut self) -> Self {
            self.$inner = self.$inner.keep_alive();
            self
        }

        /// Renews at this interval instead of a third of the lease. Turns renewal on.
        pub fn renew_every(mut self, interval: ::std::time::Duration) -> Self {
            self.$inner = self.$inner.renew_every(interval);
            self
        }

        /// Sets the longest time that the lock is held: no renewal passes it, and the lock counts as lost then.
        pub fn max_hold(mut self, longest: ::std::time::Duration) -> Self {
            self.$inner = self.$inner.max_hold(longest);
            self
        }

        /// Sets what becomes of the work when the lock is lost. Default: it is stopped.
        pub fn on_lost(mut self, on_lost: $crate::OnLost) -> Self {
            self.$inner = self.$inner.on_lost(on_lost);
            self
        }

        /// Calls the hook when a release of this lock failed.
        pub fn on_release_error(
            mut self,
            hook: impl Fn(&$crate::LockError, &$crate::Key, &$crate::LockId) + Send + Sync + 'static,
        ) -> Self {
            self.$inner = self.$inner.on_release_error(hook);
            self
        }
    };
}
