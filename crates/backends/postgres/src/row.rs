//! What do the rows that the server answers with mean?

use syncguard_core::time::{free_in, is_live};
use syncguard_core::{
    AbsentReason, AcquireOutcome, Contention, Fence, Key, Label, Lease, LockError, LockId, LockInfo, ReleaseOutcome,
    Result, Timestamp, Ttl,
};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::error;

/// What `acquire.sql` answered.
pub(crate) fn read_acquire(row: &Row) -> Result<AcquireOutcome> {
    let expires_at: Option<i64> = column(row, "expires_at_ms")?;
    let fence: Option<i64> = column(row, "fence")?;
    let now = Timestamp::from_millis(column(row, "now_ms")?);
    if let (Some(expires_at), Some(fence)) = (expires_at, fence) {
        let fence = Fence::new(u64::try_from(fence).unwrap_or(0))?;
        let lease = Lease::new(fence, Timestamp::from_millis(expires_at)).observed_at(now);
        return Ok(AcquireOutcome::Acquired(lease));
    }
    let free: Option<bool> = column(row, "free")?;
    match (free, fence) {
        (None, _) => Err(error::damaged("expiry")),
        // Free, and yet no fence: the counter is outside its limits, and nothing was written.
        (Some(true), None) => Err(fence_exhausted()),
        // Free, a fence, and yet not taken: somebody inserted a lock without asking for the key's advisory lock.
        (Some(true), Some(_)) => Ok(AcquireOutcome::Contended(Contention::default())),
        (Some(false), _) => read_held(row, now),
    }
}

fn fence_exhausted() -> LockError {
    LockError::internal("the fence counter is outside 1..=900000000000000, so no lock was taken")
        .with_hint("the counter was damaged or restored badly; use a new key or repair the counter by hand")
}

fn read_held(row: &Row, now: Timestamp) -> Result<AcquireOutcome> {
    let stored: Option<i64> = column(row, "stored_expires_at_ms")?;
    let expires_at = Timestamp::from_millis(stored.ok_or_else(|| error::damaged("expiry"))?);
    if column::<Option<bool>>(row, "sound")? != Some(true) {
        return Err(error::damaged("lock id or fence"));
    }
    if column::<Option<bool>>(row, "ours")? == Some(true) {
        let fence: Option<String> = column(row, "stored_fence")?;
        let fence = fence.and_then(|text| text.parse().ok()).ok_or_else(|| error::damaged("fence"))?;
        return Ok(AcquireOutcome::Acquired(Lease::new(fence, expires_at).observed_at(now)));
    }
    Ok(AcquireOutcome::Contended(Contention::free_in(free_in(expires_at, now))))
}

/// What `release.sql` answered.
pub(crate) fn read_released(row: &Row) -> Result<ReleaseOutcome> {
    let released: bool = column(row, "released")?;
    if released { Ok(ReleaseOutcome::Released) } else { read_absent(row).map(|why| ReleaseOutcome::Absent(Some(why))) }
}

pub(crate) fn read_absent(row: &Row) -> Result<AbsentReason> {
    match column::<i64>(row, "found")? {
        0 => Ok(AbsentReason::NotFound),
        1 => Ok(AbsentReason::Expired),
        _ => Err(LockError::internal("two stored locks have one lock id")
            .with_hint("the unique index on lock_id is missing; remove the duplicates, then call setup_schema()")),
    }
}

pub(crate) fn read_info(row: &Row) -> Result<Option<LockInfo>> {
    let time = |name: &'static str, what| {
        let millis: Option<i64> = column(row, name)?;
        millis.map(Timestamp::from_millis).ok_or_else(|| error::damaged(what))
    };
    let (expires_at, now) = (time("expires_at_ms", "expiry")?, time("now_ms", "clock")?);
    if !is_live(expires_at, now) {
        return Ok(None);
    }
    let word = |name: &'static str| column::<Option<String>>(row, name);
    let key = word("user_key")?.and_then(|text| Key::new(text).ok()).ok_or_else(|| error::damaged("key"))?;
    let lock_id =
        word("lock_id")?.and_then(|text| LockId::parse(&text).ok()).ok_or_else(|| error::damaged("lock id"))?;
    let fence = word("fence")?.and_then(|text| text.parse().ok()).ok_or_else(|| error::damaged("fence"))?;
    let info = LockInfo::new(key, lock_id, fence, time("acquired_at_ms", "time")?, expires_at, now);
    Ok(Some(with_holder(info, row)?))
}

/// Adds what was written for people. It decides nothing, so what cannot be read is left out.
fn with_holder(info: LockInfo, row: &Row) -> Result<LockInfo> {
    let label = column::<Option<String>>(row, "label")?.and_then(|text| Label::new(text).ok());
    let ttl = column::<Option<String>>(row, "ttl_ms")?.and_then(|text| Ttl::from_millis(text.parse().ok()?).ok());
    let asked = column::<Option<bool>>(row, "asked")?.unwrap_or(false);
    Ok(info.with_label(label).with_ttl(ttl).with_asked_for(asked))
}

/// A column that the statement promises. Its absence means that a pooler or a proxy mixed up answers.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T> {
    row.try_get(name).map_err(|_| LockError::internal(format!("postgres answered without a usable `{name}`")))
}
