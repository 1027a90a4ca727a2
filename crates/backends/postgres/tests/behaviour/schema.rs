//! Do the tables come into being safely, under any sensible name, and with no more rights than needed?

use crate::support::{self, Tables, sql, try_acquire, ttl};
use syncguard_core::{ErrorCode, HealthStatus, LockBackend};
use syncguard_postgres::{PostgresBackend, PostgresBuilder, protect_counters_sql, schema_sql};
use syncguard_testkit::{fresh_postgres_database, postgres_url};

/// Acquire, extend, release, and the counter has moved.
async fn works(backend: &PostgresBackend) {
    let (id, first) = try_acquire(backend, "k", 5_000).await.expect("the lock is free");
    assert!(backend.extend(&id, ttl(6_000)).await.unwrap().is_extended());
    assert!(backend.is_locked(&support::key("k")).await.unwrap());
    assert!(backend.release(&id).await.unwrap().is_released());
    let (id, second) = try_acquire(backend, "k", 5_000).await.expect("the lock is free again");
    assert!(second.fence > first.fence);
    assert!(backend.release(&id).await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_processes_may_set_up_at_once() {
    let (url, tables) = (fresh_postgres_database(), Tables::fresh());
    let mut setting_up = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let builder = tables.at(&url).pool_size(1);
        // Connecting sets up too.
        setting_up.spawn(async move { builder.connect().await.unwrap().setup_schema().await });
    }
    while let Some(done) = setting_up.join_next().await {
        done.unwrap().unwrap();
    }
    let client = sql(&url).await;
    let indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = $1";
    assert_eq!(client.query_one(indexes, &[&tables.locks]).await.unwrap().get::<_, i64>(0), 3);
    works(&tables.at(&url).connect().await.unwrap()).await;
}

#[tokio::test]
async fn mixed_case_qualified_reserved_and_long_names_work() {
    let url = fresh_postgres_database();
    sql(&url).await.batch_execute("CREATE SCHEMA \"MyApp\"").await.unwrap();
    let long = "t".repeat(58);
    let longest = "x".repeat(63);
    for (locks, fences) in [
        ("MyLocks", "MyFences"),
        ("MyApp.Locks", "MyApp.Fences"),
        ("select", "user"),
        (long.as_str(), longest.as_str()),
        (longest.as_str(), long.as_str()),
    ] {
        // The last two would clash as tables; each pair has a database's schema of its own.
        let client = sql(&url).await;
        client.batch_execute(&format!("DROP TABLE IF EXISTS \"{long}\", \"{longest}\"")).await.unwrap();
        let builder = PostgresBuilder::from_url(&url).unwrap().table(locks).fence_table(fences).pool_size(2);
        let backend = builder.connect().await.unwrap();
        works(&backend).await;
        let report = backend.health().await;
        let failed: Vec<_> = report.checks.iter().filter(|check| check.name == "unique index").collect();
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].status, HealthStatus::Pass, "{locks}: {failed:?}");
    }
}

#[tokio::test]
async fn bad_names_are_refused_before_anything_is_sent() {
    // Nobody listens there: a name that passed would end in another error.
    let url = "postgres://u@127.0.0.1:1/db";
    let (long, canary) = ("a".repeat(64), "x\"; CREATE TABLE canary (); --");
    for (locks, fences) in [
        ("", "f"),
        ("a;b", "f"),
        ("a\"b", "f"),
        ("a.b.c", "f"),
        ("1a", "f"),
        ("ünïcode", "f"),
        (long.as_str(), "f"),
        (canary, "f"),
        ("pg_class", "f"),
        ("pg_catalog.x", "f"),
        ("same", "same"),
        ("Locks", "locks"),
        ("l", "f f"),
        ("l", ""),
    ] {
        let error =
            PostgresBuilder::from_url(url).unwrap().table(locks).fence_table(fences).connect().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{locks} {fences}: {error}");
    }
}

#[tokio::test]
async fn a_role_without_ddl_rights_works_on_tables_made_by_another() {
    let (url, tables) = (fresh_postgres_database(), Tables::fresh());
    let owner = sql(&url).await;
    let role = format!("locker_{}", tables.locks);
    owner
        .batch_execute(&format!("CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
        .await
        .unwrap();
    let as_role = url.replace("//postgres@", &format!("//{role}@"));
    assert_ne!(as_role, url);

    // Nothing is there yet: a clear error either way.
    let error = tables.at(&as_role).connect().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
    assert!(error.hint().unwrap().contains("auto_create_tables=false"), "{error:?}");
    let error = tables.at(&as_role).auto_create_tables(false).connect().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().contains(&tables.locks), "{error}");
    assert!(error.hint().unwrap().contains("CREATE TABLE"), "{error:?}");

    // The migration, with the rights that the documentation lists and no more.
    let builder = tables.builder();
    owner.batch_execute(&schema_sql(&builder).unwrap()).await.unwrap();
    owner.batch_execute(&schema_sql(&builder).unwrap()).await.unwrap();
    let backend = tables.at(&as_role).auto_create_tables(false).connect().await.unwrap();
    let (key, id) = (support::key("k"), syncguard_core::LockId::random());
    let request = syncguard_core::AcquireRequest::new(&key, &id, ttl(1000));
    let error = backend.acquire(request).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
    let grants = backend.health().await;
    assert!(
        grants.checks.iter().any(|check| check.name == "grants" && check.status == HealthStatus::Fail),
        "{grants:?}"
    );

    let (locks, fences) = (&tables.locks, &tables.fences);
    let rights = format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON {locks} TO {role};
         GRANT SELECT, INSERT ON {fences} TO {role}; GRANT UPDATE (fence) ON {fences} TO {role}"
    );
    owner.batch_execute(&rights).await.unwrap();
    works(&backend).await;
    let health = backend.health().await;
    assert!(
        health.checks.iter().any(|check| check.name == "grants" && check.status == HealthStatus::Pass),
        "{health:?}"
    );
    assert_eq!(backend.purge_expired().await.unwrap(), 0);
}

