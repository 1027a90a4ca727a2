//! Are waiters woken, and is a release that nobody waits for left alone?

use std::time::Duration;

use crate::support::{PATIENCE, Tables, eventually, key, sql, try_acquire};
use syncguard_core::{LockBackend, Locker};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{Fault, FaultProxy, PostgresOptions, PostgresServer, pgbouncer_url, postgres_url};
use tokio::time::timeout;

/// Far more than a hint takes. Nobody here follows a schedule of its own: without a hint nothing happens.
const SOON: Duration = PATIENCE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_a_waiter_of_another_process() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let (holder, waiter) = (tables.at(&url).connect().await.unwrap(), tables.at(&url).connect().await.unwrap());
    let (id, _) = try_acquire(&holder, "k", 60_000).await.unwrap();
    let hint = waiter.subscribe(&key("k")).await;
    assert!(hint.is_live());

    assert!(holder.release(&id).await.unwrap().is_released());

    timeout(SOON, hint.woken()).await.expect("the release wakes the waiter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_another_key_or_table_wakes_nobody() {
    let (url, tables, elsewhere) = (postgres_url(), Tables::fresh(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let other = elsewhere.at(&url).connect().await.unwrap();
    let hint = backend.subscribe(&key("k")).await;

    for (backend, name) in [(&backend, "other"), (&other, "k")] {
        let (id, _) = try_acquire(backend, name, 60_000).await.unwrap();
        assert!(backend.release(&id).await.unwrap().is_released());
    }

    assert!(timeout(Duration::from_millis(300), hint.woken()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_release_that_somebody_waits_for_notifies() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let oid =
        sql(&url).await.query_one("SELECT to_regclass($1)::oid", &[&tables.locks]).await.unwrap().get::<_, u32>(0);
    let (heard, mut notifications) = tokio::sync::mpsc::unbounded_channel();
    let (client, mut connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                let _ = heard.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN syncguard_wake_{oid}")).await.unwrap();
    let release = async || {
        let (id, _) = try_acquire(&backend, "k", 60_000).await.unwrap();
        assert!(backend.release(&id).await.unwrap().is_released());
        // Whatever was notified before has arrived by now.
        client.batch_execute("SELECT 1").await.unwrap();
    };

    release().await;
    assert!(notifications.try_recv().is_err(), "nobody waits");
    let hint = backend.subscribe(&key("k")).await;
    release().await;
    // The payload is a pseudonym: every role of the database may listen.
    assert_eq!(timeout(SOON, notifications.recv()).await.unwrap().unwrap(), key("k").hash().to_string());
    drop(hint);
    let quiet = async || {
        while notifications.try_recv().is_ok() {}
        release().await;
        notifications.try_recv().is_err()
    };
    assert!(eventually(SOON, quiet).await, "the last waiter has left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_again_after_the_listening_connection_died() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let (holder, waiter) = (tables.at(&url).connect().await.unwrap(), tables.at(&url).connect().await.unwrap());
    let (id, _) = try_acquire(&holder, "k", 60_000).await.unwrap();
    let hint = waiter.subscribe(&key("k")).await;
    let peek = sql(&url).await;
    let oid = peek.query_one("SELECT to_regclass($1)::oid::text", &[&tables.locks]).await.unwrap().get::<_, String>(0);

    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()";
    let killed = async || peek.query_one(kill, &[&format!("syncguard_wake_{oid}")]).await.unwrap().get::<_, i64>(0) > 0;
    // Its last statement is the registration once that is through; the lock it holds tells it better.
    let holders = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND classid = 1397184331 \
                   AND objid = ((hashtext($1)::bigint + 4294967296) % 4294967296)::oid AND mode = 'ShareLock'";
    let name = format!("{oid}:k");
    let ended: i64 = peek.query_one(holders, &[&name]).await.unwrap().get(0);
    assert!(ended > 0 || killed().await, "the listener holds the waited key's lock");

    // The reconnect itself is a hint, because a release may have been missed.
    timeout(SOON, hint.woken()).await.expect("a hint after the reconnect");
    assert!(holder.release(&id).await.unwrap().is_released());
    timeout(SOON, hint.woken()).await.expect("a hint over the new connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_waiters_look_again_unless_a_direct_url_is_given() {
    let (pooled, direct, tables) = (pgbouncer_url(), postgres_url(), Tables::fresh());
    let waiter = tables.at(&pooled).connect().await.unwrap();
    assert!(!waiter.subscribe(&key("k")).await.is_live());

    // They still get the lock: later, by their own schedule.
    let (id, _) = try_acquire(&waiter, "k", 60_000).await.unwrap();
    let locker = Locker::new(tables.at(&pooled).connect().await.unwrap());
    let waiting =
        tokio::spawn(async move { locker.lock("k").timeout(Duration::from_secs(10)).acquire().await.is_ok() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(waiter.release(&id).await.unwrap().is_released());
    assert!(waiting.await.unwrap());

    let listening = tables.at(&pooled).wake_url(direct).connect().await.unwrap();
    let hint = listening.subscribe(&key("other")).await;
    assert!(hint.is_live());
    let (id, _) = try_acquire(&waiter, "other", 60_000).await.unwrap();
    assert!(waiter.release(&id).await.unwrap().is_released());
    timeout(SOON, hint.woken()).await.expect("a release through the pooler wakes a direct listener");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_keeps_one_listener_and_sleeping_waiters_hold_no_connection() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let app = format!("app_{}", tables.locks);
    let builder = tables.at(&format!("{url}?application_name={app}")).pool_size(4);
    let backend = builder.connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 60_000).await.unwrap();
    let locker = Locker::new(backend.clone());
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let locker = locker.clone();
        waiting.spawn(async move {
            let guard = locker.lock("k").timeout(Duration::from_secs(30)).unlimited_retries().acquire().await.unwrap();
            guard.release().await.unwrap()
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let peek = sql(&url).await;
    let count =
        "SELECT count(*), count(*) FILTER (WHERE state <> 'idle') FROM pg_stat_activity WHERE application_name = $1";
    let row = peek.query_one(count, &[&app]).await.unwrap();
    let connections: i64 = row.get(0);
    assert!(connections <= 5, "{connections} connections: four of the pool and one that listens");

    assert!(backend.release(&id).await.unwrap().is_released());
    while let Some(done) = waiting.join_next().await {
        assert!(done.unwrap().is_released());
    }
    // Dropping the backend ends them all.
    drop((locker, backend));
    let gone = async || peek.query_one(count, &[&app]).await.unwrap().get::<_, i64>(0) == 0;
    assert!(eventually(SOON, gone).await, "connections outlive the backend");
}

/// A holder straight at the server, and a waiter that listens through a proxy.
async fn apart(server: &PostgresServer, proxy: &FaultProxy) -> (PostgresBackend, PostgresBackend) {
    let (url, tables) = (server.url(), Tables::fresh());
    let holder = tables.at(&url).connect().await.unwrap();
    let waiter = tables.at(&url).wake_url(proxy.url(&url)).connect().await.unwrap();
    (holder, waiter)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_before_a_late_registration_still_wakes_the_waiter() {
    let server = PostgresServer::start(PostgresOptions::new());
    let proxy = FaultProxy::start(server.port());
    let (holder, waiter) = apart(&server, &proxy).await;
    let (id, _) = try_acquire(&holder, "k", 600_000).await.unwrap();
    // The connection is there. What is sent over it from now on arrives late.
    let other = waiter.subscribe(&key("other")).await;
    proxy.set(Fault::Stall);
    let hint = waiter.subscribe(&key("k")).await;
    assert!(hint.is_live(), "the waiter went on without a confirmation");

    // Nobody is registered, so nobody is notified.
    assert!(holder.release(&id).await.unwrap().is_released());
    proxy.set(Fault::Pass);

    timeout(PATIENCE, hint.woken()).await.expect("the late registration is a hint");
    drop(other);
}

/// Takes as long as silence may last: ten seconds until the question, four until it counts as unanswered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_listening_connection_is_replaced_and_its_waiters_woken() {
    let server = PostgresServer::start(PostgresOptions::new());
    let proxy = FaultProxy::start(server.port());
    let (holder, waiter) = apart(&server, &proxy).await;
    let (id, _) = try_acquire(&holder, "k", 600_000).await.unwrap();
    let hint = waiter.subscribe(&key("k")).await;
    let accepted = proxy.counts().accepted;

    proxy.set(Fault::BlackHole);
    assert!(holder.release(&id).await.unwrap().is_released());
    assert!(eventually(PATIENCE, async || proxy.counts().accepted > accepted).await, "silence is noticed");
    proxy.set(Fault::Pass);

    timeout(PATIENCE, hint.woken()).await.expect("whoever may have missed a release looks again");
    let (id, _) = try_acquire(&holder, "k", 600_000).await.unwrap();
    assert!(holder.release(&id).await.unwrap().is_released());
    timeout(PATIENCE, hint.woken()).await.expect("a hint over the new connection");
}

#[test]
fn waiters_are_woken_after_the_runtime_of_the_first_waiter_ended() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let backend = first.block_on(async {
        let backend = tables.at(&url).connect().await.unwrap();
        assert!(backend.subscribe(&key("k")).await.is_live());
        backend
    });
    drop(first);

    second.block_on(async {
        let (id, _) = try_acquire(&backend, "k", 600_000).await.unwrap();
        let hint = backend.subscribe(&key("k")).await;
        assert!(hint.is_live());
        assert!(backend.release(&id).await.unwrap().is_released());
        timeout(PATIENCE, hint.woken()).await.expect("the listener moved to a runtime that lives");
    });
}
