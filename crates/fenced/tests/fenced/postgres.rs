//! Does a PostgreSQL database refuse what it should?

use syncguard_core::{ErrorCode, Fence, Key};
use syncguard_fenced::{FenceError, StaleFence, postgres};
use syncguard_testkit::fresh_postgres_database;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, IsolationLevel};

use crate::support::ledger::connect;

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn key() -> Key {
    Key::new("it's a \"ledger\"").unwrap()
}

async fn database() -> (String, Client) {
    let url = fresh_postgres_database();
    let client = connect(&url).await;
    postgres::install(&client).await.unwrap();
    client
        .batch_execute("CREATE TABLE \"led ger\" (balance bigint); INSERT INTO \"led ger\" VALUES (0)")
        .await
        .unwrap();
    (url, client)
}

async fn balance(client: &Client) -> i64 {
    client.query_one("SELECT balance FROM \"led ger\"", &[]).await.unwrap().get(0)
}

const UPDATE: &str = "UPDATE \"led ger\" SET balance = balance + 1";

#[tokio::test]
async fn a_refusal_aborts_the_transaction_even_if_nobody_looks() {
    let (_, mut client) = database().await;
    postgres::begin(&mut client, &key(), fence(42)).await.unwrap().commit().await.unwrap();

    let tx = client.transaction().await.unwrap();
    tx.execute(UPDATE, &[]).await.unwrap();
    let stale = postgres::check(&tx, &key(), fence(41)).await.unwrap_err().stale();
    // The caller ignores the answer and commits; PostgreSQL makes a rollback of it.
    let _ = tx.commit().await;

    assert_eq!(stale, Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(balance(&client).await, 0);
}

#[tokio::test]
async fn a_mark_is_remembered_only_with_the_write_it_came_with() {
    let (_, mut client) = database().await;
    postgres::begin(&mut client, &key(), fence(50)).await.unwrap().rollback().await.unwrap();

    postgres::begin(&mut client, &key(), fence(49)).await.unwrap().commit().await.unwrap();

    assert!(postgres::begin(&mut client, &key(), fence(48)).await.is_err());
}

#[tokio::test]
async fn an_equal_fence_writes_no_new_mark() {
    let (_, mut client) = database().await;
    let row = "SELECT ctid::text FROM syncguard_marks";
    postgres::begin(&mut client, &key(), fence(7)).await.unwrap().commit().await.unwrap();
    let before: String = client.query_one(row, &[]).await.unwrap().get(0);
    for _ in 0..3 {
        postgres::begin(&mut client, &key(), fence(7)).await.unwrap().commit().await.unwrap();
    }
    let after: String = client.query_one(row, &[]).await.unwrap().get(0);
    postgres::begin(&mut client, &key(), fence(8)).await.unwrap().commit().await.unwrap();
    let moved: String = client.query_one(row, &[]).await.unwrap().get(0);

    assert_eq!(before, after);
    assert_ne!(after, moved, "the row has no new version although it changed: the test would see nothing");
}

#[tokio::test]
async fn a_newer_holder_waits_until_the_older_one_has_ended_also_when_its_fence_was_known() {
    for isolation in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let (url, mut older) = database().await;
        let mut newer = connect(&url).await;
        let watcher = connect(&url).await;
        postgres::begin(&mut older, &key(), fence(41)).await.unwrap().commit().await.unwrap();
        let tx = older.build_transaction().isolation_level(isolation).start().await.unwrap();
        postgres::check(&tx, &key(), fence(41)).await.unwrap();

        let begin_newer = tokio::spawn(async move {
            postgres::begin(&mut newer, &key(), fence(42)).await.unwrap().commit().await.unwrap();
        });
        // It has come as far as the row's lock, and waits there.
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        while watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(!begin_newer.is_finished(), "it did not wait");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        tx.execute(UPDATE, &[]).await.unwrap();
        tx.commit().await.unwrap();
        begin_newer.await.unwrap();

        assert_eq!(balance(&watcher).await, 1, "{isolation:?}");
    }
}

