//! The blocking API: locks for threads.
#![cfg(feature = "blocking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use syncguard::blocking::{Locker, connect};
use syncguard::{ErrorCode, LossReason, MemoryBackend};

#[test]
fn a_lock_excludes_threads_and_is_free_when_its_guard_is_dropped() {
    let locker = connect("memory:").unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (locker, inside) = (locker.clone(), inside.clone());
            std::thread::spawn(move || {
                for _ in 0..10 {
                    let guard = locker.lock("k").wait_forever().acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two threads hold one lock");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(!locker.is_locked("k").unwrap(), "a drop has released when it returns");
}

#[test]
fn a_kept_alive_lock_is_renewed_while_its_thread_computes() {
    let locker = connect("memory:").unwrap();
    let guard = locker.lock("k").ttl(Duration::from_secs(3)).keep_alive().acquire().unwrap();

    // Longer than the lease, without a single await.
    std::thread::sleep(Duration::from_secs(5));

    guard.check().unwrap();
    assert!(guard.release().unwrap().is_released());
    assert_eq!(guard.lost().unwrap(), LossReason::Released);
}

#[test]
fn run_gives_the_value_and_a_loss_is_an_error_or_a_report() {
    let locker = connect("memory:").unwrap();
    assert_eq!(locker.lock("k").run(|lock| lock.fence().get()).unwrap(), 1);

    let steal = |lock: &syncguard::LockHandle| {
        assert!(locker.release_id(lock.lock_id()).unwrap().is_released());
        // The holder learns of it by its next renewal.
        while lock.is_held() {
            std::thread::sleep(Duration::from_millis(10));
        }
        "receipt"
    };
    let request = || locker.lock("k").ttl(Duration::from_secs(1)).keep_alive();
    assert_eq!(request().run(steal).unwrap_err().code(), ErrorCode::LockLost);
    let report = request().run_and_report(steal).unwrap();
    assert_eq!((report.value, report.loss), ("receipt", Some(LossReason::Absent)));
}

#[test]
fn a_held_lock_is_none_at_once_and_a_timeout_after_the_budget() {
    let locker = connect("memory:").unwrap();
    let _held = locker.lock("k").acquire().unwrap();

    assert!(locker.lock("k").try_acquire().unwrap().is_none());
    let error = locker.lock("k").timeout(Duration::from_millis(200)).acquire().unwrap_err();

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(locker.inspect("k").unwrap().is_some());
}

#[tokio::test]
async fn inside_async_code_it_says_what_to_use_instead() {
    let errors = [connect("memory:").unwrap_err(), Locker::new(MemoryBackend::new()).lock("k").acquire().unwrap_err()];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().contains("async"), "{error}");
    }
}

#[test]
fn several_locks_elections_and_a_token_work_without_async_code_too() {
    let locker = connect("memory:").unwrap();
    let options = syncguard::LockOptions::new().ttl(Duration::from_secs(60)).label("who");

    let all = locker.lock_all(["b", "a"]).options(options.clone()).acquire().unwrap();
    assert!(all.fences().len() == 2 && all.remaining() > Duration::from_secs(50));
    assert!(locker.lock_all(["a", "c"]).try_acquire().unwrap().is_none());
    drop(all);
    assert_eq!(locker.lock_all(["a", "b"]).run(|held| held.guards().len()).unwrap(), 2);
    let ours = syncguard::Locker::builder(MemoryBackend::new()).defaults(options.clone()).build();
    assert!(Locker::from(ours).lock("k").acquire().unwrap().remaining() > Duration::from_secs(50));
    let report = locker.lock_all(["a", "b"]).run_and_report(|held| held.release().is_ok()).unwrap();
    assert!(report.value && report.loss == Some(syncguard::LossReason::Released));

    let leader = locker.elect("leader").options(options).campaign().unwrap();
    assert_eq!(leader.term().get(), 1);
    assert!(locker.elect("leader").try_campaign().unwrap().is_none());
    let token = syncguard::CancellationToken::new();
    let wait = std::thread::spawn({
        let (locker, token) = (locker.clone(), token.clone());
        move || locker.elect("leader").cancel(token).campaign().map(drop)
    });
    token.cancel();
    assert_eq!(wait.join().unwrap().unwrap_err().code(), ErrorCode::Aborted);
}
