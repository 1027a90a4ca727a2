//! The client on the memory backend: budgets, guards, renewal, loss. Time is passed, not slept.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use syncguard_core::retry::{Backoff, Jitter, RetryPolicy};
use syncguard_core::{
    CancellationToken, ErrorCode, ExtendOutcome, Locker, LossReason, MemoryBackend, OnLost, ReleaseOutcome,
};
use tokio::time::{Instant, advance, sleep};

fn locker() -> Locker {
    Locker::new(MemoryBackend::new())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_default_policy_is_the_specified_one_as_a_whole() {
    let policy = RetryPolicy::default();
    assert_eq!((policy.max_retries, policy.timeout), (Some(10), Some(5 * SECOND)));
    assert_eq!((policy.retry_delay, policy.max_delay), (Duration::from_millis(100), None));
    assert_eq!((policy.backoff, policy.jitter), (Backoff::Exponential, Jitter::Equal));
}

#[tokio::test(start_paused = true)]
async fn a_run_can_be_spawned_on_any_thread() {
    let locker = locker();

    let work = async move { locker.lock("k").run(async |lock| lock.fence().get()).await };

    assert_eq!(tokio::spawn(work).await.unwrap().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_can_be_taken_at_once() {
    let locker = locker();
    let first = locker.lock("k").acquire().await.unwrap();

    assert_eq!(first.release().await.unwrap(), ReleaseOutcome::Released);

    let second = locker.lock("k").try_acquire().await.unwrap().unwrap();
    assert!(second.fence() > first.fence());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_release_and_not_by_its_schedule() {
    let locker = locker();
    let first = locker.lock("k").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locker = locker.clone();
        async move {
            let guard = locker.lock("k").retry_delay(SECOND * 3).acquire().await.unwrap();
            (Instant::now(), guard)
        }
    });
    sleep(Duration::from_millis(100)).await;

    let released = Instant::now();
    first.release().await.unwrap();

    let (acquired, _guard) = waiting.await.unwrap();
    assert!(acquired - released < Duration::from_millis(5), "{:?}", acquired - released);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_takes_over_from_a_dead_holder_when_its_lease_is_over() {
    let locker = locker();
    let dead = locker.lock("k").ttl(SECOND).acquire().await.unwrap();
    let died = Instant::now();
    dead.leak();

    let _guard = locker.lock("k").retry_delay(SECOND * 60).timeout(SECOND * 120).acquire().await.unwrap();

    let waited = Instant::now() - died;
    assert!(waited >= SECOND * 2 && waited < SECOND * 2 + Duration::from_millis(50), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_is_made_at_the_wall_and_wins_a_lock_freed_before_it() {
    let locker = locker();
    let first = locker.lock("k").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locker = locker.clone();
        async move {
            locker
                .lock("k")
                .retry_delay(SECOND * 4)
                .timeout(SECOND * 5)
                .acquire()
                .await
                .map(syncguard_core::Guard::leak)
        }
    });
    sleep(Duration::from_millis(4_700)).await;

    first.release().await.unwrap();

    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn contention_for_the_whole_budget_is_an_acquisition_timeout_at_the_wall() {
    let locker = locker();
    let _held = locker.lock("k").acquire().await.unwrap();
    let started = Instant::now();

    let error = locker.lock("k").timeout(SECOND * 2).acquire().await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert_eq!(started.elapsed().as_millis(), 2000);
    assert!(!error.to_string().contains("\"k\""));
    assert_eq!(error.key().unwrap().as_str(), "k");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_returns_at_once() {
    let locker = locker();
    let _held = locker.lock("k").acquire().await.unwrap();
    let token = CancellationToken::new();
    let waiting = tokio::spawn({
        let (locker, token) = (locker.clone(), token.clone());
        async move {
            locker.lock("k").retry_delay(SECOND * 4).cancel(token).acquire().await.map(syncguard_core::Guard::leak)
        }
    });
    sleep(Duration::from_millis(100)).await;
    let cancelled = Instant::now();

    token.cancel();

    assert_eq!(waiting.await.unwrap().unwrap_err().code(), ErrorCode::Aborted);
    assert!(cancelled.elapsed() < Duration::from_millis(5));
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_lease_is_stopped_and_reported() {
    let locker = locker();
    let finished = Arc::new(AtomicUsize::new(0));
    let witness = finished.clone();
    let started = Instant::now();

    let result = locker
        .lock("k")
        .ttl(SECOND)
        .run(async |_| {
            sleep(SECOND * 10).await;
            witness.fetch_add(1, Ordering::SeqCst);
        })
        .await;

    assert_eq!(result.unwrap_err().code(), ErrorCode::LockLost);
    assert_eq!(finished.load(Ordering::SeqCst), 0);
    assert!(started.elapsed() <= SECOND, "stopped before the lease ends");
}

#[tokio::test(start_paused = true)]
async fn kept_alive_work_runs_for_many_leases_and_releases() {
    let locker = locker();

    let fence = locker
        .lock("k")
        .ttl(SECOND)
        .keep_alive()
        .run(async |lock| {
            sleep(SECOND * 60).await;
            lock.check().map(|()| lock.fence().get())
        })
        .await;

    assert_eq!(fence.unwrap().unwrap(), 1);
    assert!(!locker.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn on_lost_continue_lets_the_work_finish() {
    let locker = locker();

    let lost = locker
        .lock("k")
        .ttl(SECOND)
        .on_lost(OnLost::Continue)
        .run(async |lock| {
            sleep(SECOND * 3).await;
            lock.loss()
        })
        .await;

    assert_eq!(lost.unwrap(), Some(LossReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_renewal() {
    let locker = locker();
    let started = Instant::now();
    let guard = locker.lock("k").ttl(SECOND).keep_alive().max_hold(SECOND * 5).acquire().await.unwrap();

    let reason = guard.lost().await;

    assert_eq!(reason, LossReason::MaxHold);
    assert!(started.elapsed() > SECOND * 4 && started.elapsed() <= SECOND * 5, "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stolen_lock_is_lost_at_the_next_renewal() {
    let backend = MemoryBackend::new();
    let locker = Locker::new(backend.clone());
    let guard = locker.lock("k").ttl(SECOND * 3).keep_alive().acquire().await.unwrap();

    locker.release_id(guard.lock_id()).await.unwrap();
    let reason = guard.lost().await;

    assert_eq!(reason, LossReason::Absent);
    assert_eq!(guard.extend(SECOND).await.unwrap(), ExtendOutcome::Absent(None));
    assert_eq!(guard.check().unwrap_err().code(), ErrorCode::LockLost);
}

#[tokio::test(start_paused = true)]
async fn loss_is_seen_by_the_clock_even_if_no_task_ran() {
    let locker = locker();
    let guard = locker.lock("k").ttl(SECOND).acquire().await.unwrap();

    advance(Duration::from_millis(991)).await;

    assert!(guard.check().is_err());
    assert_eq!(guard.remaining(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn extend_replaces_and_may_shorten() {
    let locker = locker();
    let guard = locker.lock("k").ttl(SECOND * 30).acquire().await.unwrap();

    assert!(guard.extend(SECOND).await.unwrap().is_extended());

    assert!(guard.remaining() <= SECOND);
    advance(SECOND).await;
    assert_eq!(guard.loss(), Some(LossReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn releasing_twice_is_absent_and_dropping_releases() {
    let locker = locker();
    let guard = locker.lock("k").acquire().await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(guard.release().await.unwrap(), ReleaseOutcome::Absent(None));

    drop(locker.lock("k").acquire().await.unwrap());
    locker.drain().await;

    assert!(!locker.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn bad_settings_are_refused_before_any_io() {
    let backend = MemoryBackend::new();
    let locker = Locker::new(backend.clone());
    let refused = [
        locker.lock("").acquire().await,
        locker.lock("k").ttl(Duration::ZERO).acquire().await,
        locker.lock("k").ttl(Duration::MAX).acquire().await,
        locker.lock("k").renew_every(SECOND * 40).acquire().await,
        locker.lock("k").renew_every(Duration::ZERO).acquire().await,
        locker.lock("k").label("").acquire().await,
        locker.lock("k").unlimited_retries().retry_delay(Duration::ZERO).acquire().await,
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
    assert_eq!(backend.counter(&syncguard_core::Key::new("k").unwrap()), None, "no fence was consumed");
}

#[tokio::test(start_paused = true)]
async fn several_locks_are_taken_in_order_all_or_nothing() {
    let locker = locker();
    let blocker = locker.lock("b").acquire().await.unwrap();

    let error = locker.lock_all(["c", "b", "a", "a"]).timeout(SECOND).acquire().await.unwrap_err();
    locker.drain().await;

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(!locker.is_locked("a").await.unwrap() && !locker.is_locked("c").await.unwrap());
    blocker.release().await.unwrap();
    let all = locker.lock_all(["c", "b", "a"]).acquire().await.unwrap();
    let keys: Vec<_> = all.guards().iter().map(|guard| guard.key().as_str().to_owned()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    locker.release_id(all.guards()[1].lock_id()).await.unwrap();
    assert_eq!(all.lost().await, LossReason::Absent, "the loss of one is the loss of all");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_vanishes_is_followed_by_one_with_a_higher_term() {
    let locker = locker();
    let first = locker.elect("leader").ttl(SECOND).campaign().await.unwrap();
    let term = first.term();
    locker.release_id(first.lock_id()).await.unwrap();

    let second = locker.elect("leader").ttl(SECOND).campaign().await.unwrap();

    assert!(second.term() > term);
    assert_eq!(locker.elect("leader").observe().await.unwrap().unwrap().fence, second.term());
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_wait_gets_none_of_several_and_no_second_leadership() {
    let locker = locker();
    let leader = locker.elect("c").try_campaign().await.unwrap().unwrap();
    assert!(locker.elect("c").try_campaign().await.unwrap().is_none());

    assert!(locker.lock_all(["a", "b", "c"]).try_acquire().await.unwrap().is_none());
    assert!(!locker.is_locked("a").await.unwrap(), "those that were free are released again");

    leader.resign().await.unwrap();
    let all = locker.lock_all(["a", "b", "c"]).try_acquire().await.unwrap().unwrap();
    assert_eq!(all.fences().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_another_process_is_adopted_by_its_id_and_kept() {
    let (backend, here) = (MemoryBackend::new(), 10 * SECOND);
    let (there, fence) = {
        let guard = Locker::new(backend.clone()).lock("k").ttl(here).acquire().await.unwrap();
        let fence = guard.fence();
        (guard.leak(), fence)
    };
    let locker = Locker::new(backend);

    let guard = locker.adopt(&there, here).await.unwrap().unwrap();
    sleep(10 * here).await;

    guard.check().unwrap();
    assert_eq!((guard.fence(), guard.key().as_str()), (fence, "k"));
    assert!(guard.release().await.unwrap().is_released());
    assert!(locker.adopt(&there, here).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_leader_leads_again_after_losing() {
    let locker = locker();
    let terms = std::sync::Mutex::new(Vec::new());

    let done = locker
        .elect("leader")
        .ttl(SECOND)
        .lead(async |lock| {
            terms.lock().unwrap().push(lock.fence().get());
            if lock.fence().get() == 3 {
                return "done";
            }
            locker.release_id(lock.lock_id()).await.unwrap();
            std::future::pending().await
        })
        .await;

    assert_eq!(done.unwrap(), "done");
    assert_eq!(*terms.lock().unwrap(), [1, 2, 3]);
}