#[tokio::test]
async fn check_with_sends_the_first_statement_along_and_a_stale_one_changes_nothing() {
    let (_, mut client) = database().await;
    let tx = client.transaction().await.unwrap();
    let rows = postgres::check_with(&tx, &key(), fence(42), tx.execute_typed(UPDATE, &[])).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rows, 1);

    let tx = client.transaction().await.unwrap();
    let refused = postgres::check_with(&tx, &key(), fence(41), tx.execute_typed(UPDATE, &[])).await;
    let _ = tx.commit().await;

    assert_eq!(refused.unwrap_err().stale().unwrap().seen, fence(42));
    assert_eq!(balance(&client).await, 1);
}

#[tokio::test]
async fn a_protected_table_takes_nothing_from_code_that_forgets() {
    let (_, mut client) = database().await;
    postgres::protect(&client, "led ger", &key()).await.unwrap();
    postgres::protect(&client, "led ger", &key()).await.unwrap();
    let writes = [UPDATE, "INSERT INTO \"led ger\" VALUES (1)", "DELETE FROM \"led ger\"", "TRUNCATE \"led ger\""];
    let undeclared = SqlState::from_code("SG002");

    for write in writes {
        let error = client.batch_execute(write).await.unwrap_err();
        assert_eq!(error.code(), Some(&undeclared), "{write}");
    }
    // Through begin, and by hand.
    let tx = postgres::begin(&mut client, &key(), fence(42)).await.unwrap();
    tx.execute(UPDATE, &[]).await.unwrap();
    tx.commit().await.unwrap();
    client.batch_execute(&format!("BEGIN; SET LOCAL syncguard.fence = 43; {UPDATE}; COMMIT")).await.unwrap();
    // A fence is local to its transaction: the next one of the same session has none.
    assert_eq!(client.batch_execute(UPDATE).await.unwrap_err().code(), Some(&undeclared));
    let late = client.batch_execute(&format!("BEGIN; SET LOCAL syncguard.fence = 42; {UPDATE}; COMMIT")).await;
    client.batch_execute("ROLLBACK").await.unwrap();

    let error = late.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::from_code("SG001")));
    assert_eq!(error.as_db_error().unwrap().detail(), Some("43"));
    assert_eq!(balance(&client).await, 2);
}

#[tokio::test]
async fn the_fence_of_another_key_opens_no_protected_table() {
    let (_, mut client) = database().await;
    postgres::protect(&client, "led ger", &key()).await.unwrap();

    let tx = postgres::begin(&mut client, &Key::new("other").unwrap(), Fence::MAX).await.unwrap();
    let error = tx.execute(UPDATE, &[]).await.unwrap_err();

    assert_eq!(error.code(), Some(&SqlState::from_code("SG002")));
}

#[tokio::test]
async fn many_may_install_at_once() {
    let url = fresh_postgres_database();
    let installs = (0..8).map(async |_| postgres::install(&connect(&url).await).await.unwrap());
    futures_util::future::join_all(installs).await;
    assert!(postgres::begin(&mut connect(&url).await, &key(), fence(1)).await.is_ok());
}

#[tokio::test]
async fn without_the_migration_a_check_fails_and_says_what_to_do() {
    let mut client = connect(&fresh_postgres_database()).await;
    let error = postgres::begin(&mut client, &key(), fence(1)).await.map(drop).unwrap_err();
    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(failure.hint().unwrap().contains("migration"));
    assert!(!format!("{error:?}").contains("it's a"), "{error:?}");
}

#[tokio::test]
async fn sqlx_shares_marks_functions_and_triggers() {
    let (url, mut client) = database().await;
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    syncguard_fenced::sqlx::install(&pool).await.unwrap();
    postgres::protect(&client, "led ger", &key()).await.unwrap();

    let mut tx = syncguard_fenced::sqlx::begin(&pool, &key(), fence(42)).await.unwrap();
    sqlx::query(UPDATE).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let late = postgres::begin(&mut client, &key(), fence(41)).await.map(drop).unwrap_err();
    postgres::begin(&mut client, &key(), fence(43)).await.unwrap().commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let later = syncguard_fenced::sqlx::check(&mut tx, &key(), fence(42)).await.unwrap_err();
    drop(tx);

    assert_eq!(late.stale(), Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(later.stale(), Some(StaleFence { offered: fence(42), seen: fence(43) }));
    assert_eq!(balance(&client).await, 1);
}
