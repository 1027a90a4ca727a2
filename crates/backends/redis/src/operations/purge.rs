//! How are dead locks removed, and nothing else?
//!
//! Redis removes almost all of them by itself, because every lock has an expiry there. What remains was persisted by
//! hand or restored without it. The script looks again before it deletes; counters are not among its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncguard_core::time::CLEANUP_GUARD_MS;
use syncguard_core::{ErrorCode, LockError, LockId, Result};

use super::{Operations, scan};
use crate::error::CallError;
use crate::pool::Pool;
use crate::reply::{self, Stored};
use crate::script;

/// Removes the lock if it has been dead for longer than the guard.
async fn one(operations: &Operations, name: &str, stored: &Stored) -> Result<bool> {
    let Some(lock_id) = &stored.lock_id else { return Ok(false) };
    let Ok(id) = LockId::parse(lock_id) else { return Ok(false) };
    let index = operations.names.index(&id);
    let guard = CLEANUP_GUARD_MS.to_string();
    let answer =
        operations.router.script(&script::PURGE, &[name, &index], &[lock_id, &guard], operations.timeout).await;
    reply::purged(&answer.map_err(CallError::into_lock_error)?)
}

/// For `is_locked`: whatever happens here never changes its answer or keeps it waiting, and one removal runs at a time.
pub(crate) fn in_background(operations: Arc<Operations>, name: String, stored: Stored) {
    if operations.is_cleaning.swap(true, Ordering::AcqRel) {
        return;
    }
    tokio::spawn(async move {
        // Also when the runtime ends midway: the next look must be able to start one.
        let _turn = Turn(&operations.is_cleaning);
        if let Err(error) = one(&operations, &name, &stored).await {
            tracing::debug!(target: "syncguard", code = %error.code(), "cleanup failed");
        }
    });
}

/// Gives the turn back when it is dropped.
struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Looks at every lock under the prefix, on every server.
pub(crate) async fn all(operations: &Operations) -> Result<u64> {
    let masters = operations.router.masters().await.map_err(CallError::into_lock_error)?;
    if masters.is_empty() {
        let error = LockError::new(ErrorCode::InvalidArgument, "a connection that was brought along cannot be scanned");
        return Err(error.with_hint("connect by url to purge"));
    }
    let pattern = operations.names.pattern("");
    let mut removed = 0;
    for master in &masters {
        let mut cursor = scan::START.to_owned();
        loop {
            let step = scan::step(operations, master.pool(), &pattern, &cursor, scan::STEP).await?;
            for (_, name) in &step.locks {
                removed += u64::from(purge_if_dead(operations, master.pool(), name).await?);
            }
            let Some(next) = step.next else { break };
            cursor = next;
        }
    }
    Ok(removed)
}

async fn purge_if_dead(operations: &Operations, pool: &Pool, name: &str) -> Result<bool> {
    let mut both = redis::Pipeline::with_capacity(2);
    both.cmd("GET").arg(name).cmd("TIME");
    let replies = pool.commands(&both, operations.timeout).await.map_err(CallError::into_lock_error)?;
    let [value, time] = replies.as_slice() else { return Ok(false) };
    let now = reply::time(time)?;
    match Stored::parse(value) {
        Ok(Some(stored)) if now.since(stored.expires_at) > Duration::from_millis(CLEANUP_GUARD_MS.unsigned_abs()) => {
            one(operations, name, &stored).await
        }
        // Alive, gone, or not a lock: none of our business.
        _ => Ok(false),
    }
}
