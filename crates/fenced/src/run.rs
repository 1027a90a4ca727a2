//! Lock, check, write, commit: can it be one call?
//!
//! [`RunFenced::run_fenced`] takes the lock, opens a transaction that has accepted the lock's fence, hands it to the
//! work and commits. The caller can neither forget the check nor use the fence of another lock.

use syncguard_core::{Fence, Key, LockRequest};

use crate::{FenceError, Result};

/// A place where work is done under a fence, all or nothing: a database connection, above all.
pub trait Gate {
    /// What the work is given: a transaction. Dropping it undoes what was done in it.
    type Inside<'g>
    where
        Self: 'g;

    /// Starts, after the fence was accepted.
    ///
    /// # Errors
    /// [`Stale`](FenceError::Stale) for a lower fence, [`Failed`](FenceError::Failed) when it cannot be compared.
    fn enter<'g>(&'g mut self, key: &Key, fence: Fence) -> impl Future<Output = Result<Self::Inside<'g>>>;

    /// Makes what was done permanent.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what the place reports.
    fn leave<'g>(inside: Self::Inside<'g>) -> impl Future<Output = Result<()>>
    where
        Self: 'g;
}

/// Adds [`run_fenced`](Self::run_fenced) to a lock request.
pub trait RunFenced {
    /// Waits for the lock, runs the work in a transaction that has accepted its fence, commits if the work returns
    /// `Ok`, and releases.
    ///
    /// As with [`LockRequest::run`], the work is dropped (and with it the transaction) when the lock is lost. If it was
    /// paused instead, and wakes up after a newer holder has written, the transaction is refused.
    ///
    /// # Errors
    /// The work's own error; [`Stale`](FenceError::Stale) when a newer holder has written;
    /// [`Failed`](FenceError::Failed) when the lock was not acquired or was lost, or when the place failed. Nothing was
    /// committed, unless the commit itself failed on its way.
    ///
    /// # Cancel safety
    /// Dropping the future undoes the work and releases the lock in the background.
    fn run_fenced<'g, G: Gate, T, E: From<FenceError>>(
        self,
        gate: &'g mut G,
        work: impl AsyncFnOnce(&mut G::Inside<'g>) -> Result<T, E>,
    ) -> impl Future<Output = Result<T, E>>;
}

impl RunFenced for LockRequest {
    async fn run_fenced<'g, G: Gate, T, E: From<FenceError>>(
        self,
        gate: &'g mut G,
        work: impl AsyncFnOnce(&mut G::Inside<'g>) -> Result<T, E>,
    ) -> Result<T, E> {
        let finished = self.run(async move |lock| {
            let mut inside = gate.enter(lock.key(), lock.fence()).await?;
            let value = work(&mut inside).await?;
            G::leave(inside).await?;
            Ok(value)
        });
        finished.await.map_err(FenceError::from)?
    }
}

#[cfg(feature = "sqlite")]
impl Gate for rusqlite::Connection {
    type Inside<'g> = rusqlite::Transaction<'g>;

    async fn enter<'g>(&'g mut self, key: &Key, fence: Fence) -> Result<Self::Inside<'g>> {
        crate::sqlite::begin(self, key, fence)
    }

    async fn leave(inside: Self::Inside<'_>) -> Result<()> {
        inside.commit().map_err(crate::sqlite::failed)
    }
}

#[cfg(feature = "postgres")]
impl Gate for tokio_postgres::Client {
    type Inside<'g> = tokio_postgres::Transaction<'g>;

    async fn enter<'g>(&'g mut self, key: &Key, fence: Fence) -> Result<Self::Inside<'g>> {
        crate::postgres::begin(self, key, fence).await
    }

    async fn leave(inside: Self::Inside<'_>) -> Result<()> {
        inside.commit().await.map_err(|error| crate::postgres::failed(error, None))
    }
}

#[cfg(feature = "sqlx")]
impl Gate for sqlx::PgPool {
    type Inside<'g> = sqlx::Transaction<'static, sqlx::Postgres>;

    async fn enter<'g>(&'g mut self, key: &Key, fence: Fence) -> Result<Self::Inside<'g>> {
        crate::sqlx::begin(self, key, fence).await
    }

    async fn leave(inside: Self::Inside<'_>) -> Result<()> {
        inside.commit().await.map_err(|error| crate::sqlx::failed(error, None))
    }
}
