//! What becomes of a call when its reply is lost, its connection cut or its server gone?

use std::time::Duration;

use crate::support::{attempt, eventually, key, take, ttl};
use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockError, Locker, Lookup, Ttl};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{Fault, FaultProxy, RedisOptions as Server, RedisServer};

/// A client behind a proxy, and one that is not.
async fn behind_proxy(server: &RedisServer, query: &str) -> (FaultProxy, RedisBackend, RedisBackend) {
    let proxy = FaultProxy::start(server.port());
    let far = RedisBackend::connect(&format!("{}{query}", proxy.url(&server.url()))).await.unwrap();
    let near = RedisBackend::connect(&server.url()).await.unwrap();
    // The server knows the scripts: the reply that gets lost is the one that counts, not NOSCRIPT.
    let held = take(&near, &key("warm")).await;
    let _ = near.extend(&held.id, Ttl::DEFAULT).await.unwrap();
    near.release(&held.id).await.unwrap();
    (proxy, far, near)
}

#[tokio::test]
async fn a_lost_reply_is_ambiguous_and_the_same_id_learns_the_truth() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, near) = behind_proxy(&server, "?timeout=300ms&connections=1").await;
    let k = key("k");
    let id = far.new_lock_id(&k);
    let request = AcquireRequest::new(&k, &id, ttl(60_000));

    proxy.set(Fault::DropReplies);
    let error = far.acquire(request).await.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
    assert!(proxy.counts().dropped > 0);
    let stored = near.lookup(Lookup::Key(&k)).await.unwrap().expect("the server had acted");

    proxy.set(Fault::Pass);
    let AcquireOutcome::Acquired(lease) = far.acquire(request).await.unwrap() else { panic!("the lock is ours") };
    assert_eq!((lease.fence, lease.expires_at), (stored.fence, stored.expires_at));

    // Extend and release: at most one effect, and the truth afterwards.
    proxy.set(Fault::DropReplies);
    assert!(far.extend(&id, ttl(120_000)).await.unwrap_err().is_ambiguous());
    proxy.set(Fault::Pass);
    assert!(near.lookup(Lookup::Key(&k)).await.unwrap().unwrap().expires_at > stored.expires_at);
    // The silent connection was given up; without a new one the release would not even leave.
    assert!(far.is_locked(&k).await.unwrap());
    proxy.set(Fault::DropReplies);
    assert!(far.release(&id).await.unwrap_err().is_ambiguous());
    proxy.set(Fault::Pass);
    assert!(!near.is_locked(&k).await.unwrap());
    assert!(!far.release(&id).await.unwrap().is_released());
}

#[tokio::test]
async fn a_connection_cut_inside_a_reply_leaves_no_orphan_and_the_next_caller_its_own_reply() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, near) = behind_proxy(&server, "?timeout=1s&connections=1").await;
    // The whole reply is *2, an integer and an integer: about 25 bytes.
    for bytes in [0, 1, 3, 10, 20] {
        let k = key(&format!("cut{bytes}"));
        let id = far.new_lock_id(&k);
        let request = AcquireRequest::new(&k, &id, ttl(60_000));
        proxy.cut_once(bytes);
        let error = far.acquire(request).await.unwrap_err();
        assert!(error.is_transient() && error.is_ambiguous(), "{bytes}: {error:?}");
        let AcquireOutcome::Acquired(lease) = far.acquire(request).await.unwrap() else { panic!("the lock is ours") };
        assert_eq!(lease.fence.get(), 1, "a second lock was made");
        assert!(far.release(&id).await.unwrap().is_released());
        assert!(!near.is_locked(&k).await.unwrap());
    }
    assert!(proxy.counts().faults >= 5);
}

#[tokio::test]
async fn a_server_that_went_away_is_told_at_once_and_found_again() {
    let mut server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    take(&backend, &key("before")).await;

    server.kill_hard();
    eventually("the refusal", async || {
        let error = attempt(&backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();
        // The first calls may still meet the dying connections; then nothing is sent any more.
        error.code() == ErrorCode::ServiceUnavailable && !error.is_ambiguous()
    })
    .await;
    let error = attempt(&backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{}", server.port())), "{error}");

    server.restart();
    take(&backend, &key("k")).await;
}

#[tokio::test]
async fn a_silent_server_costs_each_caller_one_timeout_and_not_a_queue_of_them() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, _) = behind_proxy(&server, "?timeout=400ms&connect_timeout=400ms").await;
    proxy.set(Fault::BlackHole);

    let k = key("k");
    let calls = (0..50).map(|_| far.is_locked(&k));
    let all = tokio::time::timeout(Duration::from_secs(3), futures_util::future::join_all(calls)).await;

    let all = all.expect("fifty callers wait at the same time");
    assert!(all.iter().all(|result| result.as_ref().is_err_and(LockError::is_transient)));
    // The silent connections were given up: once the network is back, the next call succeeds.
    proxy.set(Fault::Pass);
    eventually("the recovery", async || far.is_locked(&k).await.is_ok()).await;
}

#[tokio::test]
async fn one_silence_gives_up_every_connection_also_when_the_caller_did_not_wait_for_it() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, _) = behind_proxy(&server, "?timeout=5s&connections=4").await;
    let k = key("k");
    for _ in 0..8 {
        far.is_locked(&k).await.unwrap();
    }
    let before = proxy.counts().accepted;
    proxy.silence_existing();

    // As a renewal does: the caller's own bound ends before the backend's.
    let cut = tokio::time::timeout(Duration::from_secs(2), far.is_locked(&k)).await;
    assert!(cut.is_err(), "the connection was not silent, so this test proves nothing");

    for _ in 0..8 {
        far.is_locked(&k).await.expect("every connection after the silence is a new one");
    }
    assert!(proxy.counts().accepted > before);
}

#[tokio::test]
async fn a_dropped_call_leaves_the_connection_in_step() {
    let server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&format!("{}?connections=1", server.url())).await.unwrap();
    let (a, b) = (key("a"), key("b"));
    take(&backend, &a).await;
    for round in 0..200 {
        let dropped = backend.is_locked(&a);
        let _ = tokio::time::timeout(Duration::from_micros(round), dropped).await;
        assert!(!backend.is_locked(&b).await.unwrap(), "the reply of the dropped call was taken");
    }
}

#[test]
fn a_lock_is_renewed_while_its_runtime_and_with_it_every_connection_stands_still() {
    let server = RedisServer::start(Server::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(async {
        let locker = Locker::new(RedisBackend::connect(&server.url()).await.unwrap());
        locker.lock("k").ttl(Duration::from_secs(12)).keep_alive().acquire().await.unwrap()
    });
    let granted = guard.expires_at();

    // The caller computes. Nobody runs the runtime, so nobody reads what the server answers on its connections.
    let renewed = (0..1_200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        guard.check().unwrap();
        guard.expires_at() > granted
    });

    assert!(renewed, "not renewed within a minute, and not lost either");
    assert_ne!(server.command(&["EXISTS", "syncguard:k"]), "0");
    assert!(runtime.block_on(guard.release()).unwrap().is_released());
}
