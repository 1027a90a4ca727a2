//! Does an SQLite database refuse what it should?

use rusqlite::{Connection, TransactionBehavior};
use syncguard_core::{ErrorCode, Fence, Key};
use syncguard_fenced::{FenceError, StaleFence, sqlite};

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

fn key() -> Key {
    Key::new("it's a \"ledger\"").unwrap()
}

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE \"led ger\" (balance INTEGER)").unwrap();
    sqlite::install(&db).unwrap();
    sqlite::install(&db).unwrap();
    db
}

#[test]
fn a_mark_is_remembered_only_with_the_write_it_came_with() {
    let mut db = database();
    let tx = sqlite::begin(&mut db, &key(), fence(50)).unwrap();
    tx.execute("INSERT INTO \"led ger\" VALUES (1)", []).unwrap();
    tx.rollback().unwrap();

    // Nothing was written under 50, so 49 is not stale.
    sqlite::begin(&mut db, &key(), fence(49)).unwrap().commit().unwrap();
    sqlite::begin(&mut db, &key(), fence(50)).unwrap().commit().unwrap();

    let stale = sqlite::begin(&mut db, &key(), fence(49)).unwrap_err().stale();
    assert_eq!(stale, Some(StaleFence { offered: fence(49), seen: fence(50) }));
}

#[test]
fn a_check_works_in_every_kind_of_transaction() {
    let mut db = database();
    let kinds = [TransactionBehavior::Deferred, TransactionBehavior::Immediate, TransactionBehavior::Exclusive];
    for (number, kind) in (10..).zip(kinds) {
        let tx = db.transaction_with_behavior(kind).unwrap();
        sqlite::check(&tx, &key(), fence(number)).unwrap();
        sqlite::check(&tx, &key(), fence(number)).unwrap();
        tx.commit().unwrap();
        let tx = db.transaction_with_behavior(kind).unwrap();
        assert!(sqlite::check(&tx, &key(), fence(number - 1)).unwrap_err().stale().is_some());
    }
}

#[test]
fn a_deferred_transaction_that_was_overtaken_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("data.db")).unwrap();
    let (mut slow, mut quick) = (open(), open());
    slow.pragma_update(None, "journal_mode", "WAL").unwrap();
    slow.execute_batch("CREATE TABLE ledger (balance INTEGER)").unwrap();
    sqlite::install(&slow).unwrap();
    sqlite::begin(&mut slow, &key(), fence(41)).unwrap().commit().unwrap();

    // An equal fence writes no mark, so this transaction has only read when the newer holder comes.
    let tx = slow.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    sqlite::check(&tx, &key(), fence(41)).unwrap();
    sqlite::begin(&mut quick, &key(), fence(42)).unwrap().commit().unwrap();

    let late = tx.execute("INSERT INTO ledger VALUES (41)", []);
    assert_eq!(late.unwrap_err().sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
}

#[test]
fn without_its_table_a_check_fails_and_does_not_accept() {
    let mut db = Connection::open_in_memory().unwrap();
    let error = sqlite::begin(&mut db, &key(), fence(1)).unwrap_err();
    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(!format!("{error:?}").contains("it's a"), "{error:?}");
}
