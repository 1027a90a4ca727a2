//! Does a waiter of the same process get the lock without waiting to hear of its release, and does nobody starve by that?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use syncguard_core::retry::Backoff;
use syncguard_core::{LockBackend, LockId, Locker};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{redis_cluster_url, redis_url};
use tokio::time::timeout;

use crate::line::{Lock, SOON, take_until, try_in_vain};
use crate::support::{Held, key, ttl};

/// Takes the lock, whose release may go to a waiter of the same process at once.
async fn take(backend: &RedisBackend) -> Held {
    take_until(backend, |id: &LockId| !id.as_str().as_bytes()[0].is_multiple_of(8)).await.expect("the lock is free")
}

#[tokio::test]
async fn a_waiter_of_the_same_process_is_woken_with_the_release_and_others_stand_back() {
    for url in [redis_url(), redis_cluster_url()] {
        let lock = Lock::at(url);
        let client = lock.client().await;
        let hint = client.subscribe(&key("k")).await;
        let held = take(&client).await;
        try_in_vain(&client).await;
        let line = lock.line();
        assert_eq!(line.len(), 1, "its other task waits");
        let mut older = lock.older_listener().await;

        assert!(client.release(&held.id).await.unwrap().is_released());

        timeout(SOON, hint.woken()).await.expect("it is woken");
        let said = older.hear().await;
        assert!(said.len() == 8 && said != line[0], "a name that nobody has, from which everybody stands back: {said}");
        assert_eq!(lock.line(), line, "nobody was taken out of the line");
    }
}

#[tokio::test]
async fn the_ordinary_way_is_gone_when_others_wait_when_nobody_knows_and_now_and_then() {
    let lock = Lock::at(redis_url());
    let (client, other) = (lock.client().await, lock.client().await);
    let mut older = lock.older_listener().await;

    // It did not have to wait, so nobody has looked who does.
    let held = take(&client).await;
    let _hint = client.subscribe(&key("k")).await;
    client.release(&held.id).await.unwrap();
    assert_eq!(older.hear().await, "");

    // Somebody else stands in line.
    let held = take(&client).await;
    let other_hint = other.subscribe(&key("k")).await;
    try_in_vain(&other).await;
    let line = lock.line();
    client.release(&held.id).await.unwrap();
    let said = older.hear().await;
    assert!(said.len() == 8 && said != line[0], "who came after the lock was got is passed over once");
    let held = take(&client).await;
    client.release(&held.id).await.unwrap();
    assert_eq!(older.hear().await, line[0]);
    drop(other_hint);

    // One id in eight says so.
    let ordinary = take_until(&client, |id| id.as_str().as_bytes()[0] % 8 == 0).await.unwrap();
    client.release(&ordinary.id).await.unwrap();
    assert_eq!(older.hear().await, "");
}

#[tokio::test]
async fn waiters_on_one_thread_pass_the_lock_on_and_none_waits_in_vain() {
    pass_it_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_on_several_threads_pass_the_lock_on_and_none_waits_in_vain() {
    pass_it_on().await;
}

async fn pass_it_on() {
    for url in [redis_url(), redis_cluster_url()] {
        let lock = Lock::at(url);
        let locker = Locker::new(lock.client().await);
        let turns = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (locker, turns) = (locker.clone(), turns.clone());
                tokio::spawn(async move {
                    for _ in 0..10 {
                        // Nobody would get it by asking again within the time that the test has.
                        let request = locker.lock("k").ttl(ttl(600_000)).wait_forever();
                        let request = request.retry_delay(Duration::from_secs(600)).backoff(Backoff::Fixed);
                        let guard = request.max_delay(Duration::from_secs(600)).acquire().await.unwrap();
                        turns.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        guard.release().await.unwrap();
                    }
                })
            })
            .collect();

        for task in tasks {
            timeout(SOON, task).await.expect("nobody waits in vain").unwrap();
        }

        assert_eq!(turns.load(Ordering::Relaxed), 80);
    }
}

#[tokio::test]
async fn a_process_in_line_is_not_passed_over_again_and_again() {
    let lock = Lock::at(redis_url());
    let (many, single) = (Locker::new(lock.client().await), Locker::new(lock.client().await));
    let (stop, holds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (many, stop, holds) = (many.clone(), stop.clone(), holds.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = many.lock("k").ttl(ttl(600_000)).wait_forever().acquire().await.unwrap();
                holds.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(2)).await;
                guard.release().await.unwrap();
            }
        }));
    }

    let mut passed_over = 0;
    for _ in 0..20 {
        let before = holds.load(Ordering::Relaxed);
        let guard = single.lock("k").ttl(ttl(600_000)).wait_forever().acquire().await.unwrap();
        passed_over += holds.load(Ordering::Relaxed) - before;
        guard.release().await.unwrap();
    }

    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        timeout(SOON, task).await.expect("nobody waits in vain").unwrap();
    }
    assert!(passed_over <= 100, "{passed_over} holds of another process within 20 waits");
}
