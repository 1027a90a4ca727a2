//! Lock, check, write, commit: can it be one call?
//!
//! [`RunFenced::run_fenced`] takes the lock, opens a transaction that has accepted the lock's fence, hands it to the
//! work and commits. The caller can neither forget the check nor use the fence of another lock.

use std::pin::Pin;

use syncguard_core::{Fence, Key, LockRequest};

use crate::{FenceError, Result};

// An `AsyncFnOnce` would need no box. But no bound can say yet that its future is `Send` for every lifetime of the
// transaction, and futures of opaque types with such a closure inside are refused in handlers of axum and in boxes.
type BoxFuture<'t, T> = Pin<Box<dyn Future<Output = T> + Send + 't>>;

/// A place where work is done under a fence, all or nothing: a database connection, above all.
pub trait Gate: Send {
    /// What the work is given: a transaction. Dropping it undoes what was done in it.
    type Inside<'g>
    where
        Self: 'g;

    /// What the work returns. Where work is awaited, a boxed future: `Pin<Box<dyn Future<Output = T> + Send + 't>>`.
    /// Where it blocks, the value itself.
    type Running<'t, T>;

    /// Announces the fence, so that older holders are refused before anything is read; then does the work under it, and
    /// makes what was done permanent.
    ///
    /// # Errors
    /// The work's own error; [`Stale`](FenceError::Stale) for a lower fence; [`Failed`](FenceError::Failed) when it
    /// cannot be compared, and with what the place reports.
    fn pass<'g, T: Send + 'g, E: From<FenceError> + Send + 'g>(
        &'g mut self,
        key: Key,
        fence: Fence,
        work: impl for<'t> FnOnce(&'t mut Self::Inside<'g>) -> Self::Running<'t, Result<T, E>> + Send + 'g,
    ) -> BoxFuture<'g, Result<T, E>>;
}

/// Adds [`run_fenced`](Self::run_fenced) to a lock request.
pub trait RunFenced {
    /// Waits for the lock, announces its fence, runs the work in a transaction that has accepted it, commits if the work
    /// returns `Ok`, and releases.
    ///
    /// The work is `|tx| Box::pin(async move { … })` for a gate that is awaited (tokio-postgres, sqlx), and `|tx| …` for
    /// one that blocks (rusqlite).
    ///
    /// As with [`LockRequest::run`], the work is dropped (and with it the transaction) when the lock is lost; work that
    /// blocks goes on to its end. If it was paused, and wakes up after a newer holder has written, the transaction is
    /// refused.
    ///
    /// # Errors
    /// The work's own error; [`Stale`](FenceError::Stale) when a newer holder has written;
    /// [`Contended`](FenceError::Contended) and [`Lost`](FenceError::Lost) by the lock; [`Failed`](FenceError::Failed) when
    /// the backend or the place failed. After a loss
    /// or a failed commit the transaction may have been committed all the same: read before you answer.
    ///
    /// # Cancel safety
    /// Dropping the future undoes the work and releases the lock in the background.
    fn run_fenced<'g, G: Gate, T: Send + 'g, E: From<FenceError> + Send + 'g>(
        self,
        gate: &'g mut G,
        work: impl for<'t> FnOnce(&'t mut G::Inside<'g>) -> G::Running<'t, Result<T, E>> + Send + 'g,
    ) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'g>>;
}

impl RunFenced for LockRequest {
    fn run_fenced<'g, G: Gate, T: Send + 'g, E: From<FenceError> + Send + 'g>(
        self,
        gate: &'g mut G,
        work: impl for<'t> FnOnce(&'t mut G::Inside<'g>) -> G::Running<'t, Result<T, E>> + Send + 'g,
    ) -> BoxFuture<'g, Result<T, E>> {
        Box::pin(async move {
            let finished = self.run(move |lock| gate.pass(lock.key().clone(), lock.fence(), work));
            finished.await.map_err(FenceError::from)?
        })
    }
}

#[cfg(feature = "sqlite")]
impl Gate for rusqlite::Connection {
    type Inside<'g> = rusqlite::Transaction<'g>;
    type Running<'t, T> = T;

    fn pass<'g, T: Send + 'g, E: From<FenceError> + Send + 'g>(
        &'g mut self,
        key: Key,
        fence: Fence,
        work: impl for<'t> FnOnce(&'t mut Self::Inside<'g>) -> Result<T, E> + Send + 'g,
    ) -> BoxFuture<'g, Result<T, E>> {
        Box::pin(async move {
            crate::sqlite::announce(self, &key, fence)?;
            let mut inside = crate::sqlite::begin(self, &key, fence)?;
            let value = work(&mut inside)?;
            inside.commit().map_err(crate::sqlite::failed)?;
            Ok(value)
        })
    }
}

#[cfg(feature = "postgres")]
impl Gate for tokio_postgres::Client {
    type Inside<'g> = tokio_postgres::Transaction<'g>;
    type Running<'t, T> = BoxFuture<'t, T>;

    fn pass<'g, T: Send + 'g, E: From<FenceError> + Send + 'g>(
        &'g mut self,
        key: Key,
        fence: Fence,
        work: impl for<'t> FnOnce(&'t mut Self::Inside<'g>) -> BoxFuture<'t, Result<T, E>> + Send + 'g,
    ) -> BoxFuture<'g, Result<T, E>> {
        Box::pin(async move {
            crate::postgres::announce(self, &key, fence).await?;
            let mut inside = crate::postgres::begin(self, &key, fence).await?;
            let value = work(&mut inside).await?;
            inside.commit().await.map_err(|error| crate::postgres::failed(error, None))?;
            Ok(value)
        })
    }
}

#[cfg(feature = "sqlx")]
impl Gate for sqlx::PgPool {
    // No longer than the borrow of the gate, although a pool gives it for ever: so the work may borrow as well.
    type Inside<'g> = sqlx::Transaction<'g, sqlx::Postgres>;
    type Running<'t, T> = BoxFuture<'t, T>;

    fn pass<'g, T: Send + 'g, E: From<FenceError> + Send + 'g>(
        &'g mut self,
        key: Key,
        fence: Fence,
        work: impl for<'t> FnOnce(&'t mut Self::Inside<'g>) -> BoxFuture<'t, Result<T, E>> + Send + 'g,
    ) -> BoxFuture<'g, Result<T, E>> {
        Box::pin(async move {
            crate::sqlx::announce(self, &key, fence).await?;
            let mut inside = crate::sqlx::begin(self, &key, fence).await?;
            let value = work(&mut inside).await?;
            inside.commit().await.map_err(|error| crate::sqlx::failed(error, None))?;
            Ok(value)
        })
    }
}