#[tokio::test]
async fn a_protected_counter_can_be_neither_lowered_nor_deleted() {
    let (url, tables) = (fresh_postgres_database(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let owner = sql(&url).await;
    owner.batch_execute(&protect_counters_sql(&tables.builder()).unwrap()).await.unwrap();

    works(&backend).await;

    for statement in [
        format!("DELETE FROM {}", tables.fences),
        format!("TRUNCATE {}", tables.fences),
        format!("UPDATE {} SET fence = 1", tables.fences),
    ] {
        let error = owner.batch_execute(&statement).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "23514", "{statement}");
    }
    works(&backend).await;
}

#[tokio::test]
async fn a_missing_or_foreign_table_is_named_by_the_error_and_by_health() {
    let (url, tables) = (fresh_postgres_database(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let owner = sql(&url).await;
    owner.batch_execute(&format!("DROP TABLE {}", tables.fences)).await.unwrap();
    let (key, id) = (support::key("k"), syncguard_core::LockId::random());
    let request = syncguard_core::AcquireRequest::new(&key, &id, ttl(1000));

    let error = backend.acquire(request).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
    let health = backend.health().await;
    assert!(
        health.checks.iter().any(|check| check.status == HealthStatus::Fail && check.detail.contains(&tables.fences))
    );

    // Nothing repairs it by itself, because fences would begin anew; the owner may, and no new client is needed.
    assert_eq!(backend.setup_schema().await.unwrap_err().code(), ErrorCode::InvalidArgument);
    owner.batch_execute(&schema_sql(&tables.builder()).unwrap()).await.unwrap();
    works(&backend).await;

    // A table of somebody else under our name.
    let foreign = Tables::fresh();
    owner
        .batch_execute(&format!("CREATE TABLE {} (key TEXT PRIMARY KEY, lock_id TEXT, note TEXT)", foreign.locks))
        .await
        .unwrap();
    let error = foreign.at(&url).connect().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
}

#[tokio::test]
async fn one_table_without_the_other_is_an_error_and_never_completed() {
    let url = fresh_postgres_database();
    let owner = sql(&url).await;
    for dropped_is_fences in [true, false] {
        let tables = Tables::fresh();
        let backend = tables.at(&url).connect().await.unwrap();
        works(&backend).await;
        let (dropped, kept) =
            if dropped_is_fences { (&tables.fences, &tables.locks) } else { (&tables.locks, &tables.fences) };
        owner.batch_execute(&format!("DROP TABLE {dropped}")).await.unwrap();

        for create in [true, false] {
            let error = tables.at(&url).auto_create_tables(create).connect().await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
            assert!(error.to_string().contains(dropped) && error.to_string().contains(kept), "{error}");
        }
        assert_eq!(backend.setup_schema().await.unwrap_err().code(), ErrorCode::InvalidArgument);
        let failed = backend.health().await;
        let failed = failed.checks.iter().any(|check| {
            check.status == HealthStatus::Fail && check.name == "tables" && check.detail.contains(dropped.as_str())
        });
        assert!(failed, "health does not tell");
        let there = owner.query_one("SELECT to_regclass($1) IS NOT NULL", &[dropped]).await.unwrap();
        assert!(!there.get::<_, bool>(0), "somebody created {dropped}");
    }
}

#[tokio::test]
async fn columns_may_be_added_and_the_debug_column_may_be_absent() {
    let (url, tables) = (fresh_postgres_database(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let owner = sql(&url).await;
    let change = format!(
        "ALTER TABLE {} DROP COLUMN key_debug; ALTER TABLE {} ADD COLUMN note TEXT DEFAULT 'x'; ALTER TABLE {} ADD COLUMN note TEXT",
        tables.fences, tables.locks, tables.fences
    );
    owner.batch_execute(&change).await.unwrap();
    works(&backend).await;
    works(&tables.at(&url).connect().await.unwrap()).await;
}

#[tokio::test]
async fn health_finds_nothing_wrong_with_a_good_server_and_a_missing_index_with_a_bad_one() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let report = backend.health().await;
    let names: Vec<_> = report.checks.iter().map(|check| check.name.as_ref()).collect();
    for wanted in [
        "connection",
        "role",
        "tables",
        "columns",
        "unique index",
        "grants",
        "durability",
        "synchronous_commit",
        "clock",
    ] {
        assert!(names.contains(&wanted), "{wanted} is not in {names:?}");
    }
    // The servers of the tests run without fsync, and that is the one thing to complain about.
    let failed: Vec<_> = report.checks.iter().filter(|check| check.status == HealthStatus::Fail).collect();
    assert!(failed.iter().all(|check| check.name == "durability"), "{failed:?}");

    sql(&url).await.batch_execute(&format!("DROP INDEX idx_{}_lock_id", tables.locks)).await.unwrap();
    let report = backend.health().await;
    assert!(report.checks.iter().any(|check| check.name == "unique index" && check.status == HealthStatus::Fail));
}
