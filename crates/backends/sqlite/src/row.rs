//! What does a row of the table of locks say, and is it to be believed?

use rusqlite::{Connection, OptionalExtension, Row};
use syncguard_core::time::{CLEANUP_GUARD_MS, is_live};
use syncguard_core::{Fence, Key, Label, LockError, LockId, LockInfo, Timestamp, Ttl};

pub(crate) const LOCK_OF_KEY: &str = include_str!("../sql/lock_of_key.sql");
const LOCK_OF_ID: &str = include_str!("../sql/lock_of_id.sql");

/// How a stored lock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    Live,
    Dead,
    /// Past the cleanup guard.
    LongDead,
}

/// A row of the table, not yet believed.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) lock_id: String,
    pub(crate) expires_at: Timestamp,
    acquired_at: Timestamp,
    fence: String,
    user_key: String,
    label: Option<String>,
    ttl: Option<i64>,
    /// Whether somebody asked this holder to let go.
    pub(crate) is_asked_for: bool,
}

pub(crate) fn lock_of_key(db: &Connection, name: &str) -> rusqlite::Result<Option<Stored>> {
    db.prepare_cached(LOCK_OF_KEY)?.query_row([name], Stored::from_row).optional()
}

pub(crate) fn lock_of_id(db: &Connection, lock_id: &LockId) -> rusqlite::Result<Option<Stored>> {
    db.prepare_cached(LOCK_OF_ID)?.query_row([lock_id.as_str()], Stored::from_row).optional()
}

impl Stored {
    pub(crate) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            name: row.get(0)?,
            lock_id: row.get(1)?,
            expires_at: Timestamp::from_millis(row.get(2)?),
            acquired_at: Timestamp::from_millis(row.get(3)?),
            fence: row.get(4)?,
            user_key: row.get(5)?,
            label: row.get(6)?,
            // Decoration, as the label: what cannot be read is left out.
            ttl: row.get(7).unwrap_or_default(),
            is_asked_for: row.get::<_, Option<bool>>(8).ok().flatten().unwrap_or(false),
        })
    }

    /// Who owns it, with which fence.
    pub(crate) fn parse(&self) -> Result<(LockId, Fence), LockError> {
        let owner = LockId::parse(&self.lock_id).map_err(|_| unreadable("lock_id"))?;
        let fence = self.fence.parse().map_err(|_| unreadable("fence"))?;
        Ok((owner, fence))
    }

    /// Whether the lock is alive, and whether it has been dead for long enough to be removed.
    pub(crate) fn liveness(&self, now: Timestamp) -> Result<Liveness, LockError> {
        if is_live(self.expires_at, now) {
            return self.parse().map(|_| Liveness::Live);
        }
        let dead_for = now.as_millis().saturating_sub(self.expires_at.as_millis());
        Ok(if dead_for > CLEANUP_GUARD_MS { Liveness::LongDead } else { Liveness::Dead })
    }

    /// What an onlooker may know, if the lock is alive.
    pub(crate) fn into_live_info(self, now: Timestamp) -> Result<Option<LockInfo>, LockError> {
        if !is_live(self.expires_at, now) {
            return Ok(None);
        }
        let (owner, fence) = self.parse()?;
        let key = Key::new(&self.user_key).map_err(|_| unreadable("user_key"))?;
        // A label is decoration: one that cannot be read hides nothing that matters.
        let label = self.label.and_then(|label| Label::new(label).ok());
        let info = LockInfo::new(key, owner, fence, self.acquired_at, self.expires_at, now);
        let ttl = self.ttl.and_then(|millis| Ttl::from_millis(millis).ok());
        Ok(Some(info.with_label(label).with_ttl(ttl).with_asked_for(self.is_asked_for)))
    }
}

fn unreadable(column: &'static str) -> LockError {
    LockError::internal(format!("the column {column} of a live row in syncguard_locks cannot be read"))
        .with_hint("something else wrote to the file; the row blocks its key until its lease ends")
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncguard_core::time::TOLERANCE_MS;

    #[test]
    fn a_lock_is_long_dead_only_past_the_guard() {
        let stored = Stored {
            name: String::new(),
            lock_id: "AAAAAAAAAAAAAAAAAAAAAA".to_owned(),
            expires_at: Timestamp::from_millis(0),
            acquired_at: Timestamp::from_millis(0),
            fence: "000000000000001".to_owned(),
            user_key: "k".to_owned(),
            label: None,
            ttl: None,
            is_asked_for: false,
        };
        let at = |millis| stored.liveness(Timestamp::from_millis(millis)).ok();
        assert_eq!(at(TOLERANCE_MS - 1), Some(Liveness::Live));
        assert_eq!(at(TOLERANCE_MS), Some(Liveness::Dead));
        assert_eq!(at(CLEANUP_GUARD_MS), Some(Liveness::Dead));
        assert_eq!(at(CLEANUP_GUARD_MS + 1), Some(Liveness::LongDead));
    }
}
