//! A table of an `SQLite` file that refuses a late holder: lock, check, write and commit in one call.
//!
//! `cargo run -p syncguard-fenced --features sqlite --example sqlite`

use std::time::Duration;

use rusqlite::{Connection, Transaction};
use syncguard_core::{Locker, MemoryBackend};
use syncguard_fenced::{FenceError, RunFenced, StaleFence, sqlite};

/// One holder falls asleep, a second one takes money out, the first one wakes up and tries to.
pub(crate) async fn story(db: &mut Connection) -> Result<(i64, Option<StaleFence>), Box<dyn std::error::Error>> {
    let locker = Locker::new(MemoryBackend::new()); // a backend that all your processes share
    db.execute_batch("CREATE TABLE ledger (balance INTEGER); INSERT INTO ledger VALUES (100)")?;
    sqlite::install(db)?; // once: the table of marks

    let sleeper = locker.lock("ledger").ttl(Duration::from_millis(50)).acquire().await?;
    let take = |tx: &mut Transaction<'_>| {
        let changed = tx.execute("UPDATE ledger SET balance = balance - 10", []);
        changed.map(drop).map_err(|error| FenceError::from(syncguard_core::LockError::internal(error.to_string())))
    };
    locker.lock("ledger").run_fenced(db, take).await?; // as soon as the lease of the sleeper is over

    let late = sqlite::begin(db, sleeper.key(), sleeper.fence()).err().and_then(|error| error.stale());
    Ok((db.query_row("SELECT balance FROM ledger", [], |row| row.get(0))?, late))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (balance, late) = story(&mut Connection::open_in_memory()?).await?;
    println!("the balance is {balance}; the sleeper was told: {late:?}");
    Ok(())
}
