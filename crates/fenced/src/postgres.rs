//! How does a PostgreSQL database refuse a stale writer?
//!
//! The mark is a row in the database of the data, and both are written by one transaction of the caller. The comparison
//! is a function in the database (`sql/postgres.sql`), so that this module, `sqlx`, `psql` and the trigger cannot
//! disagree. A refusal is an SQL error: it aborts the transaction, and not even a caller who ignores it can commit.

use futures_util::future::join;
use syncguard_core::{Fence, Key};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, GenericClient, Row, Transaction};

use crate::postgres_shared::{BEGIN, CHECK, HIGHEST, PROTECT, TAKE_OVER, fence_of, refusal_or};
use crate::{FenceError, Result};

pub use crate::postgres_shared::{EndedSession, MIGRATION, PostgresOptions};

/// Creates the table and the functions. Safe to run again, also by many at once.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what PostgreSQL reports.
pub async fn install(client: &Client) -> Result<()> {
    // Two that create the same function at once collide in the catalogue; the lock is held until the batch ends.
    let batch = format!("BEGIN; SELECT pg_advisory_xact_lock(hashtext('syncguard_marks')); {MIGRATION} COMMIT;");
    client.batch_execute(&batch).await.map_err(|error| failed(error, None))
}

/// Starts a transaction for writes under this fence. Tables under the trigger accept its writes.
///
/// ```no_run
/// # async fn example(
/// #     client: &mut tokio_postgres::Client, lock: &syncguard_core::LockHandle,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let tx = syncguard_fenced::postgres::begin(client, lock.key(), lock.fence()).await?;
/// tx.execute("UPDATE ledger SET balance = balance - 10", &[]).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Stale`](FenceError::Stale) when a higher fence was accepted, [`Failed`](FenceError::Failed) with what PostgreSQL
/// reports.
///
/// # Cancel safety
/// Dropping the future rolls back.
pub async fn begin<'c>(client: &'c mut Client, key: &Key, fence: Fence) -> Result<Transaction<'c>> {
    let tx = client.transaction().await.map_err(|error| failed(error, None))?;
    call(&tx, BEGIN, key, fence).await?;
    Ok(tx)
}

/// Accepts a fence inside the caller's transaction, and remembers it if that commits.
///
/// # Errors
/// As [`begin`]. The transaction is aborted then.
///
/// # Cancel safety
/// Dropping the future leaves the transaction usable; whether the fence was accepted is not known, and asking again is
/// harmless.
pub async fn check(tx: &Transaction<'_>, key: &Key, fence: Fence) -> Result<()> {
    call(tx, CHECK, key, fence).await.map(drop)
}

/// Accepts a fence and runs the caller's first statement in one round trip.
///
/// Both are sent together. If the fence is stale, the server refuses the statement as well.
///
/// ```no_run
/// # async fn example(
/// #     tx: &tokio_postgres::Transaction<'_>, lock: &syncguard_core::LockHandle,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let update = tx.execute_typed("UPDATE ledger SET balance = balance - 10", &[]);
/// let rows = syncguard_fenced::postgres::check_with(tx, lock.key(), lock.fence(), update).await??;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Outside: as [`check`]. Inside: what the statement itself met.
///
/// # Cancel safety
/// As [`check`].
pub async fn check_with<T>(tx: &Transaction<'_>, key: &Key, fence: Fence, first: impl Future<Output = T>) -> Result<T> {
    // The check is polled first, so its message is the first one on the wire.
    let (checked, value) = join(check(tx, key, fence), first).await;
    checked.map(|()| value)
}

/// Refuses older holders from now on. Call it before you read what you decide by.
///
/// Waits for older holders whose transactions are open, as [`begin`] does; [`take_over`] does not.
///
/// # Errors
/// As [`begin`].
///
/// # Cancel safety
/// A dropped call may still take effect; announcing again is harmless.
pub async fn announce(client: &Client, key: &Key, fence: Fence) -> Result<()> {
    call(client, CHECK, key, fence).await.map(drop)
}

/// Announces the fence, and ends the sessions that are in its way: those with a transaction under a lower fence of this
/// key. Returns them.
///
/// A holder that was stopped in the middle of its transaction would otherwise hold its successor up for as long as
/// PostgreSQL believes in its connection. Call it once, right after you got the lock; transactions of your own and of
/// everybody else are left alone.
///
/// # Errors
/// As [`begin`]; also [`Failed`](FenceError::Failed) with `AuthFailed` and the names of the sessions when this role may
/// not end them (it is neither theirs nor a member of `pg_signal_backend`), and with `NetworkTimeout` when the mark is in
/// use for five seconds.
///
/// # Cancel safety
/// A dropped call may still take effect; taking over again is harmless.
pub async fn take_over(client: &Client, key: &Key, fence: Fence) -> Result<Vec<EndedSession>> {
    let rows = call(client, TAKE_OVER, key, fence).await?;
    rows.iter().map(|row| EndedSession::of(ended(row).map_err(|error| failed(error, None))?)).collect()
}

fn ended(row: &Row) -> Result<crate::postgres_shared::EndedRow, Error> {
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
}

/// Returns the highest fence that was accepted, for diagnostics.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what PostgreSQL reports.
pub async fn highest(client: &Client, key: &Key) -> Result<Option<Fence>> {
    let found = client.query_typed(HIGHEST, &[(&key.as_str(), Type::TEXT)]).await;
    let stored = found.and_then(|rows| rows.first().map(|row| row.try_get(0)).transpose());
    stored.map_err(|error| failed(error, None))?.map(fence_of).transpose()
}

async fn call(client: &impl GenericClient, sql: &str, key: &Key, fence: Fence) -> Result<Vec<Row>> {
    let (name, number) = (key.as_str(), fence.get().cast_signed());
    let arguments: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&number, Type::INT8)];
    client.query_typed(sql, &arguments).await.map_err(|error| failed(error, Some(fence)))
}

/// Protects a table by triggers: a write needs a transaction of [`begin`], `SET LOCAL syncguard.fence`, or a session with
/// [`PostgresOptions`]. Partitions and inheriting tables are protected as well, and partitions that are made later.
///
/// The owner of the table and superusers can switch triggers off; nobody else gets past it.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what PostgreSQL reports.
pub async fn protect(client: &Client, table: &str, key: &Key) -> Result<()> {
    let arguments: [(&(dyn ToSql + Sync), Type); 2] = [(&quoted(table), Type::TEXT), (&key.as_str(), Type::TEXT)];
    client.query_typed(PROTECT, &arguments).await.map(drop).map_err(|error| failed(error, None))
}

/// Returns what [`install`] and [`protect`] run, for a migration of your own.
pub fn protect_sql(table: &str, key: &Key) -> String {
    let [table, key] = [quoted(table), key.as_str().to_owned()].map(|text| text.replace('\'', "''"));
    format!("{MIGRATION}\nSELECT syncguard_protect('{table}'::regclass, '{key}');\n")
}

/// `table` or `schema.table`, each part exactly as it is.
fn quoted(table: &str) -> String {
    table.split('.').map(|part| format!("\"{}\"", part.replace('"', "\"\""))).collect::<Vec<_>>().join(".")
}

pub(crate) fn failed(error: Error, offered: Option<Fence>) -> FenceError {
    let Some(server) = error.as_db_error() else {
        return FenceError::unavailable("postgres did not answer the check of the fence", error);
    };
    let (code, detail) = (server.code().code().to_owned(), server.detail().map(str::to_owned));
    refusal_or(&code, detail.as_deref(), offered, error)
}
