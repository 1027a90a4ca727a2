//! Rows that a careless hand or a bad disk changed: nothing panics or hangs, and nothing unreadable is a free lock.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use syncguard::postgres::PostgresBuilder;
use syncguard::{AcquireOutcome, AcquireRequest, AnyBackend, Key, LockBackend, LockId, Ttl};
use syncguard_testkit::{PostgresOptions, PostgresServer};

use crate::hostile::{HANG, count_panics, generate, judge, panics, use_all};

const CASES: usize = 60;
/// How the ids of the owners begin. No message may show it.
const OWNER: &str = "AAAAAAAAAAAAAAAAAA";
/// Long after every test, and long before where numbers are cut.
const FAR: i64 = 4_102_444_800_000;

/// What a column may have become.
#[derive(Clone, Debug)]
enum Cell {
    Null,
    Text(String),
    Number(i64),
}

impl Cell {
    /// What a column of numbers makes of it.
    fn number(&self) -> Option<f64> {
        match self {
            Self::Null => None,
            Self::Text(text) => text.trim().parse().ok(),
            Self::Number(number) => number.to_string().parse().ok(),
        }
    }

    fn literal(&self) -> String {
        match self {
            Self::Null => "NULL".to_owned(),
            Self::Text(text) => format!("'{}'", text.replace('\0', "").replace('\'', "''")),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Some columns of one row, each with another value.
fn damage() -> impl Strategy<Value = Vec<(&'static str, Cell)>> {
    let cell = prop_oneof![
        2 => Just(Cell::Null),
        3 => any::<i64>().prop_map(Cell::Number),
        1 => select(vec![0, 1, -1, FAR, i64::MIN, i64::MAX]).prop_map(Cell::Number),
        3 => ".{0,24}".prop_map(Cell::Text),
        1 => select(vec!["000000000000000", "999999999999999", "1", "{}", "{\"lockId\":7}"])
            .prop_map(|text| Cell::Text(text.to_owned())),
    ];
    let column = select(vec!["lock_id", "expires_at_ms", "acquired_at_ms", "fence", "user_key", "holder"]);
    proptest::collection::vec((column, cell), 1..4)
}

/// Damages one lock after another by `change`, which says whether the storage took the value, and looks what becomes of
/// them.
async fn damage_all(backend: &AnyBackend, mut change: impl FnMut(&str, &str, &str) -> bool) {
    count_panics();
    let before = panics();
    let (mut free, mut refused) = (0, 0);
    for (number, cells) in generate(&damage(), CASES).into_iter().enumerate() {
        let name = format!("k{number}");
        let mut over = false;
        for (column, cell) in &cells {
            let taken = change(&name, column, &cell.literal());
            if taken && *column == "expires_at_ms" {
                over = cell.number().is_some_and(|expires| expires < 2e12);
            }
        }
        let key = Key::new(&name).unwrap();
        let id = LockId::random();
        let asked = backend.acquire(AcquireRequest::new(&key, &id, Ttl::DEFAULT));
        match tokio::time::timeout(HANG, asked).await.expect("it hangs") {
            Ok(AcquireOutcome::Acquired(_)) => {
                assert!(over, "taken: {cells:?}");
                free += 1;
            }
            _ => refused += 1,
        }
        for error in tokio::time::timeout(HANG, use_all(backend, &key)).await.expect("it hangs") {
            let shown = format!("{error} {error:?}");
            assert!(error.to_string().len() <= 1024 && !shown.contains(OWNER), "{shown}");
        }
    }
    println!("{refused} damaged locks kept, {free} whose end was a number in the past taken");
    assert!(refused > CASES / 2 && free > 0);
    assert_eq!(panics(), before, "something panicked");
}

fn rows(names: impl Iterator<Item = String>) -> String {
    let row = |name: String| format!("('{name}', '{OWNER}{name:0>4}', {FAR}, 1, '000000000000001', '{name}')");
    let columns = "key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key";
    let rows: Vec<String> = names.map(row).collect();
    format!("INSERT INTO syncguard_locks ({columns}) VALUES {}", rows.join(", "))
}

fn names() -> impl Iterator<Item = String> {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    (0..asked.unwrap_or(CASES)).map(|number| format!("k{number}"))
}

#[tokio::test]
async fn a_row_that_is_damaged_at_random_is_never_free_on_postgres() {
    let server = PostgresServer::start(PostgresOptions::new());
    let builder = PostgresBuilder::from_url(&server.url()).unwrap();
    let backend = builder.connect().await.unwrap().into_any();
    // A careless hand took the constraints away.
    for column in ["lock_id", "expires_at_ms", "acquired_at_ms", "fence", "user_key"] {
        server.query(&format!("ALTER TABLE syncguard_locks ALTER {column} DROP NOT NULL"));
    }
    server.query(&rows(names()));

    damage_all(&backend, |name, column, literal| {
        let update = format!("UPDATE syncguard_locks SET {column} = {literal} WHERE key = '{name}'");
        server.try_query("postgres", &update).is_ok()
    })
    .await;
}

async fn sqlite(path: &Path) -> syncguard::Result<AnyBackend> {
    syncguard::open(&format!("sqlite:{}", path.display())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_damaged_at_random_is_never_free_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let backend = sqlite(&path).await.unwrap();
    let db = rusqlite::Connection::open(&path).unwrap();
    db.busy_timeout(HANG).unwrap();
    db.execute_batch(&rows(names())).unwrap();

    damage_all(&backend, |name, column, literal| {
        let column = if column == "holder" { "label" } else { column };
        let update = format!("UPDATE syncguard_locks SET {column} = {literal} WHERE key = '{name}'");
        db.execute(&update, []).is_ok_and(|changed| changed == 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_bytes_changed_at_random_makes_sqlite_neither_panic_nor_hang() {
    count_panics();
    let before = panics();
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    let backend = sqlite(&whole).await.unwrap();
    let db = rusqlite::Connection::open(&whole).unwrap();
    db.execute_batch(&rows(names())).unwrap();
    // So that all of it stands in one file.
    db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop((db, backend));
    let bytes = fs::read(&whole).unwrap();
    let changes = proptest::collection::vec((any::<Index>(), any::<u8>()), 1..64);
    let (mut opened, mut unreadable) = (0, 0);
    for (number, changes) in generate(&changes, CASES / 2).into_iter().enumerate() {
        let mut bytes = bytes.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let path = folder.path().join(format!("{number}.db"));
        fs::write(&path, bytes).unwrap();
        match tokio::time::timeout(HANG, sqlite(&path)).await.expect("it hangs") {
            Ok(_) => opened += 1,
            Err(_) => unreadable += 1,
        }
        judge(sqlite(&path)).await.unwrap();
    }
    println!("{opened} damaged files opened, {unreadable} refused");
    assert_eq!(panics(), before, "something panicked");
}
