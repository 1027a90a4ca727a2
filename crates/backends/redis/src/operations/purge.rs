//! How are dead locks removed, and nothing else?
//!
//! Redis removes almost all of them by itself, because every lock has an expiry there. What remains was persisted by
//! hand or restored without it. The script looks again before it deletes; counters are not among its keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use syncguard_core::time::CLEANUP_GUARD_MS;
use syncguard_core::{ErrorCode, LockError, LockId, Result};

use super::Operations;
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
    let mut removed = 0;
    for master in &masters {
        for prefix in operations.names.prefixes() {
            removed += scan(operations, master.pool(), prefix).await?;
        }
    }
    Ok(removed)
}

async fn scan(operations: &Operations, pool: &Pool, prefix: &str) -> Result<u64> {
    let pattern = if prefix.is_empty() { "*".to_owned() } else { format!("{}:*", escaped(prefix)) };
    let mut cursor = "0".to_owned();
    let mut removed = 0;
    loop {
        let mut command = Cmd::new();
        command.arg("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(500).arg("TYPE").arg("string");
        let answer = pool.command(&command, operations.timeout).await.map_err(CallError::into_lock_error)?;
        let (next, names) =
            page(&answer).ok_or_else(|| LockError::internal("redis answered SCAN with something else"))?;
        for name in names.iter().filter(|name| operations.names.is_lock(name)) {
            removed += u64::from(purge_if_dead(operations, pool, name).await?);
        }
        if next == "0" {
            return Ok(removed);
        }
        cursor = next;
    }
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

fn page(answer: &Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = answer else { return None };
    let [Value::BulkString(cursor), Value::Array(names)] = parts.as_slice() else { return None };
    let names = names.iter().filter_map(|name| match name {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    });
    Some((String::from_utf8(cursor.clone()).ok()?, names.collect()))
}

/// A prefix is literal, also when it holds what SCAN takes for a pattern.
fn escaped(prefix: &str) -> String {
    let mut out = String::with_capacity(prefix.len());
    for character in prefix.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_literal_in_a_scan() {
        assert_eq!(escaped("a*b[c]?\\"), "a\\*b\\[c\\]\\?\\\\");
    }
}
