//! What do operators see, also of clients and tables that know nothing of it?

use std::collections::BTreeSet;
use std::time::Duration;

use syncguard_core::{
    AskOutcome, ErrorCode, Inspector, Label, ListRequest, LockBackend, LockId, LockInfo, Locker, Lookup, Renewal,
};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{PostgresOptions, PostgresServer, postgres_url};

use crate::literal;
use crate::support::{PATIENCE, Tables, eventually, key, sql, try_acquire, ttl};

fn inspector(backend: &PostgresBackend) -> Inspector {
    backend.inspector().expect("postgres can be inspected")
}

/// All pages of a listing.
async fn list(backend: &PostgresBackend, prefix: &str, page_size: u32) -> Vec<LockInfo> {
    let (inspector, mut cursor, mut locks) = (inspector(backend), None, Vec::new());
    for _ in 0..1000 {
        let request = ListRequest::new(prefix).page_size(page_size).after(cursor.as_ref());
        let page = inspector.list(request).await.unwrap();
        locks.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            return locks;
        }
    }
    panic!("the listing has no end");
}

async fn seen(backend: &PostgresBackend, name: &str) -> LockInfo {
    backend.lookup(Lookup::Key(&key(name))).await.unwrap().expect("it is held")
}

fn label(info: &LockInfo) -> Option<&str> {
    info.label().map(Label::as_str)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_seen_with_its_label_and_hears_that_it_was_asked() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let locker = Locker::new(backend.clone());
    let request = locker.lock("deploy").ttl(Duration::from_secs(600)).label("ada@web-1:77 migrate");
    let guard = request.acquire().await.unwrap();

    let info = seen(&backend, "deploy").await;
    assert_eq!(
        (label(&info), info.ttl(), info.is_asked_for()),
        (Some("ada@web-1:77 migrate"), Some(ttl(600_000)), false)
    );
    assert_eq!(info.renewal(), Renewal::NotYet);
    assert_eq!(label(&list(&backend, "dep", 10).await[0]), Some("ada@web-1:77 migrate"));

    assert_eq!(inspector(&backend).ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    assert!(seen(&backend, "deploy").await.is_asked_for());
    assert!(!guard.is_asked_for(), "it has not spoken with the server since");
    assert!(guard.extend(Duration::from_secs(700)).await.unwrap().is_extended());
    assert!(guard.is_asked_for());
    let info = seen(&backend, "deploy").await;
    assert_eq!((label(&info), info.ttl()), (Some("ada@web-1:77 migrate"), Some(ttl(700_000))));
    assert!(matches!(info.renewal(), Renewal::Renewed { .. }), "{:?}", info.renewal());

    // The mark ends with the lock.
    let id = guard.lock_id().clone();
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Absent);
    let (_, _) = try_acquire(&backend, "deploy", 60_000).await.unwrap();
    let info = seen(&backend, "deploy").await;
    assert_eq!((label(&info), info.is_asked_for()), (None, false));
}

#[tokio::test]
async fn a_client_that_does_not_know_the_column_leaves_no_wrong_name_behind() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let locker = Locker::new(backend.clone());
    let guard = locker.lock("k").label("ada").acquire().await.unwrap();
    assert_eq!(inspector(&backend).ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    let mut other = sql(&url).await;
    // Its lease is over, and the original takes over: it writes the six columns that it knows.
    other.batch_execute(&format!("UPDATE {} SET expires_at_ms = 0", tables.locks)).await.unwrap();
    let theirs = LockId::random();
    assert!(literal::original_acquire(&mut other, &tables, "k", theirs.as_str(), 600_000).await);
    let left: String =
        other.query_one(&format!("SELECT holder::text FROM {}", tables.locks), &[]).await.unwrap().get(0);
    assert!(left.contains("ada"), "the row keeps what it does not know: {left}");

    let info = seen(&backend, "k").await;
    assert_eq!((label(&info), info.ttl(), info.is_asked_for()), (None, None, false));
    assert_eq!(info.renewal(), Renewal::Unknown);
    assert_eq!(label(&list(&backend, "", 10).await[0]), None);

    // A renewal by us of their lock, and one by them of ours.
    assert!(backend.extend(&theirs, ttl(700_000)).await.unwrap().is_extended());
    let info = seen(&backend, "k").await;
    assert_eq!((label(&info), info.ttl(), info.is_asked_for()), (None, Some(ttl(700_000)), false));
    assert!(literal::extend(&mut other, &tables, theirs.as_str(), 900_000).await);
    assert_eq!(seen(&backend, "k").await.renewal(), Renewal::Unknown);
    assert!(guard.release().await.is_ok_and(|outcome| !outcome.is_released()));
}

#[tokio::test]
async fn tables_of_an_earlier_version_work_and_show_no_more_than_they_hold() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let running = tables.at(&url).connect().await.unwrap();
    assert!(try_acquire(&running, "before", 600_000).await.is_some());
    let drop_column = format!("ALTER TABLE {} DROP COLUMN holder", tables.locks);
    sql(&url).await.batch_execute(&drop_column).await.unwrap();

    // One that has worked with the column, and one that never saw it.
    for (name, backend) in [("running", running.clone()), ("later", tables.at(&url).connect().await.unwrap())] {
        let locker = Locker::new(backend.clone());
        let guard = locker.lock(name).ttl(Duration::from_secs(600)).label("ada").acquire().await.unwrap();
        assert!(guard.extend(Duration::from_secs(600)).await.unwrap().is_extended());
        let info = seen(&backend, name).await;
        assert_eq!((label(&info), info.renewal()), (None, Renewal::Unknown));
        assert_eq!(list(&backend, name, 10).await.len(), 1);
        let error = inspector(&backend).ask(guard.lock_id()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("setup_schema")));
        assert!(guard.release().await.unwrap().is_released());
    }

    running.setup_schema().await.unwrap();
    let guard = Locker::new(running.clone()).lock("after").label("ada").acquire().await.unwrap();
    assert_eq!(label(&seen(&running, "after").await), Some("ada"));
    assert_eq!(label(&seen(&running, "before").await), None);
    assert!(guard.release().await.unwrap().is_released());
}

