//! Does the SQLite backend keep the contract?

use std::time::Duration;

use crate::support::{Scene, connect};
use rusqlite::{Connection, OptionalExtension, params};
use syncguard_conformance::{Budget, Harness, Line, Poison, Unsupported, suite};
use syncguard_core::Key;
use syncguard_sqlite::SqliteBackend;

suite!(sqlite, SqliteHarness::start());

struct SqliteHarness {
    here: Scene,
    elsewhere: Scene,
}

impl SqliteHarness {
    fn start() -> Self {
        let (here, elsewhere) = (Scene::new(), Scene::new());
        drop((here.open(), elsewhere.open()));
        Self { here, elsewhere }
    }
}

impl Harness for SqliteHarness {
    type Backend = SqliteBackend;

    async fn backend(&self) -> SqliteBackend {
        self.here.open()
    }

    async fn elsewhere(&self) -> SqliteBackend {
        self.elsewhere.open()
    }

    async fn cleaning(&self) -> Result<SqliteBackend, Unsupported> {
        Ok(connect(SqliteBackend::builder(self.here.path()).cleanup_in_is_locked(true)).unwrap())
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        let sql = "INSERT OR REPLACE INTO syncguard_fence_counters (fence_key, fence) VALUES (?1, ?2)";
        let value = i64::try_from(value).unwrap();
        self.here.sql().execute(sql, params![format!("fence:{}", key.as_str()), value]).unwrap();
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        // The last that was given: fences may be promised beyond it.
        let sql = "SELECT iif(promised = fence, given, fence) FROM syncguard_fence_counters WHERE fence_key = ?1";
        let name = format!("fence:{}", key.as_str());
        let counter: Option<i64> = self.here.sql().query_row(sql, [name], |row| row.get(0)).optional().unwrap();
        Ok(counter.map(|counter| u64::try_from(counter).unwrap()))
    }

    async fn poison(&self, key: &Key, poison: Poison) -> Result<(), Unsupported> {
        let db = self.here.sql();
        let (lock_id, expiry, fence) = match poison {
            Poison::NotALock => ("not a lock", "9e15", "abc"),
            Poison::Empty => ("", "''", ""),
            Poison::NoExpiry => ("AAAAAAAAAAAAAAAAAAAAAA", "NULL", "000000000000001"),
            Poison::ExpiryIsText => ("AAAAAAAAAAAAAAAAAAAAAA", "'soon'", "000000000000001"),
            Poison::NoOwner => ("", "9000000000000000", "000000000000001"),
            other => return Err(Unsupported::because(format!("the harness does not know {other:?}"))),
        };
        loosen(&db);
        let columns = "key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key";
        let sql = format!("INSERT INTO syncguard_locks ({columns}) VALUES (?1, ?2, {expiry}, 0, ?3, ?1)");
        db.execute(&sql, params![key.as_str(), lock_id, fence]).unwrap();
        Ok(())
    }

    async fn damage_counter(&self, key: &Key) -> Result<(), Unsupported> {
        let sql = "UPDATE syncguard_fence_counters SET fence = 'many' WHERE fence_key = ?1";
        let damaged = self.here.sql().execute(sql, [format!("fence:{}", key.as_str())]);
        damaged.map(drop).map_err(|_| Unsupported::because("the table takes nothing but numbers"))
    }

    async fn entries(&self) -> Result<usize, Unsupported> {
        let count: i64 =
            self.here.sql().query_row("SELECT count(*) FROM syncguard_locks", [], |row| row.get(0)).unwrap();
        Ok(usize::try_from(count).unwrap())
    }

    async fn on_a_line(&self) -> Result<(SqliteBackend, Line), Unsupported> {
        Err(Unsupported::because("the storage is a library in this process; there is no line"))
    }

    async fn hold_up(&self, _: &Key, time: Duration) -> Result<(), Unsupported> {
        let blocking = self.here.block_writers();
        std::thread::spawn(move || {
            std::thread::sleep(time);
            drop(blocking);
        });
        Ok(())
    }

    async fn set_up_again(&self) {
        drop(self.here.open());
    }

    // What it would prove is in crash.rs, with processes that are really killed.
    async fn restart(&self) -> Result<(), Unsupported> {
        Err(Unsupported::because(
            "the storage is a library in this process; `crash` in this binary kills such processes",
        ))
    }

    fn budget(&self) -> Budget {
        Budget { contended_cycles: 10_000, ..Budget::default() }
    }
}

/// Rebuilds the table of locks without the types that keep foreign values out, as a careless hand would.
fn loosen(db: &Connection) {
    db.execute_batch(
        "BEGIN IMMEDIATE;
         CREATE TABLE loose (key PRIMARY KEY, lock_id, expires_at_ms, acquired_at_ms, fence, user_key, label, holder_id,
             ttl_ms, asked);
         INSERT INTO loose SELECT * FROM syncguard_locks;
         DROP TABLE syncguard_locks;
         ALTER TABLE loose RENAME TO syncguard_locks;
         CREATE UNIQUE INDEX idx_syncguard_locks_lock_id ON syncguard_locks (lock_id);
         COMMIT",
    )
    .unwrap();
}
