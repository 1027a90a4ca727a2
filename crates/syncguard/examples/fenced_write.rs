//! A resource that refuses a holder who woke up too late.
//!
//! No lock can stop a process that was paused between "am I the holder?" and the write. The resource can: it remembers
//! the highest fence it has seen. In SQL this is `UPDATE … SET value = $1, fence = $2 WHERE id = $3 AND fence < $2`.
//! `cargo run -p syncguard --example fenced_write`

use std::time::Duration;

use syncguard::{Fence, LockError};

/// A register that checks fences.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    value: String,
    highest: Option<Fence>,
}

impl Ledger {
    /// Writes unless a later holder has written before.
    pub(crate) fn write(&mut self, value: &str, fence: Fence) -> Result<(), String> {
        if self.highest.is_some_and(|highest| fence < highest) {
            return Err(format!("fence {fence} is stale"));
        }
        self.highest = Some(fence);
        value.clone_into(&mut self.value);
        Ok(())
    }

    pub(crate) fn value(&self) -> &str {
        &self.value
    }
}

/// One holder falls asleep, a second one writes, the first one wakes up and tries to.
pub(crate) async fn story(url: &str) -> Result<(Ledger, Result<(), String>), LockError> {
    let locker = syncguard::connect(url).await?;
    let mut ledger = Ledger::default();

    let sleeper = locker.lock("ledger").ttl(Duration::from_millis(50)).acquire().await?;
    let stale = sleeper.fence();
    // Its lease ends (and the tolerance with it) while it sleeps.
    let successor = locker.lock("ledger").acquire().await?;
    ledger.write("written by the successor", successor.fence()).map_err(LockError::internal)?;

    let late = ledger.write("overwritten by the sleeper", stale);
    successor.release().await?;
    // The sleeper's guard is given back as well, so that nothing is left to its lease when the program ends.
    drop(sleeper);
    locker.shutdown(Duration::from_secs(5)).await;
    Ok((ledger, late))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let url = std::env::var("SYNCGUARD_URL").unwrap_or_else(|_| "memory:".to_owned());
    let (ledger, late) = story(&url).await?;
    println!("the ledger says: {}; the sleeper was told: {late:?}", ledger.value());
    Ok(())
}