#[tokio::test]
async fn a_listing_is_complete_in_small_steps_and_shows_live_locks_only() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let rows = "SELECT p || n, left(md5(p || n), 22), CASE WHEN n % 3 = 0 THEN 0 ELSE 9000000000000 END, 1,
                lpad(n::text, 15, '0'), p || n FROM generate_series(1, 90) AS n, unnest(ARRAY['a%_', 'ab_']) AS p";
    let owner = sql(&url).await;
    owner.batch_execute(&format!("INSERT INTO {} {rows}", tables.locks)).await.unwrap();
    // Whoever wrote this was no client of ours.
    let damaged = format!("INSERT INTO {} VALUES ('a%_x', 'short', 9000000000000, 1, 'abc', 'a%_x')", tables.locks);
    owner.batch_execute(&damaged).await.unwrap();
    let expected: BTreeSet<String> = (1..=90).filter(|n| n % 3 != 0).map(|n| format!("a%_{n}")).collect();

    for page_size in [1, 7, 1000] {
        let found = list(&backend, "a%_", page_size).await;
        let names: BTreeSet<String> = found.iter().map(|info| info.reveal().key.as_str().to_owned()).collect();
        assert_eq!((names, found.len()), (expected.clone(), 60), "{page_size} a page");
    }

    assert_eq!(list(&backend, "", 50).await.len(), 120);
    assert!(list(&backend, "b", 50).await.is_empty());
    let step = inspector(&backend).list(ListRequest::new("b").page_size(50)).await.unwrap();
    assert!(step.locks.is_empty() && step.next.is_some(), "a step is bounded by what it looks at");
    let counts = inspector(&backend).count().await.unwrap();
    assert_eq!((counts.locks, counts.counters), (121, 0));
}

#[tokio::test]
async fn a_step_of_a_listing_reads_as_many_rows_as_it_may_look_at() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    drop(tables.at(&url).connect().await.unwrap());
    let owner = sql(&url).await;
    let rows = "SELECT 'k' || n, 'id' || n, 9000000000000, 0, '1', 'k' || n FROM generate_series(1, 20000) AS n";
    owner.batch_execute(&format!("INSERT INTO {} {rows}; ANALYZE {}", tables.locks, tables.locks)).await.unwrap();
    let text = include_str!("../../sql/list.sql").replace("{locks}", &tables.locks);
    let text = text.replace("$1", "'k'").replace("$2", "'k5'").replace("$3", "100");

    let plan = owner.query(&format!("EXPLAIN {text}"), &[]).await.unwrap();

    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains(&format!("Index Scan using {}_pkey", tables.locks)) && plan.contains("Limit"), "{plan}");
    assert!(!plan.contains("Sort") && !plan.contains("Seq Scan"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_only_read_lists_and_counts() {
    let (server, tables) = (PostgresServer::start(PostgresOptions::new()), Tables::fresh());
    let backend = tables.at(&server.url()).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 600_000).await.unwrap();
    // The rights that the documentation names.
    server.query("CREATE ROLE viewer LOGIN");
    server.query(&format!("GRANT SELECT ON {}, {} TO viewer", tables.locks, tables.fences));
    let url = server.url().replace("postgres@", "viewer@");

    let viewer = tables.at(&url).auto_create_tables(false).connect().await.unwrap();

    assert_eq!(list(&viewer, "", 10).await.len(), 1);
    let counts = inspector(&viewer).count().await.unwrap();
    assert_eq!((counts.locks, counts.counters), (1, 1));
    assert!(viewer.lookup(Lookup::Key(&key("k"))).await.unwrap().is_some());
    let error = inspector(&viewer).ask(&id).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
    let (key, id) = (key("other"), LockId::random());
    let request = syncguard_core::AcquireRequest::new(&key, &id, ttl(1000));
    assert_eq!(viewer.acquire(request).await.unwrap_err().code(), ErrorCode::AuthFailed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_somebody_waited_for_hints_at_a_change() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let watcher = tables.at(&url).connect().await.unwrap();
    let (id, _) = try_acquire(&backend, "k", 600_000).await.unwrap();
    // One waits for the key and watches everything, over one connection; another only watches.
    let (waiting, both) = (watcher.subscribe(&key("k")).await, inspector(&watcher).changes().await);
    let onlooker = tables.at(&url).connect().await.unwrap();
    let only = inspector(&onlooker).changes().await;

    assert!(backend.release(&id).await.unwrap().is_released());

    for hint in [&waiting, &both, &only] {
        tokio::time::timeout(PATIENCE, hint.woken()).await.expect("a release is heard");
    }
    // And the waiters after it as well: the watcher's registration takes nothing from them.
    let (id, _) = try_acquire(&backend, "k", 600_000).await.unwrap();
    drop((both, only));
    let woken = tokio::spawn(async move { waiting.woken().await });
    assert!(backend.release(&id).await.unwrap().is_released());
    assert!(eventually(PATIENCE, async || woken.is_finished()).await);
}
