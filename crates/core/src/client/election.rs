//! Who leads?
//!
//! Whoever holds the key. Leadership is a kept-alive lock that is waited for without limit; its **term** is the fence,
//! so a resource can refuse a leader that was deposed and does not know it yet.

use std::ops::Deref;
use std::time::Duration;

use crate::{Fence, Guard, LockHandle, LockInfo, LockRequest, Lookup, ReleaseOutcome, Result};

/// An election for one key. Make it with [`Locker::elect`](crate::Locker::elect).
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
pub struct Election {
    request: LockRequest,
}

impl Election {
    pub(crate) fn new(request: LockRequest) -> Self {
        Self { request: request.ttl(Duration::from_secs(15)).wait_forever().keep_alive() }
    }

    crate::__lock_settings!(request);

    /// Waits, for as long as it takes, to become the leader.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`], without its timeout.
    ///
    /// # Cancel safety
    /// Dropping the future ends the campaign, and nothing is left of it.
    pub async fn campaign(&self) -> Result<Leadership> {
        Ok(Leadership { guard: self.request.clone().acquire().await? })
    }

    /// Tries once to become the leader. `None` while somebody else leads.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Cancel safety
    /// As [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        Ok(self.request.clone().try_acquire().await?.map(|guard| Leadership { guard }))
    }

    /// Leads again and again: runs `work` in each term, drops it when the leadership is lost, and campaigns anew, until
    /// the work returns by itself. Work of a term is not polled again after the deadline of its lease.
    ///
    /// The work is made anew for each term, so its closure gives every term its own copy of what it moves: `move |lock|
    /// { let mailer = mailer.clone(); async move { … } }`, or `async |lock| …` with what it borrows.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and resigns in the background.
    pub async fn lead<Work, Running>(&self, mut work: Work) -> Result<Running::Output>
    where
        Work: FnMut(LockHandle) -> Running,
        Running: Future,
    {
        loop {
            let leadership = self.campaign().await?;
            let guard = &leadership.guard;
            if let Some(value) = self.request.heeds().heed(guard.lost(), || work(guard.handle())).await {
                leadership.guard.release_quietly().await;
                return Ok(value);
            }
        }
    }

    /// Returns the lock of the present leader, for onlookers.
    ///
    /// # Errors
    /// What the backend reports.
    pub async fn observe(&self) -> Result<Option<LockInfo>> {
        self.request.locker().0.lookup(Lookup::Key(self.request.key()?)).await
    }
}

/// A leadership that is held. Dropping it resigns.
#[must_use = "a dropped leadership is resigned"]
#[derive(Debug)]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// Returns the term: the fence of this leadership, higher than that of every leader before.
    pub fn term(&self) -> Fence {
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

impl Deref for Leadership {
    type Target = LockHandle;

    fn deref(&self) -> &LockHandle {
        &self.guard
    }
}
