//! Is the backend right about a storage that is damaged, cut off, hung, busy, or seen by a wrong clock?
//!
//! A wrapper can only pretend that: errors that it makes say nothing of the errors that a driver gives. So each case asks the
//! harness to do it to the storage itself, and is skipped, visibly, where it cannot.

use std::time::Duration;

use syncguard_core::time::{CLEANUP_GUARD_MS, TOLERANCE_MS};
use syncguard_core::{ExtendOutcome, Fence, LockBackend, Lookup, TimeAuthority};
use tokio::task::JoinSet;

use crate::runner::skip;
use crate::support::{
    BackendClock, LONG, after, assert_contended, attempt, attempt_as, give_back, is_locked, key, ms, take, ttl,
};
use crate::{Break, Harness};

/// Longer than any bound of a client that waits for one call.
const BOUND: Duration = Duration::from_secs(60);

/// A counter that cannot be read is no counter at 0: the next fence would be one of the first holder's.
pub async fn a_damaged_counter_gives_no_fence<H: Harness>(h: &H) {
    let (backend, damaged) = (h.backend().await, key("canary-damaged"));
    let held = take(&backend, &damaged, LONG).await;
    give_back(&backend, &held).await;
    if let Err(reason) = h.damage_counter(&damaged).await {
        return skip("a_damaged_counter_gives_no_fence", &reason);
    }

    let error = attempt(&backend, &damaged, LONG).await.expect_err("a damaged counter gave a fence");

    assert!(!error.is_transient(), "a damaged counter does not heal by itself: {error:?}");
    assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    assert!(!is_locked(&backend, &damaged).await, "the refusal left a lock behind");
    take(&backend, &key("beside it"), LONG).await;
}

async fn until_it_answers<H: Harness>(h: &H, backend: &H::Backend) {
    for _ in 0..600 {
        if backend.is_locked(&key("is the line mended?")).await.is_ok() {
            return;
        }
        h.pass(ms(50)).await;
    }
    panic!("a mended line is not used again");
}

/// The storage acted, and its reply is lost on the way: the error says that it may have acted, and the id learns the truth.
pub async fn a_write_whose_reply_the_storage_lost_is_ambiguous<H: Harness>(h: &H) {
    let (backend, line) = match h.on_a_line().await {
        Ok(both) => both,
        Err(reason) => return skip("a_write_whose_reply_the_storage_lost_is_ambiguous", &reason),
    };
    let (witness, key) = (h.backend().await, key("k"));
    let lock_id = backend.new_lock_id(&key);
    until_it_answers(h, &backend).await;

    line.set(Break::RepliesLost);
    let lost = attempt_as(&backend, &key, &lock_id, LONG).await.expect_err("no reply comes");
    assert!(lost.is_ambiguous(), "acquire: {lost:?}");
    let held = attempt_as(&witness, &key, &lock_id, LONG).await.expect("acquire answers").expect("it is ours");
    assert_eq!(held.fence, Fence::FIRST, "one acquisition took two fences");

    line.set(Break::Mended);
    until_it_answers(h, &backend).await;
    line.set(Break::RepliesLost);
    let lost = backend.extend(&lock_id, LONG).await.expect_err("no reply comes");
    assert!(lost.is_ambiguous(), "extend: {lost:?}");

    line.set(Break::Mended);
    until_it_answers(h, &backend).await;
    line.set(Break::RepliesLost);
    let lost = backend.release(&lock_id).await.expect_err("no reply comes");
    assert!(lost.is_ambiguous(), "release: {lost:?}");
    line.set(Break::Mended);
    witness.release(&lock_id).await.expect("release answers");
    assert!(!is_locked(&witness, &key).await);
}

/// Nothing comes back, and nothing says so: each call ends by itself, with an error.
pub async fn a_silent_storage_is_told_in_bounded_time<H: Harness>(h: &H) {
    let (backend, line) = match h.on_a_line().await {
        Ok(both) => both,
        Err(reason) => return skip("a_silent_storage_is_told_in_bounded_time", &reason),
    };
    let (held, other) = (take(&backend, &key("held"), LONG).await, key("other"));

    line.set(Break::Silent);
    let all = async {
        tokio::join!(
            async { attempt(&backend, &other, LONG).await.is_err() },
            async { backend.extend(&held.lock_id, LONG).await.is_err() },
            async { backend.release(&held.lock_id).await.is_err() },
            async { backend.is_locked(&other).await.is_err() },
            async { backend.lookup(Lookup::Key(&other)).await.is_err() },
        )
    };
    let failed = tokio::time::timeout(BOUND, all).await.expect("a call waits for a silent storage without end");
    line.set(Break::Mended);

    assert_eq!(failed, (true, true, true, true, true), "a silent storage seems to have answered");
    until_it_answers(h, &backend).await;
}

/// Whoever takes a dead lock over while it is being removed keeps it.
pub async fn a_purge_beside_takeovers_removes_no_living_lock<H: Harness>(h: &H) {
    const LOCKS: usize = 20;
    let (purger, taker) = (h.backend().await, std::sync::Arc::new(h.backend().await));
    let clock = BackendClock::start(&purger).await;
    let mut last = None;
    for number in 0..LOCKS {
        last = Some(take(&*taker, &key(&format!("over {number}")), ttl(1)).await.expires_at);
    }
    clock.wait_until(h, &purger, after(last.expect("some"), CLEANUP_GUARD_MS + 100)).await;

    let mut takeovers = JoinSet::new();
    for number in 0..LOCKS {
        let taker = taker.clone();
        takeovers.spawn(async move { take(&*taker, &key(&format!("over {number}")), LONG).await });
    }
    let (removed, held) = tokio::join!(purger.purge_expired(), takeovers.join_all());

    removed.expect("purge answers");
    for held in held {
        give_back(&*taker, &held).await;
    }
}

