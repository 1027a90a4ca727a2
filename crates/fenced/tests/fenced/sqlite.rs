//! Does an SQLite database refuse what it should?

use rusqlite::{Connection, TransactionBehavior};
use syncguard_core::{ErrorCode, Fence, Key};
use syncguard_fenced::sqlite::{self, Declarations};
use syncguard_fenced::{FenceError, StaleFence};

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

const WRITES: [&str; 4] = [
    "INSERT INTO \"led ger\" VALUES (1)",
    "UPDATE \"led ger\" SET balance = 2",
    "DELETE FROM \"led ger\"",
    "INSERT OR REPLACE INTO \"led ger\" VALUES (3)",
];

#[test]
fn a_mark_is_remembered_only_with_the_write_it_came_with() {
    let mut db = database();
    let tx = sqlite::begin(&mut db, &key(), fence(50)).unwrap();
    tx.execute(WRITES[0], []).unwrap();
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
fn a_protected_table_takes_nothing_from_code_that_forgets() {
    let db = database();
    db.execute(WRITES[0], []).unwrap();
    sqlite::protect(&db, "led ger", &key()).unwrap();
    sqlite::protect(&db, "led ger", &key()).unwrap();

    // A connection that never heard of fences.
    for write in WRITES {
        assert!(db.execute(write, []).is_err(), "{write}");
    }
    // One that has, and forgot.
    let fences = Declarations::on(&db).unwrap();
    for write in WRITES {
        let error = db.execute(write, []).unwrap_err().to_string();
        assert!(error.contains("no fence is declared"), "{error}");
    }
    // The fence of something else is none.
    fences.declare(&Key::new("other").unwrap(), Fence::MAX);
    assert!(db.execute(WRITES[0], []).is_err());

    fences.declare(&key(), fence(42));
    for write in WRITES {
        db.execute(write, []).unwrap();
    }
    fences.declare(&key(), fence(41));
    for write in WRITES {
        let refused = db.execute(write, []);
        // A statement that changes no row fires no trigger; there is one row, so all do.
        assert!(refused.unwrap_err().to_string().contains("stale"), "{write}");
    }
    fences.withdraw(&key());
    assert!(db.execute(WRITES[0], []).is_err());
    let rows: i64 = db.query_row("SELECT count(*) FROM \"led ger\"", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[test]
fn a_trigger_remembers_the_fence_for_everybody() {
    let mut db = database();
    sqlite::protect(&db, "led ger", &key()).unwrap();
    let fences = Declarations::on(&db).unwrap();
    fences.declare(&key(), fence(42));
    db.execute(WRITES[0], []).unwrap();

    let stale = sqlite::begin(&mut db, &key(), fence(41)).unwrap_err().stale();

    assert_eq!(stale, Some(StaleFence { offered: fence(41), seen: fence(42) }));
}

#[test]
fn without_its_table_a_check_fails_and_does_not_accept() {
    let mut db = Connection::open_in_memory().unwrap();
    let error = sqlite::begin(&mut db, &key(), fence(1)).unwrap_err();
    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(!format!("{error:?}").contains("it's a"), "{error:?}");
}

#[test]
fn protecting_a_table_that_is_not_there_fails_and_does_not_repeat_the_key() {
    let db = Connection::open_in_memory().unwrap();
    let error = sqlite::protect(&db, "absent", &Key::new("canary").unwrap()).unwrap_err();
    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::InvalidArgument);
    assert!(!format!("{error:?}").contains("canary") && std::error::Error::source(&error).is_none(), "{error:?}");
}
