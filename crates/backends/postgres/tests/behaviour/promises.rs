//! Which smaller promises does this backend keep?

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::{
    AbsentReason, CancellationToken, ErrorCode, ExtendOutcome, LockBackend, LockId, Locker, ReleaseOutcome,
};
use syncguard_testkit::{Fault, FaultProxy, PostgresOptions, PostgresServer, postgres_url};
use tokio::time::timeout;

use crate::support::{PATIENCE, Tables, eventually, key, sql, try_acquire, ttl};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_locked_waits_for_no_cleanup_and_starts_one_at_a_time() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let app = format!("clean_{}", tables.locks);
    let builder = tables.at(&format!("{url}?application_name={app}")).cleanup_in_is_locked(true);
    let backend = builder.timeout(PATIENCE * 2).lock_timeout(PATIENCE * 2).connect().await.unwrap();
    let mut owner = sql(&url).await;
    let rows = "SELECT 'k' || n, 'id' || n, 0, 0, '000000000000001', 'k' || n FROM generate_series(1, 5) AS n";
    owner.batch_execute(&format!("INSERT INTO {} {rows}", tables.locks)).await.unwrap();
    // From here on the server lets everybody look and nobody delete.
    let tx = owner.transaction().await.unwrap();
    tx.batch_execute(&format!("LOCK TABLE {} IN SHARE MODE", tables.locks)).await.unwrap();
    let peek = sql(&url).await;
    let waiting = async || {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
        peek.query_one(count, &[&app]).await.unwrap().get::<_, i64>(0)
    };

    for round in 0..2 {
        for number in 1..=5 {
            let key = key(&format!("k{number}"));
            assert!(!timeout(PATIENCE, backend.is_locked(&key)).await.expect("a look waits for its cleanup").unwrap());
        }
        assert!(eventually(PATIENCE, async || waiting().await == 1).await, "round {round}: one cleanup waits");
    }
    tx.rollback().await.unwrap();

    let left = format!("SELECT count(*) FROM {}", tables.locks);
    let all_gone = async || {
        for number in 1..=5 {
            assert!(!backend.is_locked(&key(&format!("k{number}"))).await.unwrap());
        }
        peek.query_one(&left, &[]).await.unwrap().get::<_, i64>(0) == 0
    };
    assert!(eventually(PATIENCE, all_gone).await);
}

/// As the TypeScript original writes it, and every program before there was a holder.
#[tokio::test]
async fn a_dead_lock_that_names_no_holder_is_taken_over() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let columns = "(key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)";
    let row = format!("INSERT INTO {} {columns} VALUES ('k', 'id', 1, 1, '000000000000001', 'k')", tables.locks);
    sql(&url).await.batch_execute(&row).await.unwrap();

    assert!(try_acquire(&backend, "k", 60_000).await.is_some());
}

#[tokio::test]
async fn the_counter_shows_its_key_to_people_where_the_column_exists() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let owner = sql(&url).await;
    let shown = format!("SELECT fence, key_debug FROM {} WHERE fence_key = 'fence:' || $1", tables.fences);
    for fence in 1..=2_i64 {
        let (id, _) = try_acquire(&backend, "Caf\u{e9}", 60_000).await.unwrap();
        assert!(backend.release(&id).await.unwrap().is_released());
        let row = owner.query_one(&shown, &[&"Caf\u{e9}"]).await.unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, String>(1)), (fence, "Caf\u{e9}".to_owned()));
    }

    // Taken away under a running backend, and absent for one that connects later: locks go on.
    owner.batch_execute(&format!("ALTER TABLE {} DROP COLUMN key_debug", tables.fences)).await.unwrap();
    let (_, lease) = try_acquire(&backend, "after", 60_000).await.unwrap();
    assert_eq!(lease.fence.get(), 1);
    let later = tables.at(&url).connect().await.unwrap();
    assert!(try_acquire(&later, "later", 60_000).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_without_a_free_connection_is_rate_limited_and_nothing_else() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let app = format!("full_{}", tables.locks);
    let builder = tables.at(&format!("{url}?application_name={app}")).pool_size(1).lock_timeout(PATIENCE * 2);
    let backend = builder.timeout(PATIENCE * 2).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "held", 3_600_000).await.unwrap();
    let mut blocker = sql(&url).await;
    let tx = blocker.transaction().await.unwrap();
    tx.batch_execute(&format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", tables.locks)).await.unwrap();
    let extending = tokio::spawn({
        let (backend, id) = (backend.clone(), id.clone());
        async move { backend.extend(&id, ttl(3_600_000)).await }
    });
    let peek = sql(&url).await;
    let stuck = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'";
    assert!(eventually(PATIENCE, async || peek.query_one(stuck, &[&app]).await.unwrap().get::<_, i64>(0) == 1).await);

    // The only connection waits in the server, for longer than this short lease allows its own request to wait.
    let error = backend.extend(&LockId::random(), ttl(100)).await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::RateLimited, "{error:?}");
    assert!(!error.is_ambiguous() && error.is_transient(), "nothing was sent: {error:?}");
    tx.rollback().await.unwrap();
    assert!(extending.await.unwrap().unwrap().is_extended());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_acquire_does_not_wait_for_a_silent_server() {
    let server = PostgresServer::start(PostgresOptions::new());
    let (proxy, tables) = (FaultProxy::start(server.port()), Tables::fresh());
    let backend = tables.at(&proxy.url(&server.url())).timeout(Duration::from_secs(3600)).connect().await.unwrap();
    let locker = Locker::new(backend);
    proxy.set(Fault::BlackHole);
    let token = CancellationToken::new();
    let acquiring = tokio::spawn({
        let (locker, token) = (locker.clone(), token.clone());
        async move {
            let request = locker.lock("k").ttl(Duration::from_secs(86_400)).timeout(Duration::from_secs(86_400));
            request.cancel(token).acquire().await.map(drop)
        }
    });
    assert!(eventually(PATIENCE, async || proxy.counts().faults > 0).await, "the request is on its way");

    token.cancel();

    let error = timeout(PATIENCE, acquiring).await.expect("cancelling ends it").unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Aborted, "{error:?}");
}

