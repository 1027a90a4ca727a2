//! How often does a lock on each storage ask for memory?
//!
//! Counted on the thread of the caller, which runs the drivers of the servers too, but not sqlite's writer. Upper bounds
//! and not exact figures: how a driver packs what comes in at once depends on the network. They tell a copy of everything
//! from a few strings more; the client alone is counted exactly in `crates/core/tests/behaviour/allocations.rs`.
#![cfg(all(feature = "sqlite", feature = "redis", feature = "postgres"))]

use std::time::Duration;

use syncguard::Locker;

/// Longer than any machine needs for the test.
const LEASE: Duration = Duration::from_secs(1800);

const ROUNDS: u64 = 200;

fn count(url: &str, at_most: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let locker = runtime.block_on(syncguard::connect(url)).unwrap();
    runtime.block_on(pairs(&locker, 50));

    let counted = allocation_counter::measure(|| runtime.block_on(pairs(&locker, ROUNDS)));

    let (each, bytes) = (counted.count_total / ROUNDS, counted.bytes_total / ROUNDS);
    println!("a pair takes {each} allocations, {bytes} bytes");
    assert!(each <= at_most, "a pair allocates {each} times, at most {at_most} were expected");
    runtime.block_on(locker.shutdown(Duration::from_secs(5)));
}

async fn pairs(locker: &Locker, rounds: u64) {
    for _ in 0..rounds {
        locker.lock("allocations").ttl(LEASE).acquire().await.unwrap().release().await.unwrap();
    }
}

#[test]
fn a_lock_on_sqlite_allocates_little() {
    let folder = tempfile::tempdir().unwrap();
    count(&format!("sqlite:{}", folder.path().join("locks.db").display()), 35);
}

#[test]
fn a_lock_on_redis_allocates_little() {
    count(&format!("{}?prefix=allocations", syncguard_testkit::redis_url()), 70);
}

#[test]
fn a_lock_on_postgres_allocates_little() {
    count(&syncguard_testkit::fresh_postgres_database(), 95);
}
