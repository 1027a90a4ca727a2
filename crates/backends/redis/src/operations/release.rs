//! How is a lock given back, and who is told?

use std::sync::atomic::Ordering;

use syncguard_core::{AbsentReason, LockId, ReleaseOutcome, Result};

use super::{Located, Operations, value_head};
use crate::error::CallError;
use crate::multiplex::Hold;
use crate::own_locks::Others;
use crate::{reply, script};

/// One release in so many goes the ordinary way although only this process is known to wait: programs that stand in no
/// line get the lock only in the moment in which nobody has it.
const ORDINARY_ONE_IN: u8 = 8;

impl Operations {
    pub(crate) async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let Some(Located { lock, index, others }) = self.locate(lock_id).await? else {
            return Ok(ReleaseOutcome::Absent(Some(AbsentReason::NotFound)));
        };
        let hand_over = self.hand_over(&lock, lock_id, others);
        // Listeners need no more than the channel's name: the message is empty, unless it names the one whose turn it is.
        let args = [&*value_head(lock_id), if hand_over.is_some() { &*self.own_turn } else { "" }];
        let args = if self.publish.load(Ordering::Relaxed) { &args[..] } else { &args[..1] };
        // Who had to wait knows that others may, and looks who is next; everybody else is spared that.
        let looks = hand_over.is_none() && (others != Others::Unknown || self.waiters(&lock) > 0);
        let line = looks.then(|| self.names.line(&lock, lock_id));
        let keys = [&*lock, &index, line.as_deref().unwrap_or_default()];
        let keys = &keys[..2 + usize::from(line.is_some())];
        let call = self.router.script(&script::RELEASE, keys, args, self.timeout);
        let answer = match hand_over {
            Some(hold) => self.wake_behind(&lock, call, hold).await,
            None => call.await,
        };
        let answer = answer.map_err(CallError::into_lock_error)?;
        let (outcome, heard) = reply::release(&answer)?;
        self.own_locks.forget(lock_id);
        if !heard {
            self.stop_publishing();
        }
        Ok(outcome)
    }

    /// Lets a waiter of this process ask for the lock right behind its release, without waiting to hear of it: both leave
    /// together, and the release is there first. `None` where somebody else may have a better claim. Whoever joined the line
    /// since the lock was got is passed over once, and seen by the next holder.
    fn hand_over(&self, lock: &str, lock_id: &LockId, others: Others) -> Option<Hold> {
        let by_chance = lock_id.as_str().as_bytes().first().is_some_and(|byte| byte % ORDINARY_ONE_IN > 0);
        let may = by_chance && others == Others::Absent && self.careful.is_none() && self.waiters(lock) > 0;
        if may { self.router.hold(lock) } else { None }
    }

    /// Wakes a waiter of this process when the call is on its way but for the `hold`.
    async fn wake_behind<T>(&self, lock: &str, call: impl Future<Output = T>, hold: Hold) -> T {
        let (mut call, mut before) = (std::pin::pin!(call), self.listener.as_ref().zip(Some(hold)));
        std::future::poll_fn(|context| {
            let poll = call.as_mut().poll(context);
            if let Some((listener, hold)) = before.take() {
                listener.wake(lock);
                // Second, so that the waiter has asked by the time at which the stream is written to.
                drop(hold);
            }
            poll
        })
        .await
    }

    /// Publishing is not permitted: said once, and not tried again.
    fn stop_publishing(&self) {
        if self.publish.swap(false, Ordering::Relaxed) {
            tracing::warn!(target: "syncguard", "redis does not permit this user to publish; waiters elsewhere poll (grant &prefix:*)");
        }
    }
}
