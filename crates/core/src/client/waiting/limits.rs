//! Which numbers decide when a waiter asks?
//!
//! All of them that are not settings of a request (those, with their defaults, are in `retry`).

use std::time::Duration;

/// How far past the wall the attempt made *at* the wall may reach: a few round trips on one continent.
pub(super) const PAST_THE_WALL: Duration = Duration::from_millis(50);

/// For how long an answer to one waiter stands for the retries of the others. A process that no hint reaches asks this
/// often, whatever the number of its waiters: no more than a single waiter does by the default schedule.
pub(super) const ANSWER_STANDS: Duration = Duration::from_millis(100);

/// The same where the release will be announced to somebody who listens. Announcements may be lost, so not for ever.
pub(super) const ANSWER_STANDS_WHEN_ANNOUNCED: Duration = Duration::from_secs(1);

/// How long the first waiter may take to move when it is called, and its request to be answered, before the others go
/// on without it. Longer than a busy runtime leaves a task alone, shorter than the default budget.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How many waiters in a row may follow one hint and learn nothing. After them the storage is in trouble, and the
/// schedule rules: a hint must not become a storm on a storage that fails.
pub(super) const FOLLOWERS: u32 = 3;

/// How many may ask at once at the end of their time while the storage fails, to learn why. Each wants to name the
/// cause to its caller, but ten thousand of them must not be what keeps the storage down.
pub(super) const LAST_ASKERS: usize = 16;

/// Processes that learned of the same expiry ask within this window instead of in the same millisecond.
pub(super) const EXPIRY_SPREAD: Duration = Duration::from_millis(30);

/// The shortest pause before a look at a lease that is said to end now. It doubles while the answers stay so short: a
/// backend that says "free in 0" of a lock that stays taken would be asked without a pause.
pub(super) const EXPIRY_FLOOR: Duration = Duration::from_millis(20);
