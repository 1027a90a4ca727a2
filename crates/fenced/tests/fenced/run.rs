//! Does `run_fenced` commit under the lock's own fence, and nothing else?

use std::time::Duration;

use crate::support::ledger;
use rusqlite::Connection;
use syncguard_core::{Fence, Key, Locker, MemoryBackend};
use syncguard_fenced::{FenceError, RunFenced, postgres, sqlite};

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE ledger (balance INTEGER)").unwrap();
    sqlite::install(&db).unwrap();
    db
}

fn rows(db: &Connection) -> i64 {
    db.query_row("SELECT count(*) FROM ledger", [], |row| row.get(0)).unwrap()
}

fn insert(tx: &rusqlite::Transaction<'_>) {
    tx.execute(INSERT, []).unwrap();
}

#[tokio::test]
async fn the_work_is_committed_under_the_fence_of_its_lock() {
    let locker = Locker::new(MemoryBackend::new());
    let mut db = database();
    for _ in 0..3 {
        let done = locker.lock("ledger").run_fenced(&mut db, |tx| {
            insert(tx);
            Ok::<_, FenceError>("done")
        });
        assert_eq!(done.await.unwrap(), "done");
    }
    assert_eq!(rows(&db), 3);
    let stale = sqlite::begin(&mut db, &Key::new("ledger").unwrap(), Fence::new(2).unwrap()).unwrap_err().stale();
    assert_eq!(stale.unwrap().seen, Fence::new(3).unwrap());
    assert!(!locker.is_locked("ledger").await.unwrap());
}

#[tokio::test]
async fn older_holders_are_refused_before_the_work_begins() {
    let url = syncguard_testkit::fresh_postgres_database();
    let connect = crate::support::ledger::connect;
    let (mut client, mut older) = (connect(&url).await, connect(&url).await);
    postgres::install(&client).await.unwrap();
    let locker = Locker::new(MemoryBackend::new());
    drop(locker.lock("ledger").acquire().await.unwrap());

    // The mark is on the disk: the older one hears of it at once, and does not wait for this transaction.
    let older = &mut older;
    let stale = locker.lock("ledger").run_fenced(&mut client, move |_| {
        Box::pin(async move {
            let key = Key::new("ledger").unwrap();
            Ok::<_, FenceError>(postgres::begin(older, &key, Fence::FIRST).await.map(drop).unwrap_err().stale())
        })
    });
    let stale = stale.await.unwrap();

    assert_eq!(stale.unwrap().seen, Fence::new(2).unwrap());
}

#[derive(Debug)]
enum Mine {
    Fence(FenceError),
    Poor,
}

impl From<FenceError> for Mine {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

#[tokio::test]
async fn work_that_fails_leaves_nothing_behind() {
    let locker = Locker::new(MemoryBackend::new());
    let mut db = database();

    let failed = locker.lock("ledger").run_fenced(&mut db, |tx| {
        insert(tx);
        Err::<(), _>(Mine::Poor)
    });
    let error = failed.await.unwrap_err();

    assert!(matches!(error, Mine::Poor));
    assert_eq!(rows(&db), 0);
    assert!(!locker.is_locked("ledger").await.unwrap());
}

#[tokio::test]
async fn a_stale_lock_does_not_begin_the_work() {
    let locker = Locker::new(MemoryBackend::new());
    let mut db = database();
    sqlite::begin(&mut db, &Key::new("ledger").unwrap(), Fence::MAX).unwrap().commit().unwrap();

    let refused = locker.lock("ledger").run_fenced(&mut db, |_| -> Result<(), Mine> { panic!("the work began") });
    let error = refused.await.unwrap_err();

    let Mine::Fence(error) = error else { panic!("{error:?}") };
    assert_eq!(error.stale().unwrap().seen, Fence::MAX);
}

const INSERT: &str = "INSERT INTO ledger VALUES (1)";

#[tokio::test]
async fn both_drivers_of_postgres_are_gates_and_undo_work_that_outlives_its_lease() {
    let url = syncguard_testkit::fresh_postgres_database();
    let mut client = ledger::connect(&url).await;
    postgres::install(&client).await.unwrap();
    client.batch_execute("CREATE TABLE ledger (balance bigint)").await.unwrap();
    let mut pool = sqlx::PgPool::connect(&url).await.unwrap();
    let locker = Locker::new(MemoryBackend::new());

    let first = locker.lock("ledger").run_fenced(&mut client, |tx| {
        Box::pin(async move { Ok::<_, FenceError>(tx.execute(INSERT, &[]).await.unwrap()) })
    });
    let first = first.await.unwrap();
    let second = locker.lock("ledger").run_fenced(&mut pool, |tx| {
        Box::pin(
            async move { Ok::<_, FenceError>(sqlx::query(INSERT).execute(&mut **tx).await.unwrap().rows_affected()) },
        )
    });
    let second = second.await.unwrap();

    assert_eq!((first, second), (1, 1));
    let mark: i64 = client.query_one("SELECT fence FROM syncguard_marks", &[]).await.unwrap().get(0);
    assert_eq!(mark, 2);

    let slow = locker.lock("ledger").ttl(Duration::from_millis(500)).run_fenced(&mut client, |tx| {
        Box::pin(async move {
            tx.execute(INSERT, &[]).await.unwrap();
            std::future::pending::<Result<(), FenceError>>().await
        })
    });
    assert!(matches!(slow.await.unwrap_err(), FenceError::Lost(_)));
    let rows: i64 = client.query_one("SELECT count(*) FROM ledger", &[]).await.unwrap().get(0);
    assert_eq!(rows, 2, "work that outlived its lease is undone");
}

#[tokio::test]
async fn a_loss_during_the_commit_does_not_say_that_nothing_was_committed() {
    let url = syncguard_testkit::fresh_postgres_database();
    let (mut client, reader) = (ledger::connect(&url).await, ledger::connect(&url).await);
    postgres::install(&client).await.unwrap();
    let slow_commit = "CREATE TABLE ledger (balance bigint);
        CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON ledger INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION nap()";
    client.batch_execute(slow_commit).await.unwrap();
    let locker = Locker::new(MemoryBackend::new());

    let lost = locker.lock("ledger").ttl(Duration::from_millis(500)).run_fenced(&mut client, |tx| {
        Box::pin(async move { Ok::<_, FenceError>(tx.execute(INSERT, &[]).await.unwrap()) })
    });

    assert!(matches!(lost.await.unwrap_err(), FenceError::Lost(_)));
    let count = async || reader.query_one("SELECT count(*) FROM ledger", &[]).await.unwrap().get::<_, i64>(0);
    for _ in 0..1_000 {
        if count().await == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the commit that was on its way did not happen");
}
