//! What does a server that is killed in the middle of a run cost?
//!
//! Time, and nothing else: no fence comes twice, no two holders at once, and clients go on by themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::literal;
use crate::support::{self, Tables};
use syncguard_core::{Clock, Fence, LockBackend, LockId, Locker, SystemClock};
use syncguard_testkit::{PostgresOptions, PostgresServer};
use tokio::sync::Mutex;

/// Who held which key, from when to when, under which fence.
type History = Arc<Mutex<BTreeMap<(usize, Fence), (Duration, Duration)>>>;

const KEYS: usize = 3;

async fn killed_and_restarted(mut server: PostgresServer) -> PostgresServer {
    let restart = move || {
        server.kill_hard();
        server.restart();
        server
    };
    tokio::task::spawn_blocking(restart).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_repeats_no_fence_and_makes_no_second_holder() {
    // The one setting that loses acknowledged commits at a kill is overruled by every transaction of ours.
    let mut server = PostgresServer::start(PostgresOptions::new().config("synchronous_commit = off"));
    let (url, tables) = (server.url(), Tables::fresh());
    let (history, stop) = (History::default(), Arc::new(AtomicBool::new(false)));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let backend = tables.at(&url).pool_size(4).connect().await.unwrap();
        workers.spawn(work(Locker::new(backend), worker, history.clone(), stop.clone()));
    }
    let kills = 4;
    let mut before = Vec::new();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        before.push(history.lock().await.len());
        server = killed_and_restarted(server).await;
    }
    // Clients recover by themselves: holds go on after the last restart.
    let at_restart = history.lock().await.len();
    let goes_on = async || history.lock().await.len() > at_restart + 20;
    assert!(support::eventually(Duration::from_secs(20), goes_on).await, "clients did not recover");
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }

    let history = history.lock().await;
    println!("{} holds over {kills} kills, {before:?} before each", history.len());
    assert_no_overlap(&history);
    assert_counters_cover(&url, &tables, &history).await;
}

async fn work(locker: Locker, worker: usize, history: History, stop: Arc<AtomicBool>) {
    let mut round = worker;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let key = round % KEYS;
        let request = locker.lock(format!("k{key}")).ttl(Duration::from_secs(2)).timeout(Duration::from_secs(4));
        let Ok(guard) = request.acquire().await else { continue };
        let (fence, start) = (guard.fence(), SystemClock.boot().since_start());
        tokio::time::sleep(Duration::from_millis(2)).await;
        let end = SystemClock.boot().since_start();
        // What counts is the time in which the guard still believed.
        if guard.is_held() {
            let known = history.lock().await.insert((key, fence), (start, end));
            assert!(known.is_none(), "fence {fence} of k{key} was given twice");
        }
        drop(guard.release().await);
    }
}

/// In the order of fences, each hold ends before the next begins.
fn assert_no_overlap(history: &BTreeMap<(usize, Fence), (Duration, Duration)>) {
    let holds: Vec<_> = history.iter().collect();
    for pair in holds.windows(2) {
        let ((first_key, _), (_, end)) = pair[0];
        let ((second_key, _), (start, _)) = pair[1];
        assert!(first_key != second_key || end <= start, "{:?} and {:?} overlap", pair[0], pair[1]);
    }
}

