//! Do waiters hear of a release, and does everything work when they do not?

use std::time::Duration;

use crate::support::{attempt, eventually, fresh_prefix, key, take, ttl};
use syncguard_core::retry::Backoff;
use syncguard_core::{LockBackend, Locker, Ttl};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::{Fault, FaultProxy, RedisOptions as Server, RedisServer, redis_cluster_url, redis_url};
use tokio::time::timeout;

/// Far more than anything here takes, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(60);

async fn two_clients(url: &str) -> (RedisBackend, RedisBackend) {
    let options = RedisBuilder::from_url(url).unwrap().prefix(fresh_prefix());
    (options.clone().connect().await.unwrap(), options.connect().await.unwrap())
}

fn subscriptions(server: &RedisServer) -> usize {
    server.try_command(&["PUBSUB", "CHANNELS"]).unwrap().items().len()
}

fn clients(server: &RedisServer) -> usize {
    server
        .command(&["CLIENT", "LIST"])
        .lines()
        .filter(|line| line.contains("lib-name=syncguard") || line.contains(" sub="))
        .count()
}

#[tokio::test]
async fn a_release_in_another_client_wakes_a_waiter() {
    for url in [redis_url(), redis_cluster_url()] {
        let (holder, waiter) = two_clients(&url).await;
        let held = take(&holder, &key("k")).await;
        let hint = waiter.subscribe(&key("k")).await;
        assert!(hint.is_live());

        holder.release(&held.id).await.unwrap();

        timeout(SOON, hint.woken()).await.expect("the release is heard");
        take(&waiter, &key("k")).await;
    }
}

#[tokio::test]
async fn a_release_of_another_key_wakes_nobody() {
    let (holder, waiter) = two_clients(&redis_url()).await;
    let (other, mine) = (take(&holder, &key("other")).await, take(&holder, &key("mine")).await);
    let hint = waiter.subscribe(&key("mine")).await;

    holder.release(&other.id).await.unwrap();
    // Messages of one server arrive in order, so the first that comes must be the second that was sent.
    let sentinel = waiter.subscribe(&key("sentinel")).await;
    let held = take(&holder, &key("sentinel")).await;
    holder.release(&held.id).await.unwrap();
    timeout(SOON, sentinel.woken()).await.unwrap();
    assert!(timeout(Duration::from_millis(50), hint.woken()).await.is_err(), "woken for nothing");

    holder.release(&mine.id).await.unwrap();
    timeout(SOON, hint.woken()).await.unwrap();
}

#[tokio::test]
async fn a_thousand_waiters_share_one_connection_and_leave_no_subscription_behind() {
    let server = RedisServer::start(Server::new());
    let backend = RedisBuilder::from_url(&server.url()).unwrap().connect().await.unwrap();
    let keys: Vec<_> = (0..100).map(|number| key(&format!("k{number}"))).collect();
    let mut hints = Vec::new();
    for round in 0..1000 {
        hints.push(backend.subscribe(&keys[round % keys.len()]).await);
    }

    // For each key the channel of all, and that of this process.
    assert_eq!(subscriptions(&server), 2 * 100);
    assert!(clients(&server) <= 2 + 1 + 1, "{}", server.command(&["CLIENT", "LIST"]));

    drop(hints);
    crate::support::eventually("the unsubscription", async || subscriptions(&server) == 0).await;
}

#[tokio::test]
async fn a_subscription_that_drops_comes_back_and_wakes_everybody_once() {
    let server = RedisServer::start(Server::new());
    let (holder, waiter) = two_clients(&server.url()).await;
    let held = take(&holder, &key("k")).await;
    let hint = waiter.subscribe(&key("k")).await;
    assert_eq!(subscriptions(&server), 2);

    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);

    timeout(SOON, hint.woken()).await.expect("whoever may have missed a release looks for itself");
    crate::support::eventually("the new subscription", async || subscriptions(&server) == 2).await;
    // One hint for the loss, and perhaps one more when the subscription was back; then only the release.
    while timeout(Duration::from_millis(300), hint.woken()).await.is_ok() {}
    holder.release(&held.id).await.unwrap();
    timeout(SOON, hint.woken()).await.expect("the release is heard again");
}

#[tokio::test]
async fn a_restarted_server_is_listened_to_again() {
    let mut server = RedisServer::start(Server::new());
    let (holder, waiter) = two_clients(&server.url()).await;
    let hint = waiter.subscribe(&key("k")).await;

    server.kill_hard();
    server.restart();

    crate::support::eventually("the new subscription", async || subscriptions(&server) == 2).await;
    while timeout(Duration::from_millis(300), hint.woken()).await.is_ok() {}
    let held = loop {
        // The holder's connection died with the server; the next attempt makes a new one.
        if let Ok(Ok(held)) = attempt(&holder, &key("k"), Ttl::DEFAULT).await {
            break held;
        }
    };
    holder.release(&held.id).await.unwrap();
    timeout(SOON, hint.woken()).await.unwrap();
}

#[tokio::test]
async fn a_waiter_whose_subscription_is_confirmed_late_is_woken() {
    let server = RedisServer::start(Server::new());
    let proxy = FaultProxy::start(server.port());
    let holder = RedisBackend::connect(&server.url()).await.unwrap();
    let waiter = RedisBackend::connect(&proxy.url(&server.url())).await.unwrap();
    // The listening connection is there before the network stalls.
    let _warm = waiter.subscribe(&key("warm")).await;
    assert_eq!(subscriptions(&server), 2);
    let held = take(&holder, &key("k")).await;

    proxy.set(Fault::Stall);
    let hint = waiter.subscribe(&key("k")).await;
    assert!(hint.is_live());
    holder.release(&held.id).await.unwrap();
    assert_eq!(subscriptions(&server), 2, "the release was heard, so this test proves nothing");
    proxy.set(Fault::Pass);

    timeout(SOON, hint.woken()).await.expect("the release before the confirmation is not missed");
}

