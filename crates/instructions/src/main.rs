//! What the client does for a lock, again and again: `syncguard-instructions pair|extend|refused ROUNDS`.
//!
//! The memory backend answers at once, on one thread, so what callgrind counts is the client. `cargo xtask instructions`
//! runs this for a number of rounds and for twice as many; the difference is free of what the start takes.

use std::time::Duration;

use syncguard_core::{LockError, Locker, MemoryBackend};

/// Longer than any run: no lease ends by itself.
const LEASE: Duration = Duration::from_mins(30);

fn main() -> Result<(), LockError> {
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    let rounds = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let locker = Locker::new(MemoryBackend::new());
        match what.as_str() {
            "pair" => pairs(&locker, rounds).await,
            "extend" => extensions(&locker, rounds).await,
            "refused" => refusals(&locker, rounds).await,
            _ => panic!("pair, extend or refused"),
        }
    })
}

async fn pairs(locker: &Locker, rounds: u32) -> Result<(), LockError> {
    for _ in 0..rounds {
        locker.lock("job").ttl(LEASE).acquire().await?.release().await?;
    }
    Ok(())
}

async fn extensions(locker: &Locker, rounds: u32) -> Result<(), LockError> {
    let guard = locker.lock("job").ttl(LEASE).acquire().await?;
    for _ in 0..rounds {
        assert!(guard.extend(LEASE).await?.is_extended(), "it is held");
    }
    guard.release().await?;
    Ok(())
}

async fn refusals(locker: &Locker, rounds: u32) -> Result<(), LockError> {
    let guard = locker.lock("job").ttl(LEASE).acquire().await?;
    for _ in 0..rounds {
        assert!(locker.lock("job").ttl(LEASE).try_acquire().await?.is_none(), "it is held");
    }
    guard.release().await?;
    Ok(())
}
