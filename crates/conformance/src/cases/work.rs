//! Does work run under the lock, only under the lock, and never in its way?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::time::{Instant, sleep, timeout};

use syncguard_core::{CancellationToken, ErrorCode, LockBackend, Locker, Lookup, OnLost};

use crate::support::{LONG, faulty, is_locked, key, ms, take};
use crate::{Fault, Harness, Operation};

/// The work sees its own lock, its value comes back, and the lock is free.
pub async fn work_runs_under_its_lock<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));

    let (seen, handle) = locker
        .lock("k")
        .run(async |lock| {
            let info = other.lookup(Lookup::Key(&key("k"))).await.expect("lookup answers").expect("held");
            assert_eq!((info.fence, info.reveal().lock_id), (lock.fence(), lock.lock_id()));
            (info.fence, lock)
        })
        .await
        .expect("the lock is free");

    assert_eq!(seen, handle.fence());
    assert_eq!(handle.check().expect_err("the work is over").code(), ErrorCode::LockLost);
    assert!(!is_locked(&other, &key("k")).await);
}

/// The work's own failure is its own, and the lock is free.
pub async fn the_error_of_work_comes_back_and_the_lock_is_released<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));

    let result = locker.lock("k").run(async |_| Err::<(), _>("the card was declined")).await.expect("the lock is fine");

    assert_eq!(result, Err("the card was declined"));
    assert!(!is_locked(&other, &key("k")).await);
}

/// Nothing that happens at release takes the work's result away; the hook hears of it.
pub async fn a_failed_release_does_not_hide_the_result<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    backend.always(Operation::Release, Fault::Refuse(ErrorCode::AuthFailed));
    let heard = Arc::new(AtomicU32::new(0));
    let hook = heard.clone();
    let request = Locker::new(backend.clone()).lock("k").on_release_error(move |error, _, _| {
        assert_eq!(error.code(), ErrorCode::AuthFailed);
        hook.fetch_add(1, Ordering::SeqCst);
    });

    let result = request.run(async |_| Err::<(), _>("mine")).await.expect("a failed release is no error");

    assert_eq!(result, Err("mine"));
    assert_eq!(heard.load(Ordering::SeqCst), 1);
    assert!(backend.fired(Operation::Release) > 0);
}

/// A hook that panics harms nobody.
pub async fn a_panicking_hook_harms_nothing<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    backend.always(Operation::Release, Fault::Refuse(ErrorCode::AuthFailed));
    let request = Locker::new(backend).lock("k").on_release_error(|_, _, _| panic!("on purpose"));

    assert_eq!(request.run(async |_| 7).await.expect("the result is there"), 7);
}

/// The work panics: the panic goes on, and the lock is given back.
pub async fn work_that_panics_releases<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));

    let running = locker.clone();
    let task = tokio::spawn(async move { running.lock("k").run(async |_| panic!("on purpose")).await });
    assert!(task.await.expect_err("the panic goes on").is_panic());
    locker.drain().await;

    assert!(!is_locked(&other, &key("k")).await);
}

/// The caller drops the whole thing: the work is dropped, and the lock is given back.
pub async fn work_that_is_dropped_releases<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let began = AtomicBool::new(false);

    let run = locker.lock("k").run(async |_| {
        began.store(true, Ordering::SeqCst);
        std::future::pending::<()>().await;
    });
    assert!(timeout(ms(300) + h.slack(), run).await.is_err(), "it was dropped");
    locker.drain().await;

    assert!(began.load(Ordering::SeqCst));
    assert!(!is_locked(&other, &key("k")).await);
}

/// The token ends waiting, not work; the lock is given back all the same.
pub async fn a_cancel_during_the_work_still_releases<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let token = CancellationToken::new();

    let value = locker.lock("k").cancel(token.clone()).run(async |_| {
        token.cancel();
        tokio::task::yield_now().await;
        7
    });

    assert_eq!(value.await.expect("the work is done"), 7);
    assert!(!is_locked(&other, &key("k")).await, "a cancelled token kept the lock from being released");
}

/// Without renewal the work ends with its lease.
pub async fn work_that_outlives_its_lease_is_stopped<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let finished = AtomicBool::new(false);
    let started = Instant::now();

    let request = locker.lock("k").ttl(ms(500));
    let result = request.run(async |_| {
        sleep(ms(20_000)).await;
        finished.store(true, Ordering::SeqCst);
    });
    let error = result.await.expect_err("the lease ended first");

    assert_eq!(error.code(), ErrorCode::LockLost);
    assert!(started.elapsed() <= ms(500) + h.slack(), "stopped after {:?}", started.elapsed());
    assert!(!finished.load(Ordering::SeqCst));
    locker.drain().await;
    assert!(!is_locked(&other, &key("k")).await, "the release was attempted");
}

/// Work whose resource checks the fence may choose to go on.
pub async fn work_may_choose_to_go_on_when_its_lock_is_lost<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);

    let request = locker.lock("k").ttl(ms(300)).on_lost(OnLost::Continue);
    let held = request.run(async |lock| {
        sleep(ms(700)).await;
        lock.is_held()
    });

    assert!(!held.await.expect("the work was not stopped"), "it knows that the lock is lost");
}

/// With renewal the work may take longer than a lease.
pub async fn work_that_is_kept_alive_outlives_its_lease<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);

    let request = locker.lock("k").ttl(ms(900)).keep_alive();
    let held = request.run(async |lock| {
        sleep(ms(2_200)).await;
        lock.is_held()
    });

    assert!(held.await.expect("the lock was renewed"));
}

/// The server is gone: the work is stopped by the local clock, before storage frees the lock.
pub async fn work_is_stopped_before_the_lease_ends_when_the_server_is_gone<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let request = Locker::new(backend.clone()).lock("k").ttl(ms(900)).keep_alive();
    let dropped_while_locked = Arc::new(AtomicBool::new(false));
    let stopped = Stopped(dropped_while_locked.clone());

    let result = timeout(
        ms(7_000) + h.slack(),
        request.run(async |_| {
            let _stopped = stopped;
            backend.everything(Fault::Hang);
            std::future::pending::<()>().await;
        }),
    );
    let watch = async {
        while !dropped_while_locked.load(Ordering::SeqCst) {
            sleep(ms(5)).await;
        }
        is_locked(&other, &key("k")).await
    };
    let (result, still_locked) = tokio::join!(result, watch);

    assert_eq!(result.expect("it ends").expect_err("the lock is lost").code(), ErrorCode::LockLost);
    assert!(still_locked, "storage freed the lock before the work was stopped");
}

/// Tells when the work was dropped.
struct Stopped(Arc<AtomicBool>);

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// No lock, no work.
pub async fn work_never_begins_without_the_lock<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    take(&other, &key("held"), LONG).await;
    let locker = Locker::new(backend.clone());
    let mut began = false;

    let contended = locker.lock("held").timeout(ms(150)).run(async |_| began = true).await;
    assert_eq!(contended.expect_err("held").code(), ErrorCode::AcquisitionTimeout);
    backend.always(Operation::Acquire, Fault::Refuse(ErrorCode::AuthFailed));
    let refused = locker.lock("free").run(async |_| began = true).await;
    assert_eq!(refused.expect_err("refused").code(), ErrorCode::AuthFailed);

    assert!(!began);
}
