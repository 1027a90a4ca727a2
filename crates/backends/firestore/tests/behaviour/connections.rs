//! What if the connection is there and dead, or its runtime is gone?

use std::time::Duration;

use super::support::{Fault as ServerFault, Line, Project, key, request, take, ttl};
use syncguard_core::{AcquireOutcome, ErrorCode, LockBackend, LockId, Locker, Lookup};
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Generous: it only ends a test that has failed.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_went_silent_is_replaced_within_the_operation() {
    let line = Line::start(Duration::from_secs(15)).await;
    let (id, _) = take(&line.backend, "k").await;
    line.proxy.silence_existing();

    assert!(line.backend.is_locked(&key("k")).await.unwrap());

    assert_eq!(line.proxy.counts().accepted, 2, "a new connection was made");
    assert!(line.backend.extend(&id, ttl(30_000)).await.unwrap().is_extended());
    assert!(line.backend.release(&id).await.unwrap().is_released());
    assert_eq!(line.proxy.counts().accepted, 2, "and it is used from then on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_timed_out_has_the_next_one_use_a_new_connection() {
    let line = Line::start(Duration::from_secs(2)).await;
    line.backend.is_locked(&key("k")).await.unwrap();
    line.project.faults.next("Commit", ServerFault::Hang);
    let id = LockId::random();

    let error = line.backend.acquire(request(&key("k"), &id, 30_000)).await.unwrap_err();

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
    let before = line.proxy.counts().accepted;
    assert!(matches!(line.insist("k", &id).await, AcquireOutcome::Acquired(_)));
    assert!(line.proxy.counts().accepted > before, "the silent connection was not used again");
    assert!(line.backend.release(&id).await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_kept_alive_outlives_a_silent_connection() {
    let line = Line::start(Duration::from_secs(5)).await;
    let onlooker = line.project.backend().await;
    let locker = Locker::new(line.backend.clone());
    let guard = locker.lock("k").ttl(Duration::from_secs(15)).keep_alive().acquire().await.unwrap();
    let first = onlooker.lookup(Lookup::Key(&key("k"))).await.unwrap().unwrap().expires_at;
    line.proxy.silence_existing();

    let renewed = async {
        loop {
            let info = onlooker.lookup(Lookup::Key(&key("k"))).await.unwrap().unwrap();
            if info.expires_at > first {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(LONG, renewed).await.unwrap();

    guard.check().unwrap();
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_hears_of_releases_again_after_its_stream_went_silent() {
    let line = Line::start(Duration::from_secs(5)).await;
    let holder = line.project.backend().await;
    let (id, _) = take(&holder, "k").await;
    let hint = line.backend.subscribe(&key("k")).await;
    line.proxy.silence_existing();
    let connected = line.proxy.counts().accepted;
    let reconnected = async {
        while line.proxy.counts().accepted == connected {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, reconnected).await.expect("the silence is noticed");

    holder.release(&id).await.unwrap();

    timeout(LONG, hint.woken()).await.unwrap();
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_backend_outlives_the_runtime_that_made_it() {
    let server = runtime();
    let project = server.block_on(Project::start());
    let first = runtime();
    let backend = first.block_on(project.backend());
    let (id, _) = first.block_on(take(&backend, "k"));
    let early = first.block_on(backend.subscribe(&key("k")));
    drop(first);

    runtime().block_on(async {
        assert!(backend.is_locked(&key("k")).await.unwrap());
        assert!(backend.extend(&id, ttl(30_000)).await.unwrap().is_extended());
        let hint = backend.subscribe(&key("k")).await;
        assert!(backend.release(&id).await.unwrap().is_released());
        timeout(LONG, async {
            tokio::select! { () = hint.woken() => {}, () = early.woken() => {} }
        })
        .await
        .unwrap();
        take(&backend, "k").await;
    });
}
