//! A job that several hosts start at midnight and one of them does.
//!
//! The winner keeps the lock for longer than the clocks of the hosts may differ, so that a host whose midnight comes a
//! little later finds it taken instead of free again. `cargo run -p syncguard --example once_per_night`

use std::time::Duration;

use syncguard::{ExtendOutcome, LockError, Locker};

/// What a host did with its midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Night {
    /// It ran the report.
    Reported,
    /// Another host had it.
    Skipped,
}

pub(crate) async fn midnight(locker: &Locker, skew: Duration, report: impl AsyncFnOnce()) -> Result<Night, LockError> {
    let Some(guard) = locker.lock("nightly-report").keep_alive().try_acquire().await? else {
        return Ok(Night::Skipped);
    };
    report().await;
    // Not released: the lease is set to the difference that the clocks may have, and ends by itself.
    let lock_id = guard.leak();
    match locker.extend_id(&lock_id, skew).await? {
        ExtendOutcome::Extended(_) => Ok(Night::Reported),
        ExtendOutcome::Absent(_) => Err(LockError::new(syncguard::ErrorCode::LockLost, "the report outlived its lock")),
    }
}

/// Three hosts, one report.
pub(crate) async fn story(url: &str) -> Result<(Vec<Night>, u32), LockError> {
    let locker = syncguard::connect(url).await?;
    let mut reports = 0;
    let mut nights = Vec::new();
    for _host in 0..3 {
        let night = midnight(&locker, Duration::from_secs(1), async || reports += 1).await?;
        nights.push(night);
    }
    // Nothing but the winner's last lease is left when the program ends.
    locker.shutdown(Duration::from_secs(5)).await;
    Ok((nights, reports))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let url = std::env::var("SYNCGUARD_URL").unwrap_or_else(|_| "memory:".to_owned());
    let (nights, reports) = story(&url).await?;
    println!("{nights:?}: {reports} report");
    Ok(())
}
