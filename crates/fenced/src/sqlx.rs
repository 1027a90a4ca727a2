//! How does a transaction of `sqlx` on PostgreSQL refuse a stale writer?
//!
//! By the table and the functions of `sql/postgres.sql` ([`MIGRATION`]), which every client of the database shares: see
//! the module `postgres`. A refusal aborts the transaction.

use sqlx::postgres::{PgDatabaseError, Postgres};
use sqlx::{Error, PgPool, Transaction};
use syncguard_core::{Fence, Key};

pub use crate::postgres_errors::MIGRATION;
use crate::postgres_errors::{STALE, by_code, refusal};
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
    call(&mut tx, "SELECT syncguard_begin($1, $2)", key, fence).await?;
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
    call(tx, "SELECT syncguard_check($1, $2)", key, fence).await
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
    if let (STALE, Some(offered)) = (server.code(), offered) {
        return refusal(offered, server.detail());
    }
    let code = server.code().to_owned();
    by_code(&code, error)
}
