//! How does a PostgreSQL database refuse a stale writer?
//!
//! The mark is a row in the database of the data, and both are written by one transaction of the caller. The comparison
//! is a function in the database (`sql/postgres.sql`), so that this module, `sqlx`, `psql` and the trigger cannot
//! disagree. A refusal is an SQL error: it aborts the transaction, and not even a caller who ignores it can commit.

use std::sync::Arc;

use futures_util::future::join;
use syncguard_core::{Fence, Key};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Transaction};

use crate::postgres_errors::{STALE, by_code, refusal};
use crate::{FenceError, HighWater, Result};

pub use crate::postgres_errors::MIGRATION;

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
    call(&tx, "SELECT syncguard_begin($1, $2)", key, fence).await?;
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
    call(tx, "SELECT syncguard_check($1, $2)", key, fence).await
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

async fn call(tx: &Transaction<'_>, sql: &str, key: &Key, fence: Fence) -> Result<()> {
    let (name, number) = (key.as_str(), fence.get().cast_signed());
    let arguments: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&number, Type::INT8)];
    tx.query_typed(sql, &arguments).await.map(drop).map_err(|error| failed(error, Some(fence)))
}

/// Protects a table by a trigger: a write needs a transaction of [`begin`], or `SET LOCAL syncguard.fence`.
///
/// The owner of the table and superusers can switch triggers off; nobody else gets past it.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what PostgreSQL reports.
pub async fn protect(client: &Client, table: &str, key: &Key) -> Result<()> {
    let table = table.split('.').map(|part| format!("\"{}\"", part.replace('"', "\"\""))).collect::<Vec<_>>().join(".");
    let name = key.as_str().replace('\'', "''");
    let sql = format!(
        "CREATE OR REPLACE TRIGGER syncguard_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table} \
         FOR EACH STATEMENT EXECUTE FUNCTION syncguard_require_fence('{name}')"
    );
    client.batch_execute(&sql).await.map_err(|error| failed(error, None))
}

/// Marks in a PostgreSQL table, for resources that are not in the database themselves.
#[derive(Clone)]
pub struct PostgresMarks(Arc<Client>);

impl std::fmt::Debug for PostgresMarks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresMarks").finish_non_exhaustive()
    }
}

impl PostgresMarks {
    /// Keeps marks through this connection, and creates what they need.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what PostgreSQL reports.
    pub async fn new(client: Client) -> Result<Self> {
        install(&client).await?;
        Ok(Self(Arc::new(client)))
    }
}

impl HighWater for PostgresMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        let (name, number) = (key.as_str(), fence.get().cast_signed());
        let arguments: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&number, Type::INT8)];
        let called = self.0.query_typed("SELECT syncguard_check($1, $2)", &arguments).await;
        called.map(drop).map_err(|error| failed(error, Some(fence)))
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        let name = key.as_str();
        let found =
            self.0.query_typed("SELECT fence FROM syncguard_marks WHERE key = $1", &[(&name, Type::TEXT)]).await;
        let rows = found.map_err(|error| failed(error, None))?;
        let stored =
            rows.first().map(|row| row.try_get::<_, i64>(0)).transpose().map_err(|error| failed(error, None))?;
        stored.map(fence_of).transpose()
    }
}

fn fence_of(stored: i64) -> Result<Fence> {
    let number = u64::try_from(stored).unwrap_or(0);
    Fence::new(number).map_err(|_| FenceError::damaged("the table of marks holds a number that is no fence"))
}

pub(crate) fn failed(error: Error, offered: Option<Fence>) -> FenceError {
    let Some(server) = error.as_db_error() else {
        return FenceError::unavailable("postgres did not answer the check of the fence", error);
    };
    if let (STALE, Some(offered)) = (server.code().code(), offered) {
        return refusal(offered, server.detail());
    }
    let code = server.code().code().to_owned();
    by_code(&code, error)
}
