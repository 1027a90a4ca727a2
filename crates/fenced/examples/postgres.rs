//! A table of `PostgreSQL` that refuses a late holder, by both drivers and by a trigger.
//!
//! `DATABASE_URL=postgres://… cargo run -p syncguard-fenced --features postgres,sqlx --example postgres`

use syncguard_core::{Fence, Key};
use syncguard_fenced::{StaleFence, postgres};
use tokio_postgres::NoTls;

/// Two holders write, and the first one comes back. Returns the balance, and what the late one was told.
pub(crate) async fn story(url: &str) -> Result<(i64, Option<StaleFence>), Box<dyn std::error::Error>> {
    let (mut client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    postgres::install(&client).await?; // once: the table of marks and its functions
    client.batch_execute("CREATE TABLE ledger (balance bigint); INSERT INTO ledger VALUES (100)").await?;
    let key = Key::new("ledger")?; // in a program: `lock.key()` and `lock.fence()`
    postgres::protect(&client, "ledger", &key).await?; // from now on nobody forgets the fence

    // The older holder, by sqlx.
    let pool = sqlx::PgPool::connect(url).await?;
    let mut tx = syncguard_fenced::sqlx::begin(&pool, &key, Fence::new(41)?).await?;
    sqlx::query("UPDATE ledger SET balance = balance - 10").execute(&mut *tx).await?;
    tx.commit().await?;

    // The newer one, by tokio-postgres.
    let tx = postgres::begin(&mut client, &key, Fence::new(42)?).await?;
    tx.execute("UPDATE ledger SET balance = balance - 20", &[]).await?;
    tx.commit().await?;

    // The older one again: its transaction is refused before it begins, and unfenced writes are as well.
    let late = syncguard_fenced::sqlx::begin(&pool, &key, Fence::new(41)?).await.err().and_then(|error| error.stale());
    assert!(client.execute("UPDATE ledger SET balance = 0", &[]).await.is_err());
    Ok((client.query_one("SELECT balance FROM ledger", &[]).await?.get(0), late))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (balance, late) = story(&std::env::var("DATABASE_URL")?).await?;
    println!("the balance is {balance}; the late holder was told: {late:?}");
    Ok(())
}
