//! How are all names looked at without holding up those who lock?
//!
//! By `SCAN`, in steps that keep the server for well under a millisecond. A step sorts what it met by kind; whoever
//! needs the values asks for them.

use redis::{Cmd, Value};
use syncguard_core::{LockError, Result};

use super::Operations;
use crate::error::CallError;
use crate::names::Kind;
use crate::pool::Pool;

/// How many names one step looks at. The server does nothing else meanwhile: about 0.1 ms.
pub(crate) const STEP: u32 = 500;

/// Where a scan begins.
pub(crate) const START: &str = "0";

/// What one step met.
pub(crate) struct Step {
    /// Names of locks, with the number of their prefix.
    pub(crate) locks: Vec<(usize, String)>,
    pub(crate) counters: Vec<String>,
    /// Where the next step begins; `None` at the end.
    pub(crate) next: Option<String>,
}

/// Looks at about `count` names, beginning at `cursor`.
pub(crate) async fn step(
    operations: &Operations,
    pool: &Pool,
    pattern: &str,
    cursor: &str,
    count: u32,
) -> Result<Step> {
    let mut command = Cmd::new();
    command.arg("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count.clamp(1, STEP));
    let answer = operations.router.at(pool, &command, operations.timeout).await.map_err(CallError::into_lock_error)?;
    let unexpected = || LockError::internal("redis answered SCAN with something else");
    let Value::Array(parts) = answer else { return Err(unexpected()) };
    let Ok([Value::BulkString(next), Value::Array(names)]) = <[Value; 2]>::try_from(parts) else {
        return Err(unexpected());
    };
    let next = String::from_utf8(next).map_err(|_| unexpected())?;
    let mut step = Step { locks: Vec::new(), counters: Vec::new(), next: (next != START).then_some(next) };
    for name in names {
        // A name that is no text is none of ours.
        let Value::BulkString(bytes) = name else { continue };
        let Ok(name) = String::from_utf8(bytes) else { continue };
        match operations.names.kind(&name) {
            Some((prefix, Kind::Lock)) => step.locks.push((prefix, name)),
            Some((_, Kind::Counter)) => step.counters.push(name),
            Some((_, Kind::Index)) | None => {}
        }
    }
    Ok(step)
}
