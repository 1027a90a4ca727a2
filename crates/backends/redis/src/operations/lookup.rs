//! How does an onlooker see a lock?

use std::sync::Arc;

use syncguard_core::{Key, LockInfo, Lookup, Result};

use super::{Located, Operations, purge};
use crate::error::CallError;
use crate::reply::{self, Stored};
use crate::script;

impl Operations {
    pub(crate) async fn is_locked(self: &Arc<Self>, key: &Key) -> Result<bool> {
        let name = self.names.lock(key)?;
        let answer = self.router.get_with_time(&name, self.timeout).await;
        let (value, time) = answer.map_err(CallError::into_lock_error)?;
        let now = reply::time(&time)?;
        let Some(stored) = Stored::parse(&value)? else { return Ok(false) };
        let live = stored.is_live(now);
        if !live && self.cleanup_in_is_locked {
            purge::in_background(self.clone(), name, stored);
        }
        Ok(live)
    }

    pub(crate) async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let lock_id = match query {
            Lookup::Key(key) => return self.look(key).await,
            Lookup::LockId(lock_id) => lock_id,
        };
        let Some(Located { lock, index }) = self.locate(lock_id).await? else {
            return Ok(None);
        };
        let answer = self.router.script(&script::LOOKUP, &[&lock, &index], &[], self.timeout).await;
        let answer = answer.map_err(CallError::into_lock_error)?;
        match reply::found(&answer)? {
            Some((stored, now)) if stored.lock_id.as_deref() == Some(lock_id.as_str()) && stored.is_live(now) => {
                stored.info(now).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The lock on a key, if it lives.
    async fn look(&self, key: &Key) -> Result<Option<LockInfo>> {
        let name = self.names.lock(key)?;
        let (value, time) = self.router.get_with_time(&name, self.timeout).await.map_err(CallError::into_lock_error)?;
        let now = reply::time(&time)?;
        match Stored::parse(&value)? {
            Some(stored) if stored.is_live(now) => stored.info(now).map(Some),
            _ => Ok(None),
        }
    }
}
