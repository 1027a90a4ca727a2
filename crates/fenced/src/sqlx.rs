//! How does a transaction of `sqlx` on PostgreSQL refuse a stale writer?
//!
//! By the table and the functions of `sql/postgres.sql` ([`MIGRATION`]), which every client of the database shares: see
//! the module `postgres`. A refusal aborts the transaction.

use sqlx::postgres::{PgDatabaseError, Postgres};
use sqlx::{Error, PgPool, Transaction};
use syncguard_core::{Fence, Key};

use crate::postgres_shared::{BEGIN, CHECK, EndedRow, TAKE_OVER, refusal_or};
pub use crate::postgres_shared::{EndedSession, MIGRATION, PostgresOptions};
use crate::{FenceError, Result};

/// Creates the table and the functions. Safe to run again.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what PostgreSQL reports.
pub async fn install(pool: &PgPool) -> Result<()> {
    let mut tx = pool.begin().await.map_err(|error| failed(error, None))?;
    // Two that create the same function at once collide in the catalogue.
    let alone = sqlx::query("SELECT pg_advisory_xact_lock(hashtext('syncguard_marks'))");
    alone.execute(&mut *tx).await.map_err(|error| failed(error, None))?;
    sqlx::raw_sql(MIGRATION).execute(&mut *tx).await.map_err(|error| failed(error, None))?;
    tx.commit().await.map_err(|error| failed(error, None))
}

/// Starts a transaction for writes under this fence. Tables under the trigger accept its writes.
///
/// # Errors
/// [`Stale`](FenceError::Stale) when a higher fence was accepted, [`Failed`](FenceError::Failed) with what PostgreSQL
/// reports.
///
/// # Cancel safety
/// Dropping the future rolls back.
pub async fn begin(pool: &PgPool, key: &Key, fence: Fence) -> Result<Transaction<'static, Postgres>> {
    let mut tx = pool.begin().await.map_err(|error| failed(error, None))?;
    call(&mut tx, BEGIN, key, fence).await?;
    Ok(tx)
}

/// Accepts a fence inside the caller's transaction, and remembers it if that commits.
///
/// # Errors
/// As [`begin`]. The transaction is aborted then.
///
/// # Cancel safety
/// Whether the fence was accepted is not known after a drop; asking again is harmless.
pub async fn check(tx: &mut Transaction<'_, Postgres>, key: &Key, fence: Fence) -> Result<()> {
    call(tx, CHECK, key, fence).await
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
pub async fn announce(pool: &PgPool, key: &Key, fence: Fence) -> Result<()> {
    let query = sqlx::query(CHECK).bind(key.as_str()).bind(fence.get().cast_signed());
    query.execute(pool).await.map(drop).map_err(|error| failed(error, Some(fence)))
}

/// Announces the fence, and ends the sessions that are in its way: those with a transaction under a lower fence of this
/// key. Returns them. The module `postgres` says more.
///
/// # Errors
/// As [`begin`]; also [`Failed`](FenceError::Failed) with the names of the sessions when this role may not end them, and
/// when the mark is in use for five seconds.
///
/// # Cancel safety
/// A dropped call may still take effect; taking over again is harmless.
pub async fn take_over(pool: &PgPool, key: &Key, fence: Fence) -> Result<Vec<EndedSession>> {
    let query = sqlx::query_as::<_, EndedRow>(TAKE_OVER).bind(key.as_str()).bind(fence.get().cast_signed());
    let rows = query.fetch_all(pool).await.map_err(|error| failed(error, Some(fence)))?;
    rows.into_iter().map(EndedSession::of).collect()
}

async fn call(tx: &mut Transaction<'_, Postgres>, sql: &'static str, key: &Key, fence: Fence) -> Result<()> {
    let query = sqlx::query(sql).bind(key.as_str()).bind(fence.get().cast_signed());
    query.execute(&mut **tx).await.map(drop).map_err(|error| failed(error, Some(fence)))
}

pub(crate) fn failed(error: Error, offered: Option<Fence>) -> FenceError {
    let server = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let Some(server) = server else {
        return FenceError::unavailable("postgres did not answer the check of the fence", error);
    };
    let (code, detail) = (server.code().to_owned(), server.detail().map(str::to_owned));
    refusal_or(&code, detail.as_deref(), offered, error)
}
