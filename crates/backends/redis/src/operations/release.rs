//! How is a lock given back, and who is told?

use std::sync::atomic::Ordering;

use syncguard_core::{AbsentReason, LockId, ReleaseOutcome, Result};

use super::{Located, Operations};
use crate::error::CallError;
use crate::reply::{self, ReleaseReply};
use crate::script;

impl Operations {
    pub(crate) async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let Some(Located { lock, index }) = self.locate(lock_id).await? else {
            return Ok(ReleaseOutcome::Absent(Some(AbsentReason::NotFound)));
        };
        // One server knows all of its listeners, a node of a cluster its own.
        let args = [lock_id.as_str(), if self.router.is_one_server() { "first" } else { "all" }];
        let args = if self.publish.load(Ordering::Relaxed) { &args[..] } else { &args[..1] };
        let keys = [&*lock, &index, &self.names.line(&lock, lock_id)];
        let answer = self.router.script(&script::RELEASE, &keys, args, self.timeout).await;
        let reply = reply::release(&answer.map_err(CallError::into_lock_error)?)?;
        self.own_locks.forget(lock_id);
        match &reply {
            ReleaseReply::Told(name) if **name != *self.listener_name => self.turns.theirs(&lock),
            ReleaseReply::NotPermitted => self.stop_publishing(),
            _ => {}
        }
        Ok(reply.outcome())
    }

    /// Publishing is not permitted: said once, and not tried again.
    fn stop_publishing(&self) {
        if self.publish.swap(false, Ordering::Relaxed) {
            tracing::warn!(target: "syncguard", "redis does not permit this user to publish; waiters elsewhere poll (grant &prefix:*)");
        }
    }
}
