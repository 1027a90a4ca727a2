//! How is a lock given back, and who is told?

use std::sync::atomic::Ordering;

use syncguard_core::{AbsentReason, LockId, ReleaseOutcome, Result};

use super::{Located, Operations, value_head};
use crate::error::CallError;
use crate::{reply, script};

impl Operations {
    pub(crate) async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let Some(Located { lock, index, waited }) = self.locate(lock_id).await? else {
            return Ok(ReleaseOutcome::Absent(Some(AbsentReason::NotFound)));
        };
        // Listeners need no more than the channel's name: the message is empty, unless it names the one whose turn it is.
        let args = [&*value_head(lock_id), ""];
        let args = if self.publish.load(Ordering::Relaxed) { &args[..] } else { &args[..1] };
        // Who had to wait knows that others may, and looks who is next; everybody else is spared that.
        let looks = waited || self.waiters(&lock) > 0;
        let line = looks.then(|| self.names.line(&lock, lock_id));
        let keys = [&*lock, &index, line.as_deref().unwrap_or_default()];
        let keys = &keys[..2 + usize::from(line.is_some())];
        let answer = self.router.script(&script::RELEASE, keys, args, self.timeout).await;
        let (outcome, heard) = reply::release(&answer.map_err(CallError::into_lock_error)?)?;
        self.own_locks.forget(lock_id);
        if !heard {
            self.stop_publishing();
        }
        Ok(outcome)
    }

    /// Publishing is not permitted: said once, and not tried again.
    fn stop_publishing(&self) {
        if self.publish.swap(false, Ordering::Relaxed) {
            tracing::warn!(target: "syncguard", "redis does not permit this user to publish; waiters elsewhere poll (grant &prefix:*)");
        }
    }
}
