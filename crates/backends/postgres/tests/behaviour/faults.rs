//! What do a bad network, a stuck key and an exhausted pool do to a lock?

use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockId, Locker};
use syncguard_postgres::{PostgresBackend, Prepared};
use syncguard_testkit::{Fault, FaultProxy, PostgresOptions, PostgresServer, postgres_url};

use crate::support::{PATIENCE, Tables, eventually, key, sql, try_acquire, ttl};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_lost_after_the_commit_is_ambiguous_and_the_same_id_owns_up() {
    let server = PostgresServer::start(PostgresOptions::new());
    let (proxy, tables) = (FaultProxy::start(server.port()), Tables::fresh());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", proxy.port());
    let backend = tables.at(&url).pool_size(1).timeout(Duration::from_secs(1)).connect().await.unwrap();
    // On a new connection statements are prepared when they come again, and what is lost then was never asked.
    let warm_up = async || {
        for _ in 0..2 {
            let (id, _) = try_acquire(&backend, "warm up", 60_000).await.unwrap();
            assert!(backend.extend(&id, ttl(60_000)).await.unwrap().is_extended());
            assert!(backend.release(&id).await.unwrap().is_released());
        }
    };
    for (round, fault) in
        [Fault::DropReplies, Fault::CutAfter(0), Fault::CutAfter(1), Fault::CutAfter(30)].into_iter().enumerate()
    {
        let (key, id) = (key(&format!("k{round}")), LockId::random());
        let request = AcquireRequest::new(&key, &id, ttl(30_000));
        warm_up().await;
        proxy.set(fault);
        let error = backend.acquire(request).await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_transient(), "{fault:?} {error:?}");
        proxy.set(Fault::Pass);

        let AcquireOutcome::Acquired(lease) = backend.acquire(request).await.unwrap() else {
            panic!("{fault:?}: not ours")
        };
        assert_eq!(lease.fence.get(), 1, "{fault:?}: owning up consumes no fence");
        warm_up().await;
        proxy.set(fault);
        let error = backend.extend(&id, ttl(40_000)).await.unwrap_err();
        assert!(error.is_ambiguous(), "{fault:?} {error:?}");
        proxy.set(Fault::Pass);
        assert!(backend.extend(&id, ttl(40_000)).await.unwrap().is_extended());
        warm_up().await;
        proxy.set(fault);
        let error = backend.release(&id).await.unwrap_err();
        assert!(error.is_ambiguous(), "{fault:?} {error:?}");
        proxy.set(Fault::Pass);
        backend.release(&id).await.unwrap();
        assert!(!backend.is_locked(&key).await.unwrap());
    }
    assert!(proxy.counts().faults > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_never_arrived_leaves_no_lock() {
    let server = PostgresServer::start(PostgresOptions::new());
    let (proxy, tables) = (FaultProxy::start(server.port()), Tables::fresh());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", proxy.port());
    let backend = tables.at(&url).timeout(Duration::from_millis(500)).connect().await.unwrap();
    assert!(try_acquire(&backend, "warm up", 1000).await.is_some());
    for fault in [Fault::BlackHole, Fault::DropRequests, Fault::Reset, Fault::Refuse] {
        let (key, id) = (key("k"), LockId::random());
        let request = AcquireRequest::new(&key, &id, ttl(30_000));
        proxy.set(fault);
        let error = backend.acquire(request).await.unwrap_err();
        assert!(error.is_transient(), "{fault:?} {error:?}");
        proxy.set(Fault::Pass);
        let free = async || backend.is_locked(&key).await.is_ok_and(|locked| !locked);
        assert!(eventually(Duration::from_secs(3), free).await, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_killed_by_the_server_is_replaced() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let app = format!("kill_{}", tables.locks);
    let backend = tables.at(&format!("{url}?application_name={app}")).pool_size(2).connect().await.unwrap();
    let peek = sql(&url).await;
    for _ in 0..5 {
        assert!(try_acquire(&backend, &LockId::random().hash().to_string(), 1000).await.is_some());
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        assert!(!peek.query(kill, &[&app]).await.unwrap().is_empty());
        // The end of the connection is seen before the next operation, or costs it one transient error.
        let locker = Locker::new(backend.clone());
        let guard = locker.lock("after").ttl(Duration::from_secs(5)).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().is_released());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_key_times_out_and_starves_no_other() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let builder = tables.at(&url).pool_size(4).lock_timeout(Duration::from_millis(800));
    let backend = builder.connect().await.unwrap();
    let (held, _) = try_acquire(&backend, "held", 60_000).await.unwrap();
    // Somebody sits on the advisory locks of eight keys.
    let mut blocker = sql(&url).await;
    let tx = blocker.transaction().await.unwrap();
    for stuck in 0..8 {
        tx.execute("SELECT pg_advisory_xact_lock(hashtext($1))", &[&format!("stuck{stuck}")]).await.unwrap();
    }
    let mut waiting = tokio::task::JoinSet::new();
    for task in 0..80 {
        let backend = backend.clone();
        waiting.spawn(async move {
            let (key, id) = (key(&format!("stuck{}", task % 8)), LockId::random());
            backend.acquire(AcquireRequest::new(&key, &id, ttl(1000))).await
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;

    // Renewals and releases of other locks go on at once: some connections are theirs alone.
    for _ in 0..20 {
        let extending = backend.extend(&held, ttl(60_000));
        let outcome =
            tokio::time::timeout(Duration::from_millis(700), extending).await.expect("a renewal waits for a stuck key");
        assert!(outcome.unwrap().is_extended());
    }
    let releasing = tokio::time::timeout(Duration::from_millis(700), backend.release(&held));
    assert!(releasing.await.expect("a release waits for a stuck key").unwrap().is_released());

    while let Some(done) = waiting.join_next().await {
        let error = done.unwrap().unwrap_err();
        assert!([ErrorCode::NetworkTimeout, ErrorCode::RateLimited].contains(&error.code()), "{error:?}");
    }
    tx.rollback().await.unwrap();
    // Who left while its last request was under way may have it for its short lease.
    assert!(eventually(PATIENCE, async || try_acquire(&backend, "stuck0", 1000).await.is_some()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_are_renewed_while_two_hundred_tasks_want_one_key() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(4).connect().await.unwrap();
    let locker = Locker::new(backend);
    let mut guards = Vec::new();
    for guard in 0..50 {
        let request = locker.lock(format!("guard{guard}")).ttl(Duration::from_secs(15)).keep_alive();
        guards.push(request.timeout(PATIENCE).acquire().await.unwrap());
    }
    let granted: Vec<_> = guards.iter().map(|guard| guard.expires_at()).collect();
    let mut wanting = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let locker = locker.clone();
        wanting.spawn(async move {
            let request =
                locker.lock("hot").ttl(Duration::from_secs(15)).timeout(Duration::from_secs(7)).unlimited_retries();
            if let Ok(guard) = request.acquire().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(guard.release().await);
                1
            } else {
                0
            }
        });
    }
    let mut served = 0;
    while let Some(done) = wanting.join_next().await {
        served += done.unwrap();
    }
    assert!(served > 0);
    let renewed = async || guards.iter().zip(&granted).all(|(guard, granted)| guard.expires_at() > *granted);
    assert!(eventually(PATIENCE, renewed).await, "a guard was not renewed");
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();
    assert_eq!(lost, 0, "guards lost while {served} tasks of 200 were served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_silence_gives_up_every_connection_also_when_the_caller_did_not_wait_for_it() {
    let (server, tables) = (PostgresServer::start(PostgresOptions::new()), Tables::fresh());
    let proxy = FaultProxy::start(server.port());
    let builder = tables.at(&proxy.url(&server.url())).pool_size(4).timeout(Duration::from_secs(30)).wake(false);
    let backend = builder.connect().await.unwrap();
    let k = key("k");
    // All at once, so that each has a connection of its own.
    let asked = || backend.is_locked(&k);
    let (one, two, three, four) = tokio::join!(asked(), asked(), asked(), asked());
    assert!([one, two, three, four].into_iter().all(|answer| !answer.unwrap()));
    proxy.silence_existing();

    // As a renewal does: the caller's own bound ends before the backend's.
    let cut = tokio::time::timeout(Duration::from_secs(2), backend.is_locked(&k)).await;
    assert!(cut.is_err(), "the connection was not silent, so this test proves nothing");

    for _ in 0..4 {
        backend.is_locked(&k).await.expect("every connection after the silence is a new one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_operation_never_hands_on_an_open_transaction() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let app = format!("drop_{}", tables.locks);
    let backend = tables.at(&format!("{url}?application_name={app}")).pool_size(2).connect().await.unwrap();
    for round in 0..60_u64 {
        let attempt = try_acquire(&backend, "k", 500);
        drop(tokio::time::timeout(Duration::from_micros(round * 50), attempt).await);
    }
    let peek = sql(&url).await;
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state LIKE 'idle in transaction%'";
    let none_open = async || peek.query_one(open, &[&app]).await.unwrap().get::<_, i64>(0) == 0;
    assert!(eventually(Duration::from_secs(3), none_open).await);
    let free = async || try_acquire(&backend, "k", 500).await.is_some();
    assert!(eventually(Duration::from_secs(10), free).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_was_brought_along_works_and_stays_usable() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let config = deadpool_postgres::Config { url: Some(url), ..deadpool_postgres::Config::default() };
    let runtime = deadpool_postgres::Runtime::Tokio1;
    let pool = config.create_pool(Some(runtime), tokio_postgres::NoTls).unwrap();
    for prepared in [Prepared::Auto, Prepared::Always] {
        let backend = tables.builder().prepared(prepared).connect_with_pool(pool.clone()).await.unwrap();
        assert!(!backend.subscribe(&key("k")).await.is_live());
        for round in 0..40_u64 {
            drop(tokio::time::timeout(Duration::from_micros(round * 40), try_acquire(&backend, "k", 50)).await);
        }
        let free = async || try_acquire(&backend, "k", 500).await.is_some();
        assert!(eventually(Duration::from_secs(10), free).await);
        for _ in 0..16 {
            let client = pool.get().await.unwrap();
            let state = "SELECT pg_current_xact_id_if_assigned() IS NULL";
            assert!(client.query_one(state, &[]).await.unwrap().get::<_, bool>(0));
        }
    }
}

#[tokio::test]
async fn nobody_there_wrong_database_and_bad_hosts_have_their_codes() {
    let code = async |url: &str| PostgresBackend::connect(url).await.unwrap_err().code();
    let nobody = syncguard_testkit::free_port();
    assert_eq!(code(&format!("postgres://u@127.0.0.1:{nobody}/db")).await, ErrorCode::ServiceUnavailable);
    assert_eq!(code("postgres://u@no-such-host.invalid/db").await, ErrorCode::ServiceUnavailable);
    assert_eq!(code("postgres:///db?host=/nonexistent&user=u").await, ErrorCode::ServiceUnavailable);
    let wrong = format!("{}/no_such_database", postgres_url().rsplit_once('/').unwrap().0);
    assert_eq!(code(&wrong).await, ErrorCode::InvalidArgument);
    // Accepts and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/db?connect_timeout=300ms", silent.local_addr().unwrap());
    assert_eq!(code(&url).await, ErrorCode::NetworkTimeout);
}

#[tokio::test]
async fn a_socket_of_this_machine_will_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let place = folder.path().display();
    let server = PostgresServer::start(PostgresOptions::new().config(format!("unix_socket_directories = '{place}'")));
    // As in libpq, sslmode is about networks.
    let url = format!(
        "postgres:///postgres?host={place}&port={}&user=postgres&sslmode=verify-full&sslrootcert=system",
        server.port()
    );
    match Tables::fresh().at(&url).connect().await {
        Ok(backend) => assert!(try_acquire(&backend, "k", 1000).await.is_some()),
        // A machine without root certificates.
        Err(error) => assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}"),
    }
    let url = format!("postgres:///postgres?host={place}&port={}&user=postgres", server.port());
    let backend = Tables::fresh().at(&url).connect().await.unwrap();
    assert!(try_acquire(&backend, "k", 1000).await.is_some());
    assert!(backend.subscribe(&key("k")).await.is_live());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_dead_connection_condemns_the_idle_ones_beside_it() {
    let server = PostgresServer::start(PostgresOptions::new());
    let (proxy, tables) = (FaultProxy::start(server.port()), Tables::fresh());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", proxy.port());
    let builder = tables.at(&url).pool_size(8).timeout(Duration::from_millis(500));
    let backend = builder.connect().await.unwrap();
    // Eight idle connections, and then a network that swallows everything on them.
    let mut running = tokio::task::JoinSet::new();
    for task in 0..8 {
        let backend = backend.clone();
        running.spawn(async move { backend.is_locked(&key(&format!("k{task}"))).await.unwrap() });
    }
    while let Some(done) = running.join_next().await {
        assert!(!done.unwrap());
    }
    proxy.set(Fault::BlackHole);
    assert!(backend.is_locked(&key("k")).await.is_err());
    proxy.set(Fault::Pass);

    // The next operation opens a new connection instead of trying the others one by one.
    let accepted = proxy.counts().accepted;
    assert!(!backend.is_locked(&key("k")).await.unwrap());
    assert_eq!(proxy.counts().accepted, accepted + 1);
}

#[tokio::test]
async fn two_rows_with_one_id_are_refused_and_left_alone() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 60_000).await.unwrap();
    let owner = sql(&url).await;
    let locks = &tables.locks;
    owner
        .batch_execute(&format!(
            "DROP INDEX idx_{locks}_lock_id;
             INSERT INTO {locks} SELECT 'other', lock_id, expires_at_ms, acquired_at_ms, fence, 'other' FROM {locks}"
        ))
        .await
        .unwrap();
    assert_eq!(backend.release(&id).await.unwrap_err().code(), ErrorCode::Internal);
    assert_eq!(backend.extend(&id, ttl(1000)).await.unwrap_err().code(), ErrorCode::Internal);
    let count: i64 = owner.query_one(&format!("SELECT count(*) FROM {locks}"), &[]).await.unwrap().get(0);
    assert_eq!(count, 2);
}

#[tokio::test]
async fn fences_floored_by_the_clock_rise_over_a_lost_counter() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).fence_floor(true).connect().await.unwrap();
    let (id, first) = try_acquire(&backend, "k", 1000).await.unwrap();
    assert!(backend.release(&id).await.unwrap().is_released());
    assert!(first.fence.get() > 1_600_000_000_000);
    sql(&url).await.batch_execute(&format!("DELETE FROM {}", tables.fences)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (_, second) = try_acquire(&backend, "k", 1000).await.unwrap();
    assert!(second.fence > first.fence);
}
