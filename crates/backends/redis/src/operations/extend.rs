//! How is a lease renewed?

use syncguard_core::{AbsentReason, ExtendOutcome, LockId, Result, Ttl};

use super::{Located, Operations, life};
use crate::error::CallError;
use crate::{reply, script};

impl Operations {
    pub(crate) async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let Some(Located { lock, index }) = self.locate(lock_id).await? else {
            return Ok(ExtendOutcome::Absent(Some(AbsentReason::NotFound)));
        };
        let args = [lock_id.as_str(), &life(ttl)];
        let answer = self.router.script(&script::EXTEND, &[&lock, &index], &args, self.bound(ttl)).await;
        let outcome = reply::extend(&answer.map_err(CallError::into_lock_error)?)?;
        if outcome.is_extended() {
            self.own_locks.renew(lock_id, ttl);
        } else {
            self.own_locks.forget(lock_id);
        }
        Ok(outcome)
    }
}