#[tokio::test]
async fn an_expired_lock_is_told_from_one_that_is_not_there() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 50).await.unwrap();
    assert!(eventually(PATIENCE, async || !backend.is_locked(&key("k")).await.unwrap()).await);

    let (expired, absent) = (Some(AbsentReason::Expired), Some(AbsentReason::NotFound));
    assert_eq!(backend.extend(&id, ttl(1000)).await.unwrap(), ExtendOutcome::Absent(expired));
    assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Absent(expired));
    let stranger = LockId::random();
    assert_eq!(backend.extend(&stranger, ttl(1000)).await.unwrap(), ExtendOutcome::Absent(absent));
    assert_eq!(backend.release(&stranger).await.unwrap(), ReleaseOutcome::Absent(absent));
}

#[tokio::test]
async fn lock_ids_and_expiries_are_found_by_their_indexes() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    drop(tables.at(&url).connect().await.unwrap());
    let (owner, locks) = (sql(&url).await, &tables.locks);
    let rows = "SELECT 'k' || n, 'id' || n, 9e15::bigint + n, 0, '000000000000001', 'k' || n FROM generate_series(1, 5000) AS n";
    owner.batch_execute(&format!("INSERT INTO {locks} {rows}; ANALYZE {locks}")).await.unwrap();
    let statements = [
        (include_str!("../../sql/extend.sql"), "lock_id"),
        (include_str!("../../sql/release.sql"), "lock_id"),
        (include_str!("../../sql/lookup_by_lock_id.sql"), "lock_id"),
        (include_str!("../../sql/purge.sql"), "expires"),
    ];
    let plan = async |text: &str| {
        // As the gate does that is sent before a statement of a transaction; a lookup has none.
        let scans = if text.contains("FOR UPDATE") { "off" } else { "on" };
        owner.batch_execute(&format!("SET enable_seqscan = {scans}")).await.unwrap();
        let lines = text.lines().filter(|line| !line.ends_with(" -- if many"));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        let text = text.replace("{locks}", locks).replace("$1", "'id7'").replace("$2", "1000");
        let rows = owner.query(&format!("EXPLAIN {text}"), &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>().join("\n")
    };
    for (text, index) in statements {
        let plan = plan(text).await;
        assert!(plan.contains(&format!("idx_{locks}_{index}")), "{index}: {plan}");
        assert!(!plan.contains(&format!("Seq Scan on {locks}")), "{index}: {plan}");
    }
    // Without the indexes the same look finds what it forbids.
    owner.batch_execute(&format!("DROP INDEX idx_{locks}_lock_id, idx_{locks}_expires")).await.unwrap();
    for (text, _) in statements {
        let plan = plan(text).await;
        assert!(plan.contains(&format!("Seq Scan on {locks}")), "{plan}");
    }
}

/// Keeps the warnings of one process.
struct Warnings(Arc<Mutex<String>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text<'a>(&'a mut String);
        impl tracing::field::Visit for Text<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                let _ = write!(self.0, "{field}={value:?} ");
            }
        }
        event.record(&mut Text(&mut self.0.lock().unwrap()));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_fence_near_its_limit_is_warned_of_without_the_key() {
    let heard = Arc::new(Mutex::new(String::new()));
    let _guard = tracing::subscriber::set_default(Warnings(heard.clone()));
    let (url, tables) = (postgres_url(), Tables::fresh());
    let locker = Locker::new(tables.at(&url).connect().await.unwrap());
    drop(locker.lock("canary").try_acquire().await.unwrap().unwrap().release().await);
    assert!(!heard.lock().unwrap().contains("fence"), "a first fence is no reason to warn");
    let near = format!("UPDATE {} SET fence = 90000000000000", tables.fences);
    sql(&url).await.batch_execute(&near).await.unwrap();

    let guard = locker.lock("canary").try_acquire().await.unwrap().unwrap();

    let text = heard.lock().unwrap().clone();
    assert!(text.contains("fence") && text.contains(&key("canary").hash().to_string()), "{text}");
    assert!(!text.contains("canary"), "{text}");
    drop(guard.release().await);
}
