//! How does a fence outlast a power cut that undoes its commit?
//!
//! A lock need not outlast it: its holder was on this machine and is gone as well. So commits are not synced, and a power
//! cut may take the last of them back. Fences are therefore promised ahead, key by key: the counter is raised by a
//! thousand and synced, and the fences up to it are given without another sync. When the machine has booted since, nobody
//! knows how many of them were given, and the key goes on above all of them.
//!
//! A program of an earlier version knows nothing of this and goes on from the counter: above them, too. That is why the
//! promise is the counter itself, and why each key has its own, although the first acquire of every key has to wait for
//! the disk. Rejected: one promise for all keys, and after a boot a floor under them (earlier programs know no floor and
//! would repeat fences, so they would have to be kept out of the file).

use std::sync::OnceLock;

use rusqlite::{Connection, OptionalExtension, params};
use syncguard_core::{Fence, LockError};

use crate::operations::Failure;

pub(crate) const COUNTER: &str = include_str!("../sql/counter.sql");
const RAISE_COUNTER: &str = include_str!("../sql/raise_counter.sql");
const GIVE_PROMISED: &str = include_str!("../sql/give_promised.sql");

/// How many fences of a key one sync pays for, and at most how many a boot skips.
const AHEAD: i64 = 1_000;

/// Gives fences in one transaction.
#[derive(Debug)]
pub(crate) struct Giver {
    boot: Option<i64>,
    /// How many fences a promise is for.
    ahead: i64,
    /// Whether a promise was made: the transaction must be synced.
    pub(crate) has_promised: bool,
}

/// What is stored of a key's fences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counter {
    /// The highest that may have been given.
    fence: i64,
    given: Option<i64>,
    promised: Option<i64>,
    boot: Option<i64>,
}

/// How the next fence comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It was promised.
    Promised(i64),
    /// It is the first of a promise that reaches up to the second number.
    Promise(i64, i64),
}

impl Giver {
    /// For a transaction that is synced in any case a promise is for one fence: nothing is skipped then.
    pub(crate) fn new(is_synced: bool) -> Self {
        Self { boot: boot(), ahead: if is_synced { 1 } else { AHEAD }, has_promised: false }
    }

    /// Gives the next fence of a key, inside the caller's transaction.
    pub(crate) fn next(&mut self, db: &Connection, fence_name: &str) -> Result<Fence, Failure> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Counter { fence: row.get(0)?, given: row.get(1)?, promised: row.get(2)?, boot: row.get(3)? })
        };
        let counter = db.prepare_cached(COUNTER)?.query_row([fence_name], read).optional()?.unwrap_or_default();
        let next = counter.next(self.boot, self.ahead);
        let (Next::Promised(number) | Next::Promise(number, _)) = next;
        let number = u64::try_from(number).map_err(|_| LockError::internal("the stored fence counter is negative"))?;
        // Refused before anything is written.
        let fence = Fence::new(number)?;
        match next {
            Next::Promised(fence) => db.prepare_cached(GIVE_PROMISED)?.execute(params![fence_name, fence])?,
            Next::Promise(fence, limit) => {
                self.has_promised = true;
                db.prepare_cached(RAISE_COUNTER)?.execute(params![fence_name, limit, fence, self.boot])?
            }
        };
        Ok(fence)
    }
}

impl Counter {
    fn next(self, boot: Option<i64>, ahead: i64) -> Next {
        let is_of_this_boot = boot.is_some() && self.boot == boot;
        // An earlier version counts in `fence` alone.
        let is_ours = self.promised == Some(self.fence);
        match self.given.filter(|given| is_of_this_boot && is_ours && (0..self.fence).contains(given)) {
            Some(given) => Next::Promised(given + 1),
            None => {
                let next = self.fence.saturating_add(1);
                let highest = i64::try_from(Fence::MAX.get()).unwrap_or(i64::MAX);
                Next::Promise(next, self.fence.saturating_add(ahead).min(highest).max(next))
            }
        }
    }
}

/// Which boot of the machine this is; none where the system does not say, and then every acquire is synced.
///
/// Linux makes an id up when it starts; half of its bits are enough to tell boots apart. A container may be shown one of
/// its own: two that share a file then take every change of turns for a boot, which skips fences and repeats none.
pub(crate) fn boot() -> Option<i64> {
    static BOOT: OnceLock<Option<i64>> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().and_then(|text| parse(&text));
    *BOOT.get_or_init(read)
}

fn parse(text: &str) -> Option<i64> {
    let digits: String = text.trim_end().split('-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits.get(..16).filter(|_| is_uuid)?, 16).ok()?;
    // Zeros are what a sandbox shows that has none.
    (number != 0).then_some(number.cast_signed())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NOW: Option<i64> = Some(7);

    fn counter(fence: i64, given: i64, promised: i64, boot: Option<i64>) -> Counter {
        Counter { fence, given: Some(given), promised: Some(promised), boot }
    }

    #[test]
    fn fences_are_given_by_these_rules() {
        let limit = i64::try_from(Fence::MAX.get()).unwrap();
        for (what, before, boot, next) in [
            ("a new key", Counter::default(), NOW, Next::Promise(1, 1_000)),
            ("promised in this boot", counter(1_000, 1, 1_000, NOW), NOW, Next::Promised(2)),
            ("the last that was promised", counter(1_000, 999, 1_000, NOW), NOW, Next::Promised(1_000)),
            ("all were given", counter(1_000, 1_000, 1_000, NOW), NOW, Next::Promise(1_001, 2_000)),
            ("another boot", counter(1_000, 1, 1_000, Some(6)), NOW, Next::Promise(1_001, 2_000)),
            ("an earlier version counted", counter(1_001, 1, 1_000, NOW), NOW, Next::Promise(1_002, 2_001)),
            ("only an earlier version", Counter { fence: 41, ..Counter::default() }, NOW, Next::Promise(42, 1_041)),
            ("no boot is told", counter(1_000, 1, 1_000, None), None, Next::Promise(1_001, 2_000)),
            ("more given than promised", counter(10, 11, 10, NOW), NOW, Next::Promise(11, 1_010)),
            ("a negative one given", counter(10, -1, 10, NOW), NOW, Next::Promise(11, 1_010)),
            ("near the limit", counter(limit - 1, limit - 1, limit - 1, NOW), NOW, Next::Promise(limit, limit)),
            ("at the limit", counter(limit, limit, limit, NOW), NOW, Next::Promise(limit + 1, limit + 1)),
            ("damaged", Counter { fence: i64::MAX, ..Counter::default() }, NOW, Next::Promise(i64::MAX, i64::MAX)),
        ] {
            assert_eq!(before.next(boot, AHEAD), next, "{what}");
        }
        assert_eq!(Counter::default().next(NOW, 1), Next::Promise(1, 1), "synced one by one");
    }

    #[test]
    fn a_boot_is_a_uuid_that_says_something() {
        let boot = parse("adf24f9e-010c-485b-b316-728f378810fe\n");
        assert_eq!(boot, Some(0xadf2_4f9e_010c_485b_u64.cast_signed()));
        let (long, foreign) = ("adf24f9e-010c-485b-b316-728f378810fe0a", "adf24f9e-010c-485b-zzzz-zzzzzzzzzzzz");
        let zeros = "00000000-0000-0000-0000-000000000000";
        for nothing in ["", "\n", "adf24f9e", zeros, &"x".repeat(36), long, foreign] {
            assert_eq!(parse(nothing), None, "{nothing:?}");
        }
    }
}
