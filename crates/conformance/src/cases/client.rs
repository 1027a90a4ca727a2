//! Does a client on this backend wait, give up, cancel and retry as promised?

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use syncguard_core::retry::{Backoff, Jitter};
use syncguard_core::{CancellationToken, ErrorCode, Fence, Locker};

use crate::runner::skip;
use crate::support::{LONG, faulty, give_back, is_locked, key, ms, take, ttl};
use crate::{Fault, Harness, Operation, Unsupported};

// More than any promise of this file, less than a case may take.
const NEVER: Duration = Duration::from_secs(60);

/// Contention is an answer.
pub async fn a_contended_try_is_none<H: Harness>(h: &H) {
    let (backend, locker) = (h.backend().await, Locker::new(h.backend().await));
    let held = take(&backend, &key("k"), LONG).await;

    assert!(locker.lock("k").try_acquire().await.expect("contention is no error").is_none());

    give_back(&backend, &held).await;
    assert!(locker.lock("k").try_acquire().await.expect("the lock is free").is_some());
}

/// A waiter gets what a holder gives back.
pub async fn a_waiter_gets_a_lock_that_is_released<H: Harness>(h: &H) {
    let (backend, locker) = (h.backend().await, Locker::new(h.backend().await));
    let held = take(&backend, &key("k"), LONG).await;
    let waiter = locker.lock("k").timeout(NEVER).max_delay(ms(200)).acquire();

    let (guard, ()) = tokio::join!(waiter, async {
        sleep(ms(300)).await;
        give_back(&backend, &held).await;
    });

    assert!(guard.expect("the waiter gets it").fence() > held.fence);
}

/// A waiter gets what a dead holder left, when its lease is over.
pub async fn a_waiter_gets_a_lock_whose_holder_died<H: Harness>(h: &H) {
    let (backend, locker) = (h.backend().await, Locker::new(h.backend().await));
    let dead = take(&backend, &key("k"), ttl(300)).await;

    let guard = locker.lock("k").timeout(NEVER).max_delay(ms(200)).acquire().await.expect("the lease ends");

    assert!(guard.fence() > dead.fence);
}

/// Waiters come one after another, and each gets its turn.
pub async fn many_waiters_each_get_their_turn<H: Harness>(h: &H) {
    let door = std::sync::Arc::new(crate::history::Witness::default());
    let locker = Locker::new(h.backend().await);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let (locker, door) = (locker.clone(), door.clone());
        tasks.spawn(async move {
            let request = locker.lock("k").timeout(NEVER).retry_delay(ms(20)).max_delay(ms(150));
            let guard = request.acquire().await.expect("each gets its turn");
            door.enter(guard.fence());
            tokio::task::yield_now().await;
            door.leave();
            assert!(guard.release().await.expect("release answers").is_released());
        });
    }
    assert_eq!(tasks.join_all().await.len(), 12);
}

/// A waiter that sleeps for long is woken by a release.
pub async fn a_sleeping_waiter_is_woken_by_a_release<H: Harness>(h: &H) {
    let (backend, waiting) = (h.backend().await, h.backend().await);
    if !syncguard_core::LockBackend::subscribe(&waiting, &key("probe")).await.is_live() {
        let reason = Unsupported::because("this backend cannot push; waiters rely on their schedule");
        return skip("a_sleeping_waiter_is_woken_by_a_release", &reason);
    }
    let held = take(&backend, &key("k"), LONG).await;
    let waiter = Locker::new(waiting).lock("k").timeout(NEVER).retry_delay(ms(25_000)).max_delay(ms(25_000));
    let waiter = waiter.jitter(Jitter::None);
    let started = Instant::now();

    let (guard, ()) = tokio::join!(waiter.acquire(), async {
        sleep(ms(300)).await;
        give_back(&backend, &held).await;
    });

    assert!(guard.is_ok(), "{guard:?}");
    assert!(started.elapsed() < ms(10_000), "the waiter slept on: {:?}", started.elapsed());
}

