//! What time is it, and is a lease still alive?
//!
//! Two clocks with two jobs. The *backend's* clock gives [`Timestamp`]s and decides liveness, by one predicate,
//! [`is_live`], on every backend. The *local* clock gives [`BootTime`]s: it never steps and keeps counting while
//! the machine sleeps (`CLOCK_BOOTTIME`), which `std::time::Instant` on Linux does not, so a guard notices a suspend.
//!
//! This is the only file that reads a clock; clippy refuses the others (see `clippy.toml`).

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use serde_core::{Serialize, Serializer};

use crate::{LockError, Ttl};

/// How long after its expiry a lease still counts as alive, on every backend alike.
///
/// It absorbs the difference of clocks on backends without a clock of their own, and it is not configurable:
/// two clients with two tolerances would disagree about who owns a lock.
pub const TOLERANCE: Duration = Duration::from_millis(1000);

/// [`TOLERANCE`] in milliseconds, for scripts and statements.
pub const TOLERANCE_MS: i64 = 1000;

/// How long a lock must have been dead before cleanup may remove it, where the server's clock decides.
pub const CLEANUP_GUARD_MS: i64 = 2000;

/// Returns whether a lease is alive, by the one predicate of all backends: `expires_at > now - tolerance`.
///
/// ```
/// use syncguard_core::time::{Timestamp, is_live};
///
/// let expires_at = Timestamp::from_millis(10_000);
/// assert!(is_live(expires_at, Timestamp::from_millis(10_999)));
/// assert!(!is_live(expires_at, Timestamp::from_millis(11_000)));
/// ```
pub const fn is_live(expires_at: Timestamp, now: Timestamp) -> bool {
    expires_at.0 > now.0.saturating_sub(TOLERANCE_MS)
}

/// Returns how long until a lease that nobody renews can be taken over; zero when it can be now.
pub fn free_in(expires_at: Timestamp, now: Timestamp) -> Duration {
    let millis = expires_at.0.saturating_add(TOLERANCE_MS).saturating_sub(now.0);
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// A moment on the backend's clock: milliseconds since 1970. `Display` writes it in UTC as RFC 3339 does.
///
/// ```
/// use syncguard_core::time::Timestamp;
///
/// assert_eq!(Timestamp::from_millis(1_700_000_000_007).to_string(), "2023-11-14T22:13:20.007Z");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Makes the moment that is this many milliseconds after 1970 began.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since 1970 began.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Returns when a lease of this length ends if it starts at this moment.
    #[must_use]
    pub const fn plus(self, ttl: Ttl) -> Self {
        Self(self.0.saturating_add(ttl.as_millis()))
    }

    /// Returns how long after `earlier` this moment is; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(moment: Timestamp) -> Self {
        let apart = Duration::from_millis(moment.0.unsigned_abs());
        if moment.0 < 0 { Self::UNIX_EPOCH - apart } else { Self::UNIX_EPOCH + apart }
    }
}

/// Whole milliseconds, rounded down.
impl TryFrom<SystemTime> for Timestamp {
    type Error = LockError;

    fn try_from(moment: SystemTime) -> Result<Self, LockError> {
        let millis = match moment.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()),
            Err(before) => i64::try_from(before.duration().as_nanos().div_ceil(1_000_000)).map(|millis| -millis),
        };
        millis.map(Self).map_err(|_| LockError::invalid("a moment this far from 1970 has no timestamp"))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: i64 = 86_400_000;
        let (year, month, day) = civil(self.0.div_euclid(DAY));
        let millis = self.0.rem_euclid(DAY);
        let (hour, minute, second) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", millis % 1000)
    }
}

/// The year, month and day of a day counted from 1970, by Hinnant's `civil_from_days`: years that begin in March have
/// their leap day at the end, and 400 of them are always 146,097 days.
const fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468; // from 0000-03-01
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

/// A moment on the local clock that counts suspend: time since an arbitrary, fixed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// Makes the moment that is this long after the clock's start.
    pub const fn from_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Returns the time since the clock's start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Returns how long after `earlier` this moment is; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

/// A local clock with two hands.
///
/// Real programs use [`SystemClock`]. Tests replace it to suspend the machine (boot time jumps, the runtime's timers
/// do not) or to set a client's wall clock wrong.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time of the hand that never steps and counts suspend. Guards live by it.
    fn boot(&self) -> BootTime;

    /// Returns the time of the hand that people set. It decides where the backend has no clock of its own.
    fn wall(&self) -> Timestamp;

    /// Returns whether [`boot`](Self::boot) is the machine's own hand, as it is for [`SystemClock`]. Nothing outside of
    /// a test's own tasks waits by another one, because only the test knows when it moves.
    fn is_system(&self) -> bool {
        false
    }
}

