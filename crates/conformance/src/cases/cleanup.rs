//! Does cleaning up remove the dead, and only the dead?
//!
//! A lock may be removed once it has been over for more than 2000 ms, on server time and client time alike (1000 +
//! 1000). Storages that forget dead locks by themselves purge nothing, and that is right too.

use syncguard_core::time::CLEANUP_GUARD_MS;
use syncguard_core::{LockBackend, Lookup};

use crate::Harness;
use crate::runner::skip;
use crate::support::{BackendClock, Held, LONG, after, give_back, is_locked, key, promptly, take, ttl};

async fn purge<B: LockBackend>(backend: &B) -> u64 {
    backend.purge_expired().await.expect("purge answers")
}

/// How many of the dead a purge must find: none where the storage forgot them already.
fn found<H: Harness>(h: &H, dead: u64) -> u64 {
    if h.keeps_dead_locks() { dead } else { 0 }
}

async fn dead_for_long<H: Harness>(h: &H, backend: &H::Backend, clock: &BackendClock, name: &str) -> Held {
    let held = take(backend, &key(name), ttl(1)).await;
    clock.wait_until(h, backend, after(held.expires_at, CLEANUP_GUARD_MS + 100)).await;
    held
}

/// Nothing to do is an answer.
pub async fn purging_an_empty_storage_removes_nothing<H: Harness>(h: &H) {
    let backend = h.backend().await;
    assert_eq!(purge(&backend).await, 0);
    let held = take(&backend, &key("k"), LONG).await;
    give_back(&backend, &held).await;
    assert_eq!(purge(&backend).await, 0, "a released lock is not there to be removed");
}

/// Each dead lock is removed and counted once; what is alive stays.
pub async fn purging_removes_the_dead_once_and_spares_the_living<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    let alive = take(&backend, &key("alive"), LONG).await;
    take(&backend, &key("dead 1"), ttl(1)).await;
    take(&backend, &key("dead 2"), ttl(1)).await;
    dead_for_long(h, &backend, &clock, "dead 3").await;

    assert_eq!(purge(&backend).await, found(h, 3));
    assert_eq!(purge(&backend).await, 0);

    assert!(is_locked(&backend, &key("alive")).await);
    give_back(&backend, &alive).await;
}

/// Over for 1500 ms: dead, and still inside the guard.
pub async fn purging_spares_what_died_a_moment_ago<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    promptly(async |key| {
        purge(&backend).await;
        let held = take(&backend, &key, ttl(1)).await;
        clock.wait_until(h, &backend, after(held.expires_at, 1_500)).await;
        let removed = purge(&backend).await;
        let in_time = clock.is_before(&backend, after(held.expires_at, CLEANUP_GUARD_MS)).await;
        in_time.then(|| assert_eq!(removed, 0, "a lock was removed inside the guard of 2000 ms"))
    })
    .await;
}

/// The counter outlives every lock.
pub async fn purging_leaves_the_counter_alone<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    let dead = dead_for_long(h, &backend, &clock, "k").await;

    purge(&backend).await;

    assert_eq!(take(&backend, &key("k"), LONG).await.fence.get(), dead.fence.get() + 1);
}

/// Another namespace's dead are not ours.
pub async fn purging_stays_in_its_namespace<H: Harness>(h: &H) {
    let (here, there) = (h.backend().await, h.elsewhere().await);
    let clock = BackendClock::start(&there).await;
    dead_for_long(h, &there, &clock, "k").await;

    assert_eq!(purge(&here).await, 0);
    assert_eq!(purge(&there).await, found(h, 1));
}

/// Unless it was switched on, looking removes nothing.
pub async fn looking_does_not_clean_up_by_default<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    dead_for_long(h, &backend, &clock, "k").await;

    assert!(!is_locked(&backend, &key("k")).await);
    assert!(backend.lookup(Lookup::Key(&key("k"))).await.expect("lookup answers").is_none());

    assert_eq!(purge(&backend).await, found(h, 1), "a look removed the lock");
}

/// Switched on, it never changes the answer, and never removes what is alive or died a moment ago.
pub async fn cleaning_while_looking_spares_the_living<H: Harness>(h: &H) {
    let cleaning = match h.cleaning().await {
        Ok(cleaning) => cleaning,
        Err(reason) => return skip("cleaning_while_looking_spares_the_living", &reason),
    };
    let clock = BackendClock::start(&cleaning).await;
    let alive = take(&cleaning, &key("alive"), LONG).await;
    assert!(is_locked(&cleaning, &key("alive")).await);
    promptly(async |key| {
        let held = take(&cleaning, &key, ttl(100)).await;
        clock.wait_until(h, &cleaning, after(held.expires_at, 400)).await;
        let locked = is_locked(&cleaning, &key).await;
        let released = cleaning.release(&held.lock_id).await.expect("release answers").is_released();
        let in_time = clock.is_before(&cleaning, after(held.expires_at, 1_000)).await;
        in_time.then(|| assert!(locked && released, "cleaning up cost an owner its tolerance"))
    })
    .await;
    give_back(&cleaning, &alive).await;
}

/// Switched on, the dead go, the answer is the same, and the counter stays.
pub async fn cleaning_while_looking_removes_the_dead_and_no_counter<H: Harness>(h: &H) {
    let cleaning = match h.cleaning().await {
        Ok(cleaning) => cleaning,
        Err(reason) => return skip("cleaning_while_looking_removes_the_dead_and_no_counter", &reason),
    };
    let clock = BackendClock::start(&cleaning).await;
    // Removal may be left to the background, and a busy machine takes its time for that: it is no part of the answer.
    let mut patience = crate::support::ms(500);
    let dead = loop {
        let dead = dead_for_long(h, &cleaning, &clock, "k").await;
        assert!(!is_locked(&cleaning, &key("k")).await);
        h.pass(patience).await;
        if purge(&cleaning).await == 0 {
            break dead;
        }
        patience *= 4;
        assert!(patience < crate::support::ms(30_000), "cleaning up was switched on and removed nothing");
    };
    assert_eq!(take(&cleaning, &key("k"), LONG).await.fence.get(), dead.fence.get() + 1);
}
