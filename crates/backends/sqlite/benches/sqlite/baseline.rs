//! What is it measured against?
//!
//! The plain way: the same statements on the same tables, each operation in a transaction of its own with
//! `synchronous = FULL`, SQLite's busy handler between processes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, params};
use syncguard_core::{Clock, Fence, LockId, SystemClock};

const LOCK_OF_KEY: &str = include_str!("../../sql/lock_of_key.sql");
const LOCK_OF_ID: &str = include_str!("../../sql/lock_of_id.sql");
const COUNTER: &str = include_str!("../../sql/counter.sql");
const RAISE_COUNTER: &str = include_str!("../../sql/raise_counter.sql");
const TAKE: &str = include_str!("../../sql/take.sql");
const FREE: &str = include_str!("../../sql/free.sql");

/// One connection, used the plain way.
pub(crate) struct Plain(Connection);

impl Plain {
    pub(crate) fn open(path: &Path) -> Self {
        let db = Connection::open(path).unwrap();
        db.busy_timeout(Duration::from_secs(30)).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL").unwrap();
        let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
        if tables == 0 {
            db.execute_batch(include_str!("../../sql/schema.sql")).unwrap();
            db.execute_batch(include_str!("../../sql/promise_columns.sql")).unwrap();
        }
        Self(db)
    }

    fn transact(&self, work: impl FnOnce(&Connection)) {
        self.0.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
        work(&self.0);
        self.0.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
    }

    fn acquire(&self, key: &str, lock_id: &LockId) {
        self.transact(|db| {
            let now = SystemClock.wall().as_millis();
            let held = db.prepare_cached(LOCK_OF_KEY).unwrap().query_row([key], |row| row.get::<_, i64>(2)).optional();
            assert!(held.unwrap().is_none(), "every task has its own key");
            let fence_key = format!("fence:{key}");
            let counter = db.prepare_cached(COUNTER).unwrap().query_row([&fence_key], |row| row.get(0)).optional();
            let next = counter.unwrap().unwrap_or(0_i64) + 1;
            db.prepare_cached(RAISE_COUNTER).unwrap().execute(params![fence_key, next, next, None::<i64>]).unwrap();
            let fence = Fence::new(u64::try_from(next).unwrap()).unwrap().to_string();
            let label: Option<&str> = None;
            let row = params![key, lock_id.as_str(), now + 30_000, now, fence, key, label, 30_000];
            db.prepare_cached(TAKE).unwrap().execute(row).unwrap();
        });
    }

    fn release(&self, lock_id: &LockId) {
        self.transact(|db| {
            let mut find = db.prepare_cached(LOCK_OF_ID).unwrap();
            let key: String = find.query_row([lock_id.as_str()], |row| row.get(0)).unwrap();
            db.prepare_cached(FREE).unwrap().execute(params![key, lock_id.as_str()]).unwrap();
        });
    }

    /// One acquire and one release of a free lock.
    pub(crate) fn pair(&self, key: &str) {
        let lock_id = LockId::random();
        self.acquire(key, &lock_id);
        self.release(&lock_id);
    }
}

/// Threads that share one connection, each operation alone: more connections would only queue at the file.
pub(crate) fn pairs_per_second(path: &Path, tasks: usize, sample: Duration) -> f64 {
    let plain = Arc::new(Mutex::new(Plain::open(path)));
    let start = Instant::now();
    let threads: Vec<_> = (0..tasks)
        .map(|task| {
            let plain = plain.clone();
            std::thread::spawn(move || {
                let key = format!("task:{task}");
                let mut pairs = 0_u32;
                while start.elapsed() < sample {
                    let lock_id = LockId::random();
                    plain.lock().unwrap().acquire(&key, &lock_id);
                    plain.lock().unwrap().release(&lock_id);
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    let pairs: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    f64::from(pairs) / start.elapsed().as_secs_f64()
}
