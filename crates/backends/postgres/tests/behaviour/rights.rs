//! Can the roles of the documentation do what it says, and nothing else?

use crate::support::rights::Role;
use crate::support::{Tables, key, sql, try_acquire, ttl};
use syncguard_core::{AcquireRequest, ErrorCode, ListRequest, LockBackend, LockId, Lookup};
use syncguard_testkit::postgres_url;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_viewer_sees_every_lock_and_changes_none() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let holder = tables.at(&url).connect().await.unwrap();
    let (id, _) = try_acquire(&holder, "k", 600_000).await.unwrap();
    let as_viewer = Role::create(&url, "viewer", &tables).await.url(&url);
    let viewer = tables.at(&as_viewer).auto_create_tables(false).connect().await.unwrap();

    let looks = viewer.inspector().unwrap();
    assert_eq!(looks.list(ListRequest::new("")).await.unwrap().locks.len(), 1);
    let counts = looks.count().await.unwrap();
    assert_eq!((counts.locks, counts.counters), (1, 1));
    assert!(viewer.is_locked(&key("k")).await.unwrap());
    assert!(viewer.lookup(Lookup::Key(&key("k"))).await.unwrap().is_some());

    let (other, new) = (key("other"), LockId::random());
    let refused = viewer.acquire(AcquireRequest::new(&other, &new, ttl(600_000))).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::AuthFailed, "{refused:?}");
    assert_eq!(viewer.extend(&id, ttl(600_000)).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert_eq!(viewer.release(&id).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert_eq!(looks.ask(&id).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert_eq!(viewer.purge_expired().await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert!(holder.release(&id).await.unwrap().is_released(), "the lock is as it was");
    assert!(!holder.is_locked(&other).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_locker_can_neither_create_nor_lower_a_counter_by_deleting_it() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    drop(tables.at(&url).connect().await.unwrap());
    let as_locker = Role::create(&url, "locker", &tables).await.url(&url);

    let locker = tables.at(&as_locker).auto_create_tables(false).connect().await.unwrap();
    try_acquire(&locker, "k", 600_000).await.unwrap();
    let client = sql(&as_locker).await;
    for statement in [
        format!("DELETE FROM {}", tables.fences),
        format!("TRUNCATE {}", tables.fences),
        format!("DROP TABLE {}", tables.locks),
        format!("UPDATE {} SET fence_key = 'x'", tables.fences),
    ] {
        let refused = client.batch_execute(&statement).await.expect_err(&statement);
        assert_eq!(refused.code().unwrap().code(), "42501", "{statement}");
    }
    let error = Tables::fresh().at(&as_locker).connect().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
}