/// The budget against somebody who keeps the lock.
pub async fn the_timeout_is_a_wall_while_the_lock_is_held<H: Harness>(h: &H) {
    let (backend, locker) = (h.backend().await, Locker::new(h.backend().await));
    take(&backend, &key("k"), LONG).await;
    let started = Instant::now();

    let error = locker.lock("k").timeout(ms(400)).acquire().await.expect_err("somebody else holds it");

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout, "{error:?}");
    assert_within(started.elapsed(), ms(400), h.slack());
}

/// The budget against a backend that never answers.
pub async fn the_timeout_is_a_wall_while_the_backend_hangs<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    backend.always(Operation::Acquire, Fault::Hang);
    let started = Instant::now();

    let error = Locker::new(backend).lock("k").timeout(ms(400)).acquire().await.expect_err("nobody answers");

    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "nobody was seen who holds it: {error:?}");
    assert_within(started.elapsed(), ms(400), h.slack());
}

/// That somebody held the lock long ago says nothing once the backend is silent, to whoever asks and to those behind. A
/// backend that is only too slow for the last look is another matter.
pub async fn a_silent_backend_is_not_told_as_a_holder<H: Harness>(h: &H) {
    let (other, silent, slow) = (h.backend().await, faulty(h).await.without_hints(), faulty(h).await.without_hints());
    take(&other, &key("k"), LONG).await;
    (2..20).for_each(|call| silent.nth(Operation::Acquire, call, Fault::Hang));
    slow.always(Operation::Acquire, Fault::LateReply(ms(100)));
    for (backend, code) in [(silent, ErrorCode::NetworkTimeout), (slow, ErrorCode::AcquisitionTimeout)] {
        let locker = Locker::new(backend);
        let waits = (0..3).map(|_| tokio::spawn(locker.lock("k").timeout(ms(1_500)).acquire()));
        for wait in waits.collect::<Vec<_>>() {
            let error = wait.await.expect("no panic").expect_err("it was not to be had");
            assert_eq!(error.code(), code, "{error:?}");
        }
    }
}

fn assert_within(elapsed: Duration, promised: Duration, slack: Duration) {
    // Timers may fire a millisecond early by the rounding of two clocks.
    assert!(elapsed + ms(2) >= promised, "gave up after {elapsed:?} of {promised:?}");
    assert!(elapsed <= promised + slack, "took {elapsed:?} instead of {promised:?}");
}

/// No budget is still one attempt.
pub async fn a_timeout_of_zero_is_one_attempt<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let held = take(&other, &key("k"), LONG).await;
    let locker = Locker::new(backend.clone());

    let error = locker.lock("k").timeout(Duration::ZERO).acquire().await.expect_err("somebody else holds it");
    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert_eq!(backend.calls(Operation::Acquire), 1);

    give_back(&other, &held).await;
    let guard = locker.lock("k").timeout(Duration::ZERO).acquire().await;
    assert!(guard.is_ok(), "one attempt is enough for a free lock: {guard:?}");
}

/// Three retries are four attempts.
pub async fn max_retries_counts_retries<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await.without_hints());
    take(&other, &key("k"), LONG).await;
    let request = Locker::new(backend.clone()).lock("k").timeout(NEVER).max_retries(3);

    let error = request.retry_delay(ms(5)).backoff(Backoff::Fixed).acquire().await.expect_err("held");

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert_eq!(backend.calls(Operation::Acquire), 4);
}

/// A delay of nothing is no reason not to retry.
pub async fn a_retry_delay_of_zero_retries<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await.without_hints());
    take(&other, &key("k"), LONG).await;
    let request = Locker::new(backend.clone()).lock("k").max_retries(5).retry_delay(Duration::ZERO);

    request.timeout(NEVER).acquire().await.expect_err("held");

    assert_eq!(backend.calls(Operation::Acquire), 6);
}

/// Four retries from 20 ms: 20 + 40 + 80 + 160 when they double, 4 × 20 when they do not, half or all of it by chance.
pub async fn the_delays_follow_the_formulas<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await.without_hints());
    take(&other, &key("k"), LONG).await;
    let locker = Locker::new(backend);
    for (backoff, whole) in [(Backoff::Exponential, 300), (Backoff::Fixed, 80)] {
        for (jitter, least) in [(Jitter::None, whole), (Jitter::Equal, whole / 2), (Jitter::Full, 0)] {
            let request = locker.lock("k").timeout(NEVER).max_retries(4).retry_delay(ms(20));
            let started = Instant::now();
            request.backoff(backoff).jitter(jitter).acquire().await.expect_err("held");
            let elapsed = started.elapsed();
            assert!(elapsed + ms(2) >= ms(least), "{backoff:?} {jitter:?}: {elapsed:?} is less than {least} ms");
            assert!(elapsed <= ms(whole) + h.slack(), "{backoff:?} {jitter:?}: {elapsed:?} is more than {whole} ms");
        }
    }
}

