//! A lock around a piece of work, in the fewest lines.
//!
//! `cargo run -p syncguard --features sqlite --example quickstart`; run it twice and the fence grows. Set
//! `SYNCGUARD_URL` to move the lock elsewhere.

use std::time::Duration;

use syncguard::{Fence, LockError};

/// Holds `greeting` while the work runs, and returns what the work made of its fence.
pub(crate) async fn story(url: &str) -> Result<(String, Fence), LockError> {
    let locker = syncguard::connect(url).await?;

    // Renewed while the work runs; dropped if the lock is lost; released at the end.
    let fence = locker
        .lock("greeting")
        .ttl(Duration::from_secs(30))
        .timeout(Duration::from_secs(5))
        .keep_alive()
        .run(async |lock| lock.fence())
        .await?;

    // Nothing is left to its lease when the program ends.
    locker.shutdown(Duration::from_secs(5)).await;
    Ok((format!("hello from fence {fence}"), fence))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let default = format!("sqlite:{}", std::env::temp_dir().join("syncguard-quickstart.db").display());
    let url = std::env::var("SYNCGUARD_URL").unwrap_or(default);
    println!("{}", story(&url).await?.0);
    Ok(())
}
