//! Is a bad argument refused before the storage hears of it?

use std::time::Duration;

use syncguard_core::{ErrorCode, LockError, LockId, Locker, Result, Ttl};

use crate::support::{faulty, ms};
use crate::{Faulty, Harness, Operation};

async fn refused_everywhere<H: Harness>(h: &H, name: &str) {
    let backend = faulty(h).await;
    let locker = Locker::new(backend.clone());

    let mut ran = false;
    let answers: [Result<()>; 6] = [
        locker.lock(name).try_acquire().await.map(drop),
        locker.lock(name).acquire().await.map(drop),
        locker.lock(name).run(async |_| ran = true).await,
        locker.is_locked(name).await.map(drop),
        locker.inspect(name).await.map(drop),
        locker.lock_all(["fine", name]).acquire().await.map(drop),
    ];

    for answer in answers {
        assert_refused(&answer.expect_err("a bad key is refused"), name);
    }
    assert!(!ran);
    assert_no_call(&backend);
}

fn assert_refused(error: &LockError, input: &str) {
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
    let text = format!("{error} {error:?} {}", error.hint().unwrap_or_default());
    assert!(text.len() <= 1024, "a message of {} bytes", text.len());
    assert!(input.len() < 8 || !text.contains(input), "the message repeats its input");
}

fn assert_no_call<B>(backend: &Faulty<B>) {
    use Operation::{Acquire, Extend, IsLocked, Lookup, Release};
    for operation in [Acquire, Release, Extend, IsLocked, Lookup] {
        assert_eq!(backend.calls(operation), 0, "{operation:?} reached the backend");
    }
}

/// A lock needs a name.
pub async fn an_empty_key_is_refused_before_any_io<H: Harness>(h: &H) {
    refused_everywhere(h, "").await;
}

/// 513 bytes, of narrow and of wide characters.
pub async fn a_key_of_513_bytes_is_refused_before_any_io<H: Harness>(h: &H) {
    let error = syncguard_core::Key::new("a".repeat(513)).expect_err("a long key is refused");
    assert!(error.to_string().contains("exceeds maximum length"), "{error}");
    refused_everywhere(h, &"a".repeat(513)).await;
    refused_everywhere(h, &"\u{20ac}".repeat(171)).await;
    refused_everywhere(h, &"e\u{301}".repeat(300)).await;
    refused_everywhere(h, &"\u{344}".repeat(200)).await;
}

/// Not every storage can keep U+0000, so none is asked to.
pub async fn a_key_with_nul_is_refused_before_any_io<H: Harness>(h: &H) {
    refused_everywhere(h, "\0").await;
    refused_everywhere(h, "before\0behind").await;
}

/// Ten megabytes of combining marks.
pub async fn a_huge_key_is_refused_in_few_words<H: Harness>(h: &H) {
    refused_everywhere(h, &"\u{301}".repeat(5 << 20)).await;
}

/// Zero, half a millisecond, more than 366 days.
pub async fn a_bad_ttl_is_refused_before_any_io<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let locker = Locker::new(backend.clone());
    let too_long = Ttl::MAX.duration() + ms(1);
    let bad = [
        Duration::ZERO,
        Duration::from_micros(500),
        too_long,
        ms(100_000_000_000_000),
        ms((1 << 53) + 1),
        Duration::MAX,
    ];
    for ttl in bad {
        assert_refused(&locker.lock("k").ttl(ttl).acquire().await.expect_err("a bad ttl is refused"), "");
        assert_refused(&locker.lock("k").ttl(ttl).try_acquire().await.expect_err("a bad ttl is refused"), "");
        assert_refused(&locker.extend_id(&LockId::random(), ttl).await.expect_err("a bad ttl is refused"), "");
    }
    assert_no_call(&backend);
}

/// The guard refuses a bad renewal and keeps what it has.
pub async fn a_bad_extension_is_refused_and_the_lock_stays<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let locker = Locker::new(backend.clone());
    let guard = locker.lock("k").acquire().await.expect("the lock is free");

    assert_refused(&guard.extend(Duration::ZERO).await.expect_err("a bad ttl is refused"), "");

    assert_eq!(backend.calls(Operation::Extend), 0);
    assert!(guard.is_held());
    assert!(guard.release().await.expect("release answers").is_released());
}

/// Labels and renewal intervals are checked with the rest.
pub async fn bad_settings_are_refused_before_any_io<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let locker = Locker::new(backend.clone());
    let request = || locker.lock("k").ttl(ms(1_000));

    for bad in [
        request().label(""),
        request().label("x".repeat(201)),
        request().label("a\0b"),
        request().renew_every(Duration::ZERO),
        request().renew_every(ms(1_000)),
        request().max_hold(Duration::ZERO),
    ] {
        assert_refused(&bad.acquire().await.expect_err("a bad setting is refused"), "");
    }
    let none: [&str; 0] = [];
    assert_refused(&locker.lock_all(none).acquire().await.expect_err("no key is refused"), "");
    assert_no_call(&backend);
}

/// Extreme settings do not overflow: the budget bounds them.
pub async fn extreme_retry_settings_do_not_overflow<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    crate::support::take(&other, &crate::support::key("k"), crate::support::LONG).await;
    let request = locker.lock("k").max_retries(u32::MAX).retry_delay(Duration::MAX).max_delay(Duration::MAX);

    let error = request.timeout(ms(200)).acquire().await.expect_err("somebody else holds it");

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
}