async fn assert_counters_cover(url: &str, tables: &Tables, history: &BTreeMap<(usize, Fence), (Duration, Duration)>) {
    let client = support::sql(url).await;
    for key in 0..KEYS {
        let highest = history.keys().filter(|(of, _)| *of == key).map(|(_, fence)| fence.get()).max().unwrap();
        let statement = format!("SELECT fence FROM {} WHERE fence_key = $1", tables.fences);
        let stored: i64 = client.query_one(&statement, &[&format!("fence:k{key}")]).await.unwrap().get(0);
        assert!(u64::try_from(stored).unwrap() >= highest);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_own_setting_a_killed_server_repeats_fences() {
    // The same statement in a transaction that takes over what the server is set to.
    let options = PostgresOptions::new().config("synchronous_commit = off").config("wal_writer_delay = 10s");
    let mut server = PostgresServer::start(options);
    let (url, tables) = (server.url(), Tables::fresh());
    drop(tables.at(&url).connect().await.unwrap());
    let statement = literal::acquire_statement(&tables);
    // Not every kill loses something: the server writes full pages at once.
    for round in 0..10 {
        let mut client = support::sql(&url).await;
        let keys: Vec<String> = (0..10).map(|number| format!("{round}-{number}")).collect();
        for key in &keys {
            let id = LockId::random();
            assert!(literal::acquire_by(&mut client, &statement, key, id.as_str(), 600_000).await.is_some());
        }
        server = killed_and_restarted(server).await;
        let client = support::sql(&url).await;
        let count = format!("SELECT count(*) FROM {} WHERE fence_key LIKE 'fence:{round}-%'", tables.fences);
        let kept: i64 = client.query_one(&count, &[]).await.unwrap().get(0);
        if usize::try_from(kept).unwrap() < keys.len() {
            println!("{kept} of {} counters that were acknowledged are there after the kill", keys.len());
            return;
        }
    }
    panic!("ten kills lost nothing: the test of killed servers proves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_racers_on_a_repeatable_read_server_have_one_winner_and_no_error() {
    let server =
        PostgresServer::start(PostgresOptions::new().config("default_transaction_isolation = 'repeatable read'"));
    let tables = Tables::fresh();
    let backend = tables.at(&server.url()).pool_size(32).connect().await.unwrap();
    // Two clients, because one lets the acquires of a key pass one after another.
    let second = tables.at(&server.url()).pool_size(32).connect().await.unwrap();
    for round in ["absent", "absent too"] {
        let mut racing = tokio::task::JoinSet::new();
        for racer in 0..64 {
            let backend = if racer % 2 == 0 { backend.clone() } else { second.clone() };
            racing.spawn(async move { support::try_acquire(&backend, round, 10_000).await });
        }
        let mut winners = Vec::new();
        while let Some(done) = racing.join_next().await {
            winners.extend(done.unwrap());
        }
        assert_eq!(winners.len(), 1, "{round}");
        assert!(backend.extend(&winners[0].0, support::ttl(5_000)).await.unwrap().is_extended());
        assert!(backend.release(&winners[0].0).await.unwrap().is_released());
    }
}

#[tokio::test]
async fn a_read_only_server_is_unavailable_and_says_so() {
    let mut server = PostgresServer::start(PostgresOptions::new());
    let tables = Tables::fresh();
    drop(tables.at(&server.url()).connect().await.unwrap());
    server.query("ALTER SYSTEM SET default_transaction_read_only = on");
    server.restart();
    let backend = tables.at(&server.url()).connect().await.unwrap();
    let (key, id) = (support::key("k"), syncguard_core::LockId::random());
    let request = syncguard_core::AcquireRequest::new(&key, &id, support::ttl(1000));

    let error = backend.acquire(request).await.unwrap_err();
    assert_eq!(error.code(), syncguard_core::ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(error.to_string().contains("read-only"), "{error}");
    assert!(!error.is_ambiguous());
    assert!(!backend.is_locked(&key).await.unwrap());

    let url = format!("{}?target_session_attrs=read-write", server.url());
    let error = tables.at(&url).connect().await.unwrap_err();
    assert_eq!(error.code(), syncguard_core::ErrorCode::ServiceUnavailable, "{error:?}");
    let url = format!("{}?target_session_attrs=read-only", server.url());
    assert!(tables.at(&url).connect().await.is_ok());
}

#[tokio::test]
async fn of_several_hosts_the_one_that_can_be_written_is_used() {
    let (mut reader, writer) =
        (PostgresServer::start(PostgresOptions::new()), PostgresServer::start(PostgresOptions::new()));
    reader.query("ALTER SYSTEM SET default_transaction_read_only = on");
    reader.restart();
    let (nobody, tables) = (syncguard_testkit::free_port(), Tables::fresh());
    let url = format!(
        "postgres://postgres@127.0.0.1:{nobody},127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        reader.port(),
        writer.port()
    );
    let backend = tables.at(&url).connect().await.unwrap();
    assert!(support::try_acquire(&backend, "k", 1000).await.is_some());
    assert_eq!(writer.query(&format!("SELECT key FROM {}", tables.locks)), [[Some("k".to_owned())]]);
}
