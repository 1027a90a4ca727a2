//! Does a lease live exactly as long as it says, on the backend's clock?
//!
//! Looks at a named moment are only counted if the backend's clock shows that they happened there: a busy machine makes
//! these cases slower, never wrong.

use syncguard_core::time::TOLERANCE_MS;
use syncguard_core::{ExtendOutcome, Extension, LockBackend, Lookup, Timestamp};

use crate::Harness;
use crate::support::{
    BackendClock, LONG, after, assert_contended, attempt, extend, give_back, is_locked, key, promptly, release, take,
    ttl,
};

/// ttl − 200 ms.
pub async fn a_lock_is_held_until_its_lease_ends<H: Harness>(h: &H) {
    let (backend, other) = (h.backend().await, h.backend().await);
    let clock = BackendClock::start(&backend).await;
    promptly(async |key| {
        let held = take(&backend, &key, ttl(600)).await;
        clock.wait_until(h, &backend, after(held.expires_at, -200)).await;
        let locked = is_locked(&other, &key).await;
        let seen = other.lookup(Lookup::Key(&key)).await.expect("lookup answers");
        let granted = attempt(&other, &key, LONG).await.expect("acquire answers").is_ok();
        clock.is_before(&backend, held.expires_at).await.then(|| {
            assert!(locked && !granted, "a live lock counts as free");
            assert_eq!(seen.expect("lookup shows a live lock").fence, held.fence);
        })
    })
    .await;
}

/// ttl + 500 ms: the lease is over, and the lock not yet free.
pub async fn a_lock_is_live_within_the_tolerance<H: Harness>(h: &H) {
    let (backend, other) = (h.backend().await, h.backend().await);
    let clock = BackendClock::start(&backend).await;
    promptly(async |key| {
        let held = take(&backend, &key, ttl(100)).await;
        clock.wait_until(h, &backend, after(held.expires_at, 500)).await;
        let locked = is_locked(&other, &key).await;
        let seen = other.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").is_some();
        let granted = attempt(&other, &key, LONG).await.expect("acquire answers").is_ok();
        clock.is_before(&backend, after(held.expires_at, TOLERANCE_MS)).await.then(|| {
            assert!(locked, "is_locked has no tolerance");
            assert!(seen, "lookup has no tolerance");
            assert!(!granted, "acquire has no tolerance");
        })
    })
    .await;
}

/// ttl + 500 ms: whoever was late to renew has not lost anything yet.
pub async fn an_owner_may_extend_within_the_tolerance<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    promptly(async |key| {
        let held = take(&backend, &key, ttl(100)).await;
        clock.wait_until(h, &backend, after(held.expires_at, 500)).await;
        let extended = extend(&backend, &held, LONG).await;
        clock.is_before(&backend, after(held.expires_at, TOLERANCE_MS)).await.then(|| assert!(extended))?;
        assert_contended(&backend, &key).await;
        give_back(&backend, &held).await;
        Some(())
    })
    .await;
}

/// ttl + 500 ms: a late release is a release.
pub async fn an_owner_may_release_within_the_tolerance<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    promptly(async |key| {
        let held = take(&backend, &key, ttl(100)).await;
        clock.wait_until(h, &backend, after(held.expires_at, 500)).await;
        let released = release(&backend, &held).await;
        clock.is_before(&backend, after(held.expires_at, TOLERANCE_MS)).await.then(|| assert!(released))?;
        take(&backend, &key, LONG).await;
        Some(())
    })
    .await;
}

/// ttl + 1500 ms: every operation agrees that nobody is there.
pub async fn a_lock_is_free_after_the_tolerance<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(100)).await;

    clock.wait_until(h, &backend, after(held.expires_at, 1_500)).await;

    assert!(!is_locked(&backend, &key).await, "is_locked");
    assert!(backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").is_none(), "lookup by key");
    assert!(backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").is_none(), "lookup by id");
    take(&backend, &key, LONG).await;
}

/// ttl + 1500 ms: there is nothing left to extend, and extending creates nothing.
pub async fn a_dead_lock_cannot_be_extended<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(100)).await;
    clock.wait_until(h, &backend, after(held.expires_at, 1_500)).await;

    assert!(!extend(&backend, &held, LONG).await, "a dead lock was extended");

    assert!(!is_locked(&backend, &key).await, "extend brought a dead lock back");
    take(&backend, &key, LONG).await;
}

/// ttl + 1500 ms: a release that comes too late says so.
pub async fn a_dead_lock_cannot_be_released<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(100)).await;
    clock.wait_until(h, &backend, after(held.expires_at, 1_500)).await;

    assert!(!release(&backend, &held).await);
}

/// The new lease counts from now, not from the end of the old one.
pub async fn extend_replaces_the_lease<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(20_000)).await;

    let before = clock.now(&backend).await;
    let expires_at = extended(&backend, &held.lock_id, 30_000).await;
    let after_it = clock.now(&backend).await;

    assert_between(expires_at, before, after_it, 30_000);
    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    assert_eq!(info.expires_at, expires_at, "the answer is what is stored");
}

