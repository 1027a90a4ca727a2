//! Does a lock taken inside a transaction share its fate?

use crate::support::{Tables, key, sql, try_acquire, ttl};
use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockId};
use syncguard_testkit::postgres_url;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_comes_with_the_commit_and_goes_with_the_rollback() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let mut client = sql(&url).await;
    let (key, id) = (key("invoice"), LockId::random());
    let request = AcquireRequest::new(&key, &id, ttl(20_000));

    let tx = client.transaction().await.unwrap();
    assert!(matches!(backend.acquire_in_tx(&tx, request).await.unwrap(), AcquireOutcome::Acquired(_)));
    tx.rollback().await.unwrap();
    assert!(!backend.is_locked(&key).await.unwrap());

    let tx = client.transaction().await.unwrap();
    tx.batch_execute("SET LOCAL lock_timeout = '7s'; SET LOCAL statement_timeout = '8s'").await.unwrap();
    let AcquireOutcome::Acquired(lease) = backend.acquire_in_tx(&tx, request).await.unwrap() else {
        panic!("it is free")
    };
    // The caller's own limits are back.
    let limits = "SELECT current_setting('lock_timeout') || current_setting('statement_timeout')";
    assert_eq!(tx.query_one(limits, &[]).await.unwrap().get::<_, String>(0), "7s8s");
    assert!(!backend.is_locked(&key).await.unwrap(), "not before the commit");
    tx.commit().await.unwrap();
    assert!(backend.is_locked(&key).await.unwrap());
    assert_eq!(lease.fence.get(), 1);

    // Held now: contended inside a transaction as well, and the owner may release as ever.
    let tx = client.transaction().await.unwrap();
    let stranger = LockId::random();
    let other = AcquireRequest::new(request.key, &stranger, request.ttl);
    assert!(matches!(backend.acquire_in_tx(&tx, other).await.unwrap(), AcquireOutcome::Contended(_)));
    tx.commit().await.unwrap();
    assert!(backend.release(&id).await.unwrap().is_released());
    assert!(try_acquire(&backend, "invoice", 1000).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_wait_for_the_transaction_and_then_see_its_lock() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let mut client = sql(&url).await;
    let (key, id) = (key("k"), LockId::random());
    let request = AcquireRequest::new(&key, &id, ttl(20_000));
    let tx = client.transaction().await.unwrap();
    let _ = backend.acquire_in_tx(&tx, request).await.unwrap();

    let contender = tokio::spawn({
        let backend = backend.clone();
        async move { try_acquire(&backend, "k", 1000).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!contender.is_finished(), "the outcome is not known before the commit");
    tx.commit().await.unwrap();
    assert!(contender.await.unwrap().is_none());
}

#[tokio::test]
async fn an_older_snapshot_is_refused() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).connect().await.unwrap();
    let mut client = sql(&url).await;
    let (key, id) = (key("k"), LockId::random());
    let request = AcquireRequest::new(&key, &id, ttl(20_000));
    for level in [tokio_postgres::IsolationLevel::RepeatableRead, tokio_postgres::IsolationLevel::Serializable] {
        let tx = client.build_transaction().isolation_level(level).start().await.unwrap();
        let error = backend.acquire_in_tx(&tx, request).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        tx.rollback().await.unwrap();
    }
}