#[tokio::test]
async fn a_silent_listening_connection_is_replaced_and_everybody_is_woken_once() {
    let server = RedisServer::start(Server::new());
    let proxy = FaultProxy::start(server.port());
    let holder = RedisBackend::connect(&server.url()).await.unwrap();
    let waiter = RedisBackend::connect(&proxy.url(&server.url())).await.unwrap();
    let held = take(&holder, &key("k")).await;
    let hint = waiter.subscribe(&key("k")).await;

    proxy.silence_existing();
    holder.release(&held.id).await.unwrap();

    // Nobody told the waiter; the silence itself is noticed.
    timeout(SOON, hint.woken()).await.expect("the silence is noticed");
    let held = take(&holder, &key("k")).await;
    holder.release(&held.id).await.unwrap();
    timeout(SOON, hint.woken()).await.expect("releases are heard again");
}

#[tokio::test]
async fn waiting_costs_no_more_than_a_second_when_messages_cannot_be_had() {
    let server = RedisServer::start(Server::new());
    let proxy = FaultProxy::start(server.port());
    let backend = RedisBackend::connect(&proxy.url(&server.url())).await.unwrap();
    proxy.set(Fault::BlackHole);

    let hint = timeout(Duration::from_secs(5), backend.subscribe(&key("k"))).await.expect("wake is bounded");

    drop(hint);
    assert!(proxy.counts().accepted >= 1);
}

#[tokio::test]
async fn with_waking_off_nothing_is_published_or_subscribed() {
    let server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&format!("{}?wake=off", server.url())).await.unwrap();
    let mut ear = server.client().unwrap();
    ear.command(&["SUBSCRIBE", "syncguard:k"]).unwrap();

    let held = take(&backend, &key("k")).await;
    assert!(!backend.subscribe(&key("k")).await.is_live());
    backend.release(&held.id).await.unwrap();
    server.command(&["PUBLISH", "syncguard:k", "control"]);

    let heard = ear.read_reply().unwrap().items();
    assert_eq!(heard[2].to_string(), "control");
}

#[tokio::test]
async fn contention_tells_when_the_lock_can_be_taken_over() {
    let (holder, waiter) = two_clients(&redis_url()).await;
    attempt(&holder, &key("k"), ttl(5000)).await.unwrap().unwrap();

    let contention = attempt(&waiter, &key("k"), Ttl::DEFAULT).await.unwrap().unwrap_err();

    let free_in = contention.free_in.unwrap();
    assert!((Duration::from_secs(3)..=Duration::from_secs(6)).contains(&free_in), "{free_in:?}");
}

#[test]
fn a_backend_made_in_a_runtime_that_ended_works_and_wakes_in_the_next() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = RedisServer::start(Server::new());
    let first = runtime();
    let (backend, held) = first.block_on(async {
        let backend = RedisBackend::connect(&server.url()).await.unwrap();
        let hint = backend.subscribe(&key("k")).await;
        assert!(hint.is_live());
        let held = take(&backend, &key("k")).await;
        (backend, held)
    });
    drop(first);

    for _ in 0..3 {
        runtime().block_on(async {
            assert!(backend.extend(&held.id, Ttl::DEFAULT).await.unwrap().is_extended());
            let hint = backend.subscribe(&key("other")).await;
            let other = take(&backend, &key("other")).await;
            assert!(backend.release(&other.id).await.unwrap().is_released());
            timeout(SOON, hint.woken()).await.expect("the release is heard");
        });
    }
}

/// How many scripts a server has run.
fn scripts(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    line.and_then(|line| line.split([':', ',']).find_map(|part| part.strip_prefix("calls=")))
        .map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "more time allows more questions")]
async fn who_will_hear_of_the_release_asks_once_a_second_and_others_keep_to_their_schedule() {
    let [told, silent, foreign] = [(); 3].map(|()| RedisServer::start(Server::new()));
    let holder = RedisBackend::connect(&told.url()).await.unwrap();
    let held = take(&holder, &key("k")).await;
    let quiet = RedisBuilder::from_url(&silent.url()).unwrap().wake(false).connect().await.unwrap();
    take(&quiet, &key("k")).await;
    // As other programs write it.
    let value = r#"{"key":"k","lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":9000000000000,"acquiredAtMs":1,"fence":"000000000000001"}"#;
    foreign.command(&["SET", "syncguard:k", value]);
    let started = std::time::Instant::now();
    let mut waiters = Vec::new();
    for server in [&told, &silent, &foreign] {
        let locker = Locker::new(RedisBackend::connect(&server.url()).await.unwrap());
        let request = locker.lock("k").wait_forever().retry_delay(Duration::from_millis(5)).backoff(Backoff::Fixed);
        waiters.push(tokio::spawn(async move { request.acquire().await.unwrap() }));
    }

    eventually("they ask by their schedule", async || scripts(&silent) > 40 && scripts(&foreign) > 40).await;

    let (asked, elapsed) = (scripts(&told), started.elapsed());
    // The holder's own, one that did not wait, one when the subscription was confirmed.
    assert!(asked <= 3 + elapsed.as_secs() + 1, "{asked} questions within {elapsed:?}");
    holder.release(&held.id).await.unwrap();
    let _guard = timeout(SOON, waiters.remove(0)).await.expect("it hears of the release").unwrap();
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
}