/// The schedule would sleep past the end; the end is looked at all the same. The last look has only moments, so a storage
/// that did not answer it in time says nothing, and another round is made.
pub async fn the_last_attempt_is_made_at_the_deadline<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await.without_hints());
    let locker = Locker::new(backend);
    for round in 0..10 {
        let name = format!("round {round}");
        let held = take(&other, &key(&name), LONG).await;
        let request = locker.lock(&name).timeout(ms(1_200)).retry_delay(ms(30_000)).jitter(Jitter::None);
        let (guard, ()) = tokio::join!(request.acquire(), async {
            sleep(ms(900)).await;
            give_back(&other, &held).await;
        });
        match guard {
            Ok(_) => return,
            Err(error) if error.is_ambiguous() => {}
            Err(error) => panic!("a lock freed 300 ms before the deadline was not got at the deadline: {error:?}"),
        }
    }
    panic!("ten looks in a row had no answer");
}

/// Unreachable, overloaded, slow: tried again inside the budget.
pub async fn transient_errors_are_retried<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let locker = Locker::new(backend.clone());
    for code in [ErrorCode::ServiceUnavailable, ErrorCode::RateLimited, ErrorCode::NetworkTimeout] {
        let fired = backend.fired(Operation::Acquire);
        backend.next(Operation::Acquire, 2, Fault::Refuse(code));
        let guard = locker.lock("k").timeout(NEVER).retry_delay(ms(10)).acquire().await.expect("the third works");
        assert_eq!(backend.fired(Operation::Acquire), fired + 2);
        guard.release().await.expect("release answers");
    }
}

/// Wrong password, wrong argument, wrong state: said at once.
pub async fn permanent_errors_are_not_retried<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let locker = Locker::new(backend.clone());
    for (nth, code) in (1..).zip([ErrorCode::AuthFailed, ErrorCode::InvalidArgument, ErrorCode::Internal]) {
        backend.nth(Operation::Acquire, 1, Fault::Refuse(code));
        let error = locker.lock("k").timeout(NEVER).acquire().await.expect_err("permanent");
        assert_eq!(error.code(), code);
        assert_eq!(backend.calls(Operation::Acquire), nth);
    }
    assert!(!locker.is_locked("k").await.expect("is_locked answers"));
}

/// A backend that was away for the whole budget is not told as contention.
pub async fn a_backend_that_stays_away_is_told_as_such<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    backend.always(Operation::Acquire, Fault::Refuse(ErrorCode::ServiceUnavailable));

    let error = Locker::new(backend.clone()).lock("k").timeout(ms(300)).acquire().await.expect_err("away");

    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(backend.calls(Operation::Acquire) > 1);
}

/// The token fires while the waiter sleeps.
pub async fn a_cancel_ends_a_retry_sleep_at_once<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let held = take(&other, &key("k"), LONG).await;
    let token = CancellationToken::new();
    let request = locker.lock("k").timeout(NEVER).retry_delay(ms(30_000)).cancel(token.clone());

    let (error, cancelled) = tokio::join!(request.acquire(), async {
        sleep(ms(300)).await;
        token.cancel();
        Instant::now()
    });

    assert!(cancelled.elapsed() <= ms(100) + h.slack());
    assert_eq!(error.expect_err("cancelled").code(), ErrorCode::Aborted);
    give_back(&other, &held).await;
    locker.drain().await;
    assert!(!is_locked(&other, &key("k")).await);
}

