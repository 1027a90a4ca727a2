//! Does `doctor` find what is wrong, and keep quiet about what is not?

use syncguard_core::{HealthReport, HealthStatus, LockBackend};
use syncguard_postgres::{PostgresBackend, Prepared};
use syncguard_testkit::{PostgresOptions, PostgresServer, pgbouncer_url, postgres_url};

use crate::support::{Tables, sql};

fn line<'a>(report: &'a HealthReport, name: &str) -> Option<(HealthStatus, &'a str)> {
    let check = report.checks.iter().find(|check| check.name == name)?;
    Some((check.status, check.detail.as_ref()))
}

async fn status(backend: &PostgresBackend, name: &str) -> Option<HealthStatus> {
    line(&backend.health().await, name).map(|(status, _)| status)
}

#[tokio::test]
async fn what_the_tables_lack_is_named() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let owner = sql(&url).await;
    assert_eq!(status(&backend, "holder column").await, None);
    assert_eq!(status(&backend, "columns").await, Some(HealthStatus::Pass));
    assert_eq!(status(&backend, "expiry index").await, None);
    let locks = &tables.locks;

    owner
        .batch_execute(&format!("ALTER TABLE {locks} DROP COLUMN holder; DROP INDEX idx_{locks}_expires"))
        .await
        .unwrap();
    assert_eq!(status(&backend, "holder column").await, Some(HealthStatus::Info));
    assert_eq!(status(&backend, "expiry index").await, Some(HealthStatus::Warn));
    owner.batch_execute(&format!("ALTER TABLE {locks} ALTER fence TYPE VARCHAR(20)")).await.unwrap();
    assert_eq!(status(&backend, "columns").await, Some(HealthStatus::Fail));
}

#[tokio::test]
async fn missing_grants_are_named() {
    let (server, tables) = (PostgresServer::start(PostgresOptions::new()), Tables::fresh());
    drop(tables.at(&server.url()).connect().await.unwrap());
    server.query("CREATE ROLE locker LOGIN");
    server.query(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO locker", tables.locks));
    let url = server.url().replace("postgres@", "locker@");
    let locker = tables.at(&url).auto_create_tables(false).connect().await.unwrap();
    assert_eq!(status(&locker, "grants").await, Some(HealthStatus::Fail));

    server.query(&format!("GRANT SELECT, INSERT, UPDATE (fence) ON {} TO locker", tables.fences));
    assert_eq!(status(&locker, "grants").await, Some(HealthStatus::Pass));
}

#[tokio::test]
async fn names_of_statements_behind_a_pooler_are_a_warning() {
    let tables = Tables::fresh();
    let auto = tables.at(&pgbouncer_url()).connect().await.unwrap();
    assert_eq!(status(&auto, "pooler").await, Some(HealthStatus::Info));
    let always = tables.at(&pgbouncer_url()).prepared(Prepared::Always).connect().await.unwrap();
    assert_eq!(status(&always, "pooler").await, Some(HealthStatus::Warn));
    let direct = tables.at(&postgres_url()).prepared(Prepared::Always).connect().await.unwrap();
    assert_eq!(status(&direct, "pooler").await, None);
}

#[tokio::test]
async fn a_snapshot_that_others_keep_is_seen() {
    let (server, tables) = (PostgresServer::start(PostgresOptions::new()), Tables::fresh());
    drop(tables.at(&server.url()).connect().await.unwrap());
    let asking = sql(&server.url()).await;
    let text = include_str!("../../sql/health.sql");
    let seen = async || {
        let row = asking.query_one(text, &[&tables.locks, &tables.fences]).await.unwrap();
        (row.get::<_, Option<i64>>("oldest_snapshot_s"), row.get::<_, Option<i64>>("oldest_snapshot_xids"))
    };

    let mut reporter = sql(&server.url()).await;
    let report = reporter.build_transaction().isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
    let report = report.start().await.unwrap();
    report.batch_execute("SELECT 1").await.unwrap();
    for _ in 0..20 {
        asking.batch_execute("SELECT pg_current_xact_id()").await.unwrap();
    }

    let (seconds, transactions) = seen().await;
    assert!(
        seconds.is_some_and(|age| age >= 0) && transactions.is_some_and(|age| age >= 20),
        "{seconds:?} {transactions:?}"
    );
}

#[tokio::test]
async fn the_clock_is_told_with_its_error_and_the_counters_with_their_number() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let rows = "SELECT 'fence:' || n, 1 FROM generate_series(1, 500) AS n";
    let fill = format!("INSERT INTO {} (fence_key, fence) {rows}; ANALYZE {}", tables.fences, tables.fences);
    sql(&url).await.batch_execute(&fill).await.unwrap();

    let report = backend.health().await;

    let (_, clock) = line(&report, "clock").unwrap();
    assert!(clock.contains(" ms ahead") && clock.contains('\u{b1}'), "{clock}");
    assert!(report.checks.iter().any(|check| check.name == "counters" && check.detail.contains("about 500 keys")));
}
