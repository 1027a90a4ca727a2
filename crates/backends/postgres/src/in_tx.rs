//! Can a lock be taken together with other writes, or not at all?
//!
//! Yes, when both live in one database: the lock is taken inside the caller's transaction and comes to be when that
//! commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use syncguard_core::{AcquireOutcome, AcquireRequest, LockError, Result};

use crate::backend::PostgresBackend;
use crate::batch::{Acquire, Batched};
use crate::error;
use crate::names::Names;
use crate::row::column;
use crate::statement::{Values, borrowed, text};

impl PostgresBackend {
    /// Takes a lock inside a transaction of the caller, atomically with its other writes.
    ///
    /// Others see the lock when the transaction commits; until then their acquires of this key wait for it, up to their
    /// lock timeout, so commit soon. The lease counts from this call. After a rollback there was no lock, *and the
    /// fence is given again*: show it to nobody outside the transaction before the commit. The transaction must run
    /// under READ COMMITTED and reach the same database as this backend. From here on it commits synchronously,
    /// because a lost commit would repeat a fence.
    ///
    /// ```no_run
    /// # async fn example(backend: syncguard_postgres::PostgresBackend, mut client: tokio_postgres::Client)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// use syncguard_core::{AcquireOutcome, AcquireRequest, Key, LockBackend, Ttl};
    ///
    /// let key = Key::new("invoice:7")?;
    /// let lock_id = backend.new_lock_id(&key);
    /// let transaction = client.transaction().await?;
    /// let request = AcquireRequest::new(&key, &lock_id, Ttl::DEFAULT);
    /// if let AcquireOutcome::Acquired(lease) = backend.acquire_in_tx(&transaction, request).await? {
    ///     let fence = lease.fence.to_string();
    ///     transaction.execute("UPDATE invoice SET state = 'closing', fence = $1 WHERE id = 7", &[&fence]).await?;
    ///     transaction.commit().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the transaction has another isolation level. After any error from the server the
    /// transaction is aborted, as after every failed statement.
    ///
    /// # Cancel safety
    /// Roll the transaction back after dropping the future: it may or may not hold the lock.
    pub async fn acquire_in_tx(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        request: AcquireRequest<'_>,
    ) -> Result<AcquireOutcome> {
        let outcome = self.try_in_tx(transaction, request).await;
        outcome.map_err(|error| error.with_key(request.key).with_lock_id(request.lock_id))
    }

    async fn try_in_tx(
        &self,
        transaction: &tokio_postgres::Transaction<'_>,
        request: AcquireRequest<'_>,
    ) -> Result<AcquireOutcome> {
        let inner = self.inner();
        let names = Names::new(request.key)?;
        let query = async |sql: &str, values: &Values| {
            let rows = transaction.query_typed(sql, &borrowed(values)).await;
            let rows = rows.map_err(|error| error::from_statement(&error))?;
            rows.into_iter().next().ok_or_else(error::no_row)
        };
        let gate = vec![text(&*names.lock), text(&*inner.lock_timeout)];
        let before = query(include_str!("../sql/in_tx_gate.sql"), &gate).await?;
        if column::<String>(&before, "isolation")? != "read committed" {
            return Err(LockError::invalid("the transaction is not under READ COMMITTED").with_hint(
                "an older snapshot does not show who holds the lock now; begin with ISOLATION LEVEL READ COMMITTED",
            ));
        }
        let question = [Arc::new(Acquire::new(names, request, inner.settings.fence_floor))];
        let statements = &inner.statements[inner.columns.load(Ordering::Acquire)];
        let (sql, values) = (&statements.acquire[0].text, Acquire::values(&question));
        let deadline = inner.deadline();
        let decided = inner.until_decided(deadline, || async { Acquire::read(&query(sql, &values).await?) }).await?;
        // The caller's own limits come back: the statements set theirs for the rest of the transaction.
        let own = ["own_lock_timeout", "own_statement_timeout"].map(|name| column::<String>(&before, name));
        let own = own.into_iter().map(|value| value.map(text)).collect::<Result<Values>>()?;
        query("SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)", &own).await?;
        Ok(decided)
    }
}
