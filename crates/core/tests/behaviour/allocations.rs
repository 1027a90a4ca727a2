//! How often does the client ask for memory?
//!
//! Counted on the memory backend, whose own entry for each lock is part of the figures. Counts do not depend on load.

use std::time::Duration;

use syncguard_core::{Guard, Locker, MemoryBackend};

/// Longer than any machine needs for the test.
const LEASE: Duration = Duration::from_secs(1800);

const ROUNDS: u64 = 1_000;

/// What happens again and again in steady state, and how often it may allocate.
fn count(what: &str, at_most: u64, mut one: impl AsyncFnMut()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for _ in 0..100 {
            one().await;
        }
    });
    let counted = allocation_counter::measure(|| {
        runtime.block_on(async {
            for _ in 0..ROUNDS {
                one().await;
            }
        });
    });
    // Tables that grow and the like: less than one in a round.
    let each = counted.count_total / ROUNDS;
    println!("{what}: {each} allocations, {} bytes", counted.bytes_total / ROUNDS);
    assert!(each <= at_most, "{what} allocates {each} times, {at_most} are known");
    if each < at_most {
        println!("lower the figure from {at_most}: one that is too high hides what is added next");
    }
}

#[test]
fn a_lock_taken_and_released_allocates_no_more_than_before() {
    let locker = Locker::new(MemoryBackend::new());
    count("a pair", 12, async || {
        let guard: Guard = locker.lock("job").ttl(LEASE).acquire().await.unwrap();
        guard.release().await.unwrap();
    });
}

#[test]
fn an_extension_allocates_no_more_than_before() {
    let locker = Locker::new(MemoryBackend::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(locker.lock("job").ttl(LEASE).acquire()).unwrap();
    count("an extension", 3, async || {
        assert!(guard.extend(LEASE).await.unwrap().is_extended());
    });
}
