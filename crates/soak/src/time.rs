//! What time is it, for every process of the machine alike?

use std::time::Duration;

use syncguard::{Clock, SystemClock};

/// Nanoseconds of `CLOCK_BOOTTIME`: the same clock in every process, never stepped.
pub type Nanos = u64;

/// One millisecond.
pub const MILLI: Nanos = 1_000_000;

/// The present moment.
pub fn now() -> Nanos {
    nanos(SystemClock.boot().since_start())
}

/// A duration as a distance on the clock.
pub fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