/// Released, taken over, released again: nothing but the counter is left, no index and no mark.
pub async fn no_entry_is_left_of_locks_that_are_over<H: Harness>(h: &H) {
    let backend = h.backend().await;
    if let Err(reason) = h.entries().await {
        return skip("no_entry_is_left_of_locks_that_are_over", &reason);
    }
    for number in 0..5 {
        let name = key(&format!("over {number}"));
        let dead = take(&backend, &name, ttl(1)).await;
        h.pass(after(dead.expires_at, TOLERANCE_MS + 50).since(dead.expires_at)).await;
        loop {
            // A busy clock of the storage may lag behind ours.
            if let Ok(held) = attempt(&backend, &name, LONG).await.expect("acquire answers") {
                break give_back(&backend, &held).await;
            }
            h.pass(ms(50)).await;
        }
    }
    // What the storage forgets by itself, it forgets within moments.
    for _ in 0..100 {
        if h.entries().await.expect("they were counted before") == 0 {
            return;
        }
        h.pass(ms(100)).await;
    }
    panic!("{} entries are left of locks that are over", h.entries().await.expect("they were counted before"));
}

/// The moment that decides is the one at which the storage writes, not the one at which it was asked.
pub async fn an_extend_that_was_held_up_renews_no_dead_lock<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(200)).await;
    let past_the_end = ms(200 + 1_000 + 500);
    if let Err(reason) = h.hold_up(&key, past_the_end).await {
        return skip("an_extend_that_was_held_up_renews_no_dead_lock", &reason);
    }

    let outcome = backend.extend(&held.lock_id, LONG).await;

    assert!(!matches!(outcome, Ok(ExtendOutcome::Extended(_))), "a lock was renewed after its end");
    // It may have given up before.
    clock.wait_until(h, &backend, after(held.expires_at, TOLERANCE_MS + 100)).await;
    assert!(!is_locked(&backend, &key).await, "a dead lock lives again");
}

/// When `subscribe` is through, the very next release is heard.
pub async fn every_release_right_after_a_subscription_is_heard<H: Harness>(h: &H) {
    let (waiter, holder) = (h.backend().await, h.backend().await);
    for number in 0..30 {
        let key = key(&format!("k{number}"));
        let held = take(&holder, &key, LONG).await;
        let hint = waiter.subscribe(&key).await;
        if !hint.is_live() {
            let reason = crate::Unsupported::because("this backend cannot push; waiters rely on their schedule");
            return skip("every_release_right_after_a_subscription_is_heard", &reason);
        }
        give_back(&holder, &held).await;
        let woken = tokio::time::timeout(Duration::from_secs(10), hint.woken()).await;
        assert!(woken.is_ok(), "release {number}, right after the subscription, was not heard");
    }
}

/// Where the storage's clock decides, five seconds of error change nothing; where clients' clocks do, a part of the tolerance.
pub async fn a_client_with_a_wrong_clock_gets_no_second_lock<H: Harness>(h: &H) {
    let right = h.backend().await;
    let error = match right.capabilities().time_authority {
        TimeAuthority::Server => 5_000,
        TimeAuthority::Client => TOLERANCE_MS / 3,
    };
    for (name, offset) in [("ahead", error), ("behind", -error)] {
        let wrong = match h.backend_with_clock(offset).await {
            Ok(wrong) => wrong,
            Err(reason) => return skip("a_client_with_a_wrong_clock_gets_no_second_lock", &reason),
        };
        let (theirs, ours) = (key(&format!("theirs, {name}")), key(&format!("ours, {name}")));
        let held = take(&wrong, &theirs, ttl(3_000)).await;
        assert_contended(&right, &theirs).await;
        let other = take(&right, &ours, ttl(3_000)).await;
        assert_contended(&wrong, &ours).await;
        give_back(&right, &other).await;
        give_back(&wrong, &held).await;
    }
}

/// An id is made for one acquisition of one key. Asked for a second key, a backend may refuse or grant; never does one call act
/// on two locks.
pub async fn one_call_frees_one_lock_of_an_id<H: Harness>(h: &H) {
    let (backend, keys) = (h.backend().await, [key("first"), key("second")]);
    let lock_id = backend.new_lock_id(&keys[0]);
    attempt_as(&backend, &keys[0], &lock_id, LONG).await.expect("acquire answers").expect("it is free");
    let _refused_or_granted = attempt_as(&backend, &keys[1], &lock_id, LONG).await;
    let count =
        async || usize::from(is_locked(&backend, &keys[0]).await) + usize::from(is_locked(&backend, &keys[1]).await);
    let before = count().await;

    // A backend that finds two locks may also say that it does not know which is meant.
    let freed = backend.release(&lock_id).await.is_ok_and(syncguard_core::ReleaseOutcome::is_released);

    assert_eq!(count().await, before - usize::from(freed), "one release freed another number of locks than it tells");
}