/// The token fires while the request is on its way; what it gets after all is given back.
pub async fn a_cancel_ends_a_call_in_flight_and_leaves_no_lock<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    backend.nth(Operation::Acquire, 1, Fault::LateReply(ms(1_500)));
    let (locker, token) = (Locker::new(backend.clone()), CancellationToken::new());
    let request = locker.lock("k").timeout(NEVER).cancel(token.clone());
    let started = Instant::now();

    let (error, ()) = tokio::join!(request.acquire(), async {
        sleep(ms(200)).await;
        token.cancel();
    });

    assert!(started.elapsed() <= ms(300) + h.slack());
    assert_eq!(error.expect_err("cancelled").code(), ErrorCode::Aborted);
    assert_eq!(backend.fired(Operation::Acquire), 1);
    locker.drain().await;
    assert!(!is_locked(&other, &key("k")).await, "a cancelled acquire left a lock");
}

/// The token had fired before.
pub async fn a_cancelled_token_asks_nobody<H: Harness>(h: &H) {
    let (backend, token) = (faulty(h).await, CancellationToken::new());
    token.cancel();
    let locker = Locker::new(backend.clone());

    let waited = locker.lock("k").cancel(token.clone()).acquire().await.expect_err("cancelled");
    let tried = locker.lock("k").cancel(token).try_acquire().await.expect_err("cancelled");

    assert_eq!((waited.code(), tried.code()), (ErrorCode::Aborted, ErrorCode::Aborted));
    assert_eq!(backend.calls(Operation::Acquire), 0);
}

/// The caller walks away while the request is on its way.
pub async fn dropping_acquire_midway_leaves_no_lock<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let locker = Locker::new(backend.clone());
    for fault in [Fault::LateReply(ms(400)), Fault::Delay(ms(400))] {
        backend.nth(Operation::Acquire, 1, fault);
        assert!(timeout(ms(100), locker.lock("k").acquire()).await.is_err(), "it was dropped");
        locker.drain().await;
        assert!(!is_locked(&other, &key("k")).await, "{fault:?} left a lock");
    }
    assert_eq!(backend.fired(Operation::Acquire), 2);
}

/// The caller walks away at every possible moment; after the background is done, nothing is locked.
pub async fn dropping_acquire_at_every_poll_leaves_no_lock_after_draining<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    for polls in 1..200 {
        let name = format!("dropped {polls}");
        let completed = crate::cases::cancel::dropped_after(polls, pin!(locker.lock(&name).acquire())).await;
        if let Some(guard) = completed {
            guard.expect("the lock is free").release().await.expect("release answers");
            locker.drain().await;
            for polls in 1..=polls {
                assert!(!is_locked(&other, &key(&format!("dropped {polls}"))).await, "a lock after {polls} polls");
            }
            return;
        }
    }
    panic!("acquire never completes");
}

/// The lock was taken and the reply lost: waiting finds out and goes on with it.
pub async fn a_waiter_owns_up_to_a_lost_reply<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    backend.nth(Operation::Acquire, 1, Fault::ReplyLost);
    let locker = Locker::new(backend.clone());

    let guard = locker.lock("k").retry_delay(ms(20)).acquire().await.expect("the same id is told that it holds it");

    assert_eq!(backend.fired(Operation::Acquire), 1);
    assert_eq!(guard.fence(), Fence::FIRST, "one acquisition took two fences");
    guard.release().await.expect("release answers");
    locker.drain().await;
    assert!(!is_locked(&other, &key("k")).await);
}

/// The lock was taken and the reply lost: who tries only once leaves nothing behind.
pub async fn a_lost_reply_to_a_single_try_is_cleaned_up<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    backend.nth(Operation::Acquire, 1, Fault::ReplyLost);
    let locker = Locker::new(backend);

    let error = locker.lock("k").try_acquire().await.expect_err("the reply is lost");

    assert!(error.is_ambiguous());
    locker.drain().await;
    assert!(!is_locked(&other, &key("k")).await, "an orphan is left");
}

/// A grant that arrives when its lease is over is no lock.
pub async fn a_grant_that_arrives_too_late_is_no_guard<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    backend.always(Operation::Acquire, Fault::LateReply(ms(120)));
    let locker = Locker::new(backend);

    let error = locker.lock("k").ttl(ms(60)).try_acquire().await.expect_err("expired on arrival");

    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    locker.drain().await;
    assert!(!is_locked(&other, &key("k")).await);
}