/// A holder that is nearly done gives time back.
pub async fn extend_may_shorten_the_lease<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, LONG).await;

    let before = clock.now(&backend).await;
    let expires_at = extended(&backend, &held.lock_id, 1).await;
    let after_it = clock.now(&backend).await;

    assert_between(expires_at, before, after_it, 1);
    clock.wait_until(h, &backend, after(expires_at, 1_500)).await;
    take(&backend, &key, LONG).await;
}

/// Renewal over and over keeps a short lease alive past its first end.
pub async fn a_lease_that_is_extended_outlives_its_first_end<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(700)).await;
    let mut expires_at = held.expires_at;
    for _ in 0..4 {
        clock.wait_until(h, &backend, after(expires_at, -150)).await;
        expires_at = extended(&backend, &held.lock_id, 700).await;
    }
    clock.wait_until(h, &backend, after(held.expires_at, 1_100)).await;
    expires_at = extended(&backend, &held.lock_id, 30_000).await;

    assert!(expires_at > held.expires_at);
    assert_contended(&backend, &key).await;
    give_back(&backend, &held).await;
}

/// A renewal is the same acquisition: neither the fence nor its time changes.
pub async fn extend_changes_only_the_expiry<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, ttl(20_000)).await;
    let before = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");

    extended(&backend, &held.lock_id, 40_000).await;

    let after_it = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    assert_eq!((after_it.fence, after_it.acquired_at), (before.fence, before.acquired_at));
    assert_eq!(after_it.reveal().lock_id, before.reveal().lock_id);
    assert!(after_it.expires_at > before.expires_at);
}

/// The lease starts when the backend grants it, on the backend's clock.
pub async fn the_expiry_comes_from_the_backends_clock<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;

    let before = clock.now(&backend).await;
    let held = take(&backend, &key, ttl(12_345)).await;
    let after_it = clock.now(&backend).await;

    assert_between(held.expires_at, before, after_it, 12_345);
    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    assert_eq!(info.expires_at, held.expires_at);
    assert_eq!(info.expires_at.as_millis() - info.acquired_at.as_millis(), 12_345);
    assert!(info.observed_at >= info.acquired_at);
}

/// The shortest lease is held for the tolerance and then free.
pub async fn a_lease_of_one_millisecond_ends<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(1)).await;

    clock.wait_until(h, &backend, after(held.expires_at, 1_100)).await;

    let next = take(&backend, &key, ttl(1)).await;
    assert!(next.fence > held.fence);
}

/// The lease of one key does not depend on what happens to others.
pub async fn leases_of_different_keys_end_for_themselves<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    let (short, long) = (key("short"), key("long"));
    let lasting = take(&backend, &long, LONG).await;
    let passing = take(&backend, &short, ttl(50)).await;

    clock.wait_until(h, &backend, after(passing.expires_at, 1_200)).await;

    assert!(!is_locked(&backend, &short).await);
    assert!(is_locked(&backend, &long).await);
    give_back(&backend, &lasting).await;
}

/// What a contended answer says about the wait is true: not free before, free then.
pub async fn a_contended_answer_tells_the_wait_truly<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, ttl(300)).await;
    let contention = attempt(&backend, &key, LONG).await.expect("acquire answers").expect_err("the lock is held");
    let Some(wait) = contention.free_in else {
        return crate::runner::skip(
            "a_contended_answer_tells_the_wait_truly",
            &crate::Unsupported::because("this backend does not learn the wait for free"),
        );
    };

    let most = 300 + TOLERANCE_MS.unsigned_abs();
    assert!(wait.as_millis() <= u128::from(most), "{wait:?} is longer than the lease and the tolerance");
    h.pass(wait + crate::support::ms(5)).await;
    let next = take(&backend, &key, LONG).await;
    assert!(next.fence > held.fence);
}

/// Through the end of a lease, `is_locked` follows the one predicate: no gap, no flicker.
pub async fn is_locked_follows_the_predicate_through_the_end<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(100)).await;
    let end = after(held.expires_at, TOLERANCE_MS);
    let mut looks = 0;
    loop {
        let before = clock.now(&backend).await;
        let locked = is_locked(&backend, &key).await;
        let after_it = clock.now(&backend).await;
        if after_it < end {
            assert!(locked, "free {} ms before its end", end.as_millis() - after_it.as_millis());
        }
        if before >= end {
            assert!(!locked, "locked {} ms after its end", before.as_millis() - end.as_millis());
        }
        looks += 1;
        if before >= after(end, 100) {
            break;
        }
        h.pass(crate::support::ms(20)).await;
    }
    assert!(looks > 3);
}

async fn extended<B: LockBackend>(backend: &B, lock_id: &syncguard_core::LockId, millis: i64) -> Timestamp {
    match backend.extend(lock_id, ttl(millis)).await.expect("extend answers") {
        ExtendOutcome::Extended(Extension { expires_at, .. }) => expires_at,
        ExtendOutcome::Absent(reason) => panic!("a live lock could not be extended: {reason:?}"),
    }
}

fn assert_between(expires_at: Timestamp, before: Timestamp, after_it: Timestamp, ttl_millis: i64) {
    let (least, most) = (after(before, ttl_millis), after(after_it, ttl_millis));
    assert!(least <= expires_at && expires_at <= most, "{expires_at:?} is not within {least:?} ..= {most:?}");
}
