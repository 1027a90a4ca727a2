//! How many connections does a process need, and what if the server has no room for them?

use std::time::Duration;

use syncguard_core::{HealthStatus, LockBackend, LockId, Locker};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::postgres_url;
use tokio_postgres::Client;

use crate::support::{PATIENCE, Tables, eventually, sql, try_acquire, ttl};

async fn connect(url: &str, tables: &Tables, app: &str) -> PostgresBackend {
    tables.at(&format!("{url}?application_name={app}")).connect().await.unwrap()
}

async fn connections(watcher: &Client, app: &str) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    watcher.query_one(count, &[&app]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_waits_or_holds_has_one_connection() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let (holding, waiting) = (format!("h_{}", tables.locks), format!("w_{}", tables.locks));
    let watcher = sql(&url).await;
    let holder = Locker::new(connect(&url, &tables, &holding).await);
    let guard = holder.lock("k").keep_alive().acquire().await.unwrap();
    let waiter = Locker::new(connect(&url, &tables, &waiting).await);
    let acquiring = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.lock("k").timeout(PATIENCE).unlimited_retries().keep_alive().acquire().await.unwrap() }
    });
    let listens = async || {
        let question = "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
                        WHERE a.application_name = $1 AND l.locktype = 'advisory' AND l.mode = 'ShareLock'";
        watcher.query_one(question, &[&waiting]).await.unwrap().get::<_, i64>(0) == 1
    };
    assert!(eventually(PATIENCE, listens).await, "the waiter does not listen");
    // It looks again from time to time.
    for _ in 0..10 {
        assert_eq!(connections(&watcher, &waiting).await, 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(guard.release().await.unwrap().is_released());
    let guard = acquiring.await.unwrap();
    assert_eq!(connections(&watcher, &waiting).await, 1, "who waited and holds now");
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!([connections(&watcher, &holding).await, connections(&watcher, &waiting).await], [1, 1]);
}

/// The only connection listens while it releases, which its own process would not hear.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_beside_a_waiter_of_the_same_process_wakes_it() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).connect().await.unwrap();
    for round in 0..5 {
        let (id, _) = try_acquire(&backend, "k", 60_000).await.unwrap();
        let hint = backend.subscribe(&crate::support::key("k")).await;
        assert!(hint.is_live(), "round {round}");
        assert!(backend.extend(&id, ttl(60_000)).await.unwrap().is_extended());
        assert!(backend.release(&id).await.unwrap().is_released());
        tokio::time::timeout(PATIENCE, hint.woken()).await.expect("nobody told it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_is_waited_for() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    drop(tables.at(&url).connect().await.unwrap());
    let owner = sql(&url).await;
    let role = format!("r_{}", LockId::random().hash());
    let create = format!(
        "CREATE ROLE {role} LOGIN CONNECTION LIMIT 1; GRANT ALL ON {}, {} TO {role}",
        tables.locks, tables.fences
    );
    owner.batch_execute(&create).await.unwrap();
    let url = url.replace("//postgres@", &format!("//{role}@"));
    let first = tables.at(&url).connect().await.unwrap();
    let report = first.health().await;
    let told = report.checks.iter().find(|check| check.name == "connections").unwrap();
    assert!(told.status == HealthStatus::Warn && told.detail.contains("1 of 1 "), "{}", told.detail);
    let second = tokio::spawn({
        let (tables, url) = (tables.clone(), url.clone());
        async move { tables.at(&url).connect().await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!second.is_finished(), "it failed, or got in beside the first");
    assert!(try_acquire(&first, "k", 1000).await.is_some());
    drop(first);
    let second = second.await.unwrap().unwrap();
    assert!(try_acquire(&second, "other", 1000).await.is_some());
}
