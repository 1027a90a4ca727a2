//! Replicas that all start at once, and one of them migrates the database.
//!
//! The others wait, find nothing left to do and go on. A replica that was paused in the middle cannot go on after a
//! newer one: its transaction is refused. `cargo run -p syncguard --features sqlite,fenced --example migrations`

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use syncguard::Locker;
use syncguard::fenced::{FenceError, RunFenced, sqlite};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// In this order, for ever; new ones go to the end.
const MIGRATIONS: [&str; 3] = [
    "CREATE TABLE orders (id INTEGER PRIMARY KEY)",
    "ALTER TABLE orders ADD COLUMN paid INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX orders_paid ON orders (paid)",
];

/// Brings the database up to date, and returns how many migrations this replica ran.
pub(crate) async fn migrate(locker: &Locker, database: &Path) -> Result<usize, Error> {
    let mut db = Connection::open(database)?;
    db.busy_timeout(Duration::from_secs(5))?;
    sqlite::install(&db)?;
    let lock = locker.lock("migrate:orders").timeout(Duration::from_secs(600)).label("replica").keep_alive();
    let ran = lock.run_fenced(&mut db, |tx| {
        let done: u32 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let missing = MIGRATIONS.iter().skip(done.try_into()?);
        for migration in missing.clone() {
            tx.execute_batch(migration)?;
        }
        tx.pragma_update(None, "user_version", i64::try_from(MIGRATIONS.len())?)?;
        Ok::<_, Error>(missing.count())
    });
    match ran.await {
        Err(error) if error.downcast_ref::<FenceError>().is_some_and(|error| error.stale().is_some()) => Ok(0),
        ran => ran,
    }
}

/// Twenty replicas start; returns what each of them did.
pub(crate) async fn story(url: &str, database: &Path) -> Result<Vec<usize>, Error> {
    let locker = syncguard::connect(url).await?;
    let mut replicas = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (locker, database) = (locker.clone(), database.to_owned());
        replicas.spawn(async move { migrate(&locker, &database).await });
    }
    let ran = replicas.join_all().await.into_iter().collect();
    locker.shutdown(Duration::from_secs(5)).await;
    ran
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir();
    let url = format!("sqlite:{}", folder.join("syncguard-migrations-locks.db").display());
    println!("{:?}", story(&url, &folder.join("syncguard-migrations.db")).await?);
    Ok(())
}
