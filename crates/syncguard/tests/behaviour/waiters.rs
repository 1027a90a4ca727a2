//! Does everybody in a crowd get its turn?
//!
//! Five hundred tasks wait for one key over one client; `cargo xtask bench waiters` has ten thousand on every backend.
//! How often they ask meanwhile is counted in `syncguard-conformance`, where time does not depend on the machine.
#![cfg(feature = "sqlite")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

const WAITERS: usize = 500;

/// Much longer than it takes, on any machine: neither ends by itself.
const LONG: Duration = Duration::from_secs(1800);

async fn everybody_gets_its_turn(url: &str) {
    let locker = syncguard::connect(url).await.unwrap();
    let first = locker.lock("one").ttl(LONG).acquire().await.unwrap();
    let inside = Arc::new(AtomicBool::new(false));
    let mut crowd = JoinSet::new();
    for _ in 0..WAITERS {
        let (locker, inside) = (locker.clone(), inside.clone());
        crowd.spawn(async move {
            let guard = locker.lock("one").ttl(LONG).timeout(LONG).unlimited_retries().acquire().await.unwrap();
            assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
            tokio::task::yield_now().await;
            inside.store(false, Ordering::SeqCst);
            let fence = guard.fence();
            assert!(guard.release().await.unwrap().is_released());
            fence
        });
    }
    tokio::task::yield_now().await;

    first.release().await.unwrap();

    let mut fences = crowd.join_all().await;
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), WAITERS, "each has a fence of its own");
    assert!(locker.shutdown(LONG).await);
}

#[tokio::test]
async fn five_hundred_tasks_get_their_turn_in_memory() {
    everybody_gets_its_turn("memory:").await;
}

#[tokio::test]
async fn five_hundred_tasks_get_their_turn_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    everybody_gets_its_turn(&format!("sqlite:{}", folder.path().join("locks.db").display())).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn five_hundred_tasks_get_their_turn_on_redis() {
    let url = format!("{}?connections=1&prefix=waiters-{}", syncguard_testkit::redis_url(), std::process::id());
    everybody_gets_its_turn(&url).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn five_hundred_tasks_get_their_turn_on_postgres() {
    everybody_gets_its_turn(&syncguard_testkit::fresh_postgres_database()).await;
}
