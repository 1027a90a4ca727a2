//! Who leads?
//!
//! Whoever holds the key. Leadership is a kept-alive lock that is waited for without limit; its **term** is the fence, so a resource
//! can refuse a leader that was deposed and does not know it yet.

use std::ops::Deref;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{
    ErrorCode, Fence, FenceToken, Guard, HasFence, Key, LockHandle, LockInfo, LockRequest, Locker, Lookup, Result,
};
use crate::{LockBackend, LockError, ReleaseOutcome};

/// An election for one key. Make it with [`Locker::elect`].
///
/// ```
/// use syncguard_core::{Locker, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard_core::LockError> {
/// let locker = Locker::new(MemoryBackend::new());
/// let leader = locker.elect("leader:mailer").label("host-7").campaign().await?;
/// assert_eq!(leader.term().get(), 1);
/// leader.resign().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "an election does nothing until somebody campaigns"]
#[derive(Clone)]
pub struct Election<F: FenceToken = Fence> {
    locker: Locker<F>,
    request: LockRequest<F>,
    key: std::result::Result<Key, ErrorCode>,
}

impl<F: FenceToken> Election<F> {
    pub(crate) fn new(locker: Locker<F>, key: Result<Key>) -> Self {
        let known = key.as_ref().map(Key::clone).map_err(LockError::code);
        let request = LockRequest::new(locker.clone(), key).ttl(Duration::from_secs(15)).wait_forever().keep_alive();
        Self { locker, request, key: known }
    }

    /// How long after a leader's death another one is elected, at the most (plus the tolerance). Default 15 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.request = self.request.ttl(ttl);
        self
    }

    /// What this candidate calls itself.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.request = self.request.label(label);
        self
    }

    /// Ends campaigning at once when the token fires.
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.request = self.request.cancel(token);
        self
    }

    /// Waits, for as long as it takes, to become the leader.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`], without its timeout.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the campaign without a trace.
    pub async fn campaign(&self) -> Result<Leadership<F>> {
        Ok(Leadership { guard: self.request.clone().acquire().await? })
    }

    /// Leads again and again: runs `work` in each term, drops it when the leadership is lost, and campaigns anew, until the work
    /// returns by itself.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and resigns in the background.
    pub async fn lead<T>(&self, mut work: impl AsyncFnMut(LockHandle<F>) -> T) -> Result<T> {
        loop {
            let leadership = self.campaign().await?;
            let finished = tokio::select! {
                biased;
                value = work(leadership.guard.handle()) => Some(value),
                _ = leadership.guard.lost() => None,
            };
            if let Some(value) = finished {
                leadership.guard.release_quietly().await;
                return Ok(value);
            }
        }
    }

    /// Who leads now, for onlookers.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn observe(&self) -> Result<Option<LockInfo<F>>> {
        let key = self.key.as_ref().map_err(|code| LockError::new(*code, "the election's key is not acceptable"))?;
        self.locker.backend().lookup(Lookup::Key(key)).await
    }
}

/// A leadership that is held. Dropping it resigns.
#[must_use = "a dropped leadership is resigned"]
#[derive(Debug)]
pub struct Leadership<F: FenceToken = Fence> {
    guard: Guard<F>,
}

impl<F: FenceToken> Leadership<F> {
    /// The term: the fence of this leadership, higher than that of every leader before.
    pub fn term(&self) -> Fence
    where
        F: HasFence,
    {
        self.guard.fence()
    }

    /// Gives the leadership up.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn resign(&self) -> Result<ReleaseOutcome> {
        self.guard.release().await
    }
}

impl<F: FenceToken> Deref for Leadership<F> {
    type Target = LockHandle<F>;

    fn deref(&self) -> &LockHandle<F> {
        &self.guard
    }
}