/// The machine's clocks: `CLOCK_BOOTTIME` (Linux; elsewhere the monotonic clock, which on macOS and Windows also runs while
/// the machine sleeps) and the wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(not(windows))]
    fn boot(&self) -> BootTime {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let clock = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let clock = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(clock);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        BootTime(Duration::new(seconds, nanos))
    }

    /// The performance counter, which counts sleep and hibernation. It has no origin that a process could ask for, so it
    /// is counted from the first look, which is put far enough from zero that no age of a lease reaches below it.
    #[cfg(windows)]
    #[allow(clippy::disallowed_methods, reason = "the one place that reads this clock")]
    fn boot(&self) -> BootTime {
        const FIRST: Duration = Duration::from_secs(1 << 32);
        static START: OnceLock<std::time::Instant> = OnceLock::new();
        BootTime(FIRST + START.get_or_init(std::time::Instant::now).elapsed())
    }

    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn wall(&self) -> Timestamp {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
    }

    fn is_system(&self) -> bool {
        true
    }
}

/// tokio's clock as both hands, so that paused time in tests moves leases and guards alike.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl TokioClock {
    /// The first look of this process on both clocks, a day back: so the difference stays positive however
    /// runtimes of one process were paused.
    #[allow(clippy::disallowed_methods, reason = "the pausable clock of tests")]
    fn start() -> &'static (std::time::Instant, Timestamp) {
        static START: OnceLock<(std::time::Instant, Timestamp)> = OnceLock::new();
        const DAY: Duration = Duration::from_secs(86_400);
        START.get_or_init(|| {
            let now = tokio::time::Instant::now().into_std();
            let start = now.checked_sub(DAY).unwrap_or(now);
            let back = i64::try_from(now.duration_since(start).as_millis()).unwrap_or(0);
            (start, Timestamp(SystemClock.wall().0.saturating_sub(back)))
        })
    }

    #[allow(clippy::disallowed_methods, reason = "the pausable clock of tests")]
    fn elapsed() -> Duration {
        let start = Self::start().0;
        tokio::time::Instant::now().into_std().saturating_duration_since(start)
    }
}

impl Clock for TokioClock {
    fn boot(&self) -> BootTime {
        BootTime(Self::elapsed())
    }

    fn wall(&self) -> Timestamp {
        let elapsed = i64::try_from(Self::elapsed().as_millis()).unwrap_or(i64::MAX);
        Timestamp(Self::start().1.0.saturating_add(elapsed))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_live_within_the_tolerance_and_not_after() {
        let expires_at = Timestamp::from_millis(1_000_000);
        for (now, live) in
            [(0, true), (1_000_000, true), (1_000_999, true), (1_001_000, false), (i64::MAX, false), (i64::MIN, true)]
        {
            assert_eq!(is_live(expires_at, Timestamp::from_millis(now)), live, "{now}");
        }
        assert!(!is_live(Timestamp::from_millis(-5), Timestamp::from_millis(1_000)));
    }

    #[test]
    fn free_in_agrees_with_the_predicate() {
        let expires_at = Timestamp::from_millis(5_000);
        for now in 0..8_000 {
            let now = Timestamp::from_millis(now);
            assert_eq!(free_in(expires_at, now).is_zero(), !is_live(expires_at, now));
        }
    }

    #[test]
    fn a_timestamp_is_written_as_a_date_and_made_from_the_time_of_the_system() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
        ] {
            let moment = Timestamp::from_millis(millis);
            assert_eq!(moment.to_string(), text);
            assert_eq!(Timestamp::try_from(SystemTime::from(moment)).unwrap(), moment);
        }
        let just_before_1970 = SystemTime::UNIX_EPOCH - Duration::from_nanos(100);
        assert_eq!(Timestamp::try_from(just_before_1970).unwrap().as_millis(), -1);
        for end in [i64::MIN, i64::MAX] {
            assert!(Timestamp::from_millis(end).to_string().ends_with('Z'), "no panic at the ends");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pausable_clock_shows_todays_date() {
        let apart = TokioClock.wall().as_millis().abs_diff(SystemClock.wall().as_millis());
        assert!(apart < 60_000, "{apart} ms from the wall clock");
    }

    #[test]
    fn the_system_clock_moves_forward_on_both_hands() {
        let (boot, wall) = (SystemClock.boot(), SystemClock.wall());
        assert!(SystemClock.boot() >= boot);
        assert!(SystemClock.wall() >= wall);
        assert!(wall.as_millis() > 1_600_000_000_000);
    }
}
