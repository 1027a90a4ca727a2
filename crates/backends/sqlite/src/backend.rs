//! How does a SQLite file answer the contract?
//!
//! Words become names, names become operations for the writer thread or looks of the reader thread, and their
//! answers become outcomes. What happens to the tables is in `operations`, how commits are shared in `writer`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, Clock, ExtendOutcome, HealthReport, Inspector, Key, LockBackend,
    LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Ttl, WakeHint,
};

use crate::builder::SqliteBuilder;
use crate::health;
use crate::names::{fence_name, lock_name};
use crate::operations::{Acquire, Answer, Operation, PURGE_AT_ONCE};
use crate::pool::Pool;
use crate::row::{self, Liveness};

/// Locks in one SQLite file, shared by all processes of this machine. Cheap to clone.
///
/// ```
/// use syncguard_core::{AcquireOutcome, AcquireRequest, Key, LockBackend, Ttl};
/// use syncguard_sqlite::SqliteBackend;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let backend = SqliteBackend::builder(directory.path().join("locks.db")).connect().await?;
/// let key = Key::new("nightly-report")?;
/// let lock_id = backend.new_lock_id(&key);
///
/// let request = AcquireRequest::new(&key, &lock_id, Ttl::DEFAULT);
/// let AcquireOutcome::Acquired(lease) = backend.acquire(request).await? else { panic!("it was free") };
/// assert_eq!(lease.fence.to_string(), "000000000000001");
/// assert!(backend.release(&lock_id).await?.is_released());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteBackend {
    pool: Arc<Pool>,
    clock: Arc<dyn Clock>,
    cleanup_in_is_locked: bool,
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("path", &self.pool.path()).finish_non_exhaustive()
    }
}

impl SqliteBackend {
    /// Opens `sqlite:PATH?options`: see [`SqliteBuilder::from_url`].
    ///
    /// # Errors
    /// As [`SqliteBuilder::from_url`] and [`SqliteBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self> {
        SqliteBuilder::from_url(url)?.connect().await
    }

    /// Starts the settings of a backend for a file.
    ///
    /// All backends of one file in one process share a writer thread.
    pub fn builder(path: impl AsRef<Path>) -> SqliteBuilder {
        SqliteBuilder::new(path.as_ref())
    }

    /// The file, with its directory's symbolic links resolved.
    pub fn path(&self) -> &Path {
        self.pool.path()
    }

    pub(crate) fn new(pool: Arc<Pool>, clock: Arc<dyn Clock>, cleanup_in_is_locked: bool) -> Self {
        Self { pool, clock, cleanup_in_is_locked }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) async fn write(&self, operation: Operation) -> Result<Answer> {
        self.pool.write(operation, &self.clock).await
    }
}

pub(crate) fn crossed() -> LockError {
    LockError::internal("the writer answered another question")
}

impl LockBackend for SqliteBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("sqlite", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let name = lock_name(request.key)?;
        let fence_name = fence_name(&name)?;
        let operation = Operation::Acquire(Acquire {
            key: request.key.clone(),
            name,
            fence_name,
            lock_id: request.lock_id.clone(),
            ttl: request.ttl,
            label: request.label.cloned(),
        });
        match self.write(operation).await? {
            Answer::Acquired(outcome) => Ok(outcome),
            _ => Err(crossed()),
        }
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        match self.write(Operation::Release { lock_id: lock_id.clone() }).await? {
            Answer::Released(outcome, _) => Ok(outcome),
            _ => Err(crossed()),
        }
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        match self.write(Operation::Extend { lock_id: lock_id.clone(), ttl }).await? {
            Answer::Extended(outcome) => Ok(outcome),
            _ => Err(crossed()),
        }
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let name = lock_name(key)?;
        let (clock, path, asked) = (self.clock.clone(), self.path().to_path_buf(), name.clone());
        let look = move |db: &rusqlite::Connection| {
            let held = row::lock_of_key(db, &asked).map_err(|error| Pool::unread(&path, &error))?;
            held.map(|held| held.liveness(clock.wall())).transpose()
        };
        let liveness = self.pool.read(look).await?;
        if self.cleanup_in_is_locked && liveness == Some(Liveness::LongDead) {
            self.pool.clean_up_later(name, &self.clock);
        }
        Ok(liveness == Some(Liveness::Live))
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let (clock, path) = (self.clock.clone(), self.path().to_path_buf());
        let unread = move |error| Pool::unread(&path, &error);
        match query {
            Lookup::Key(key) => {
                let name = lock_name(key)?;
                let look = move |db: &rusqlite::Connection| match row::lock_of_key(db, &name).map_err(unread)? {
                    Some(held) => held.into_live_info(clock.wall()),
                    None => Ok(None),
                };
                self.pool.read(look).await
            }
            Lookup::LockId(lock_id) => {
                let asked = lock_id.clone();
                let look = move |db: &rusqlite::Connection| match row::lock_of_id(db, &asked).map_err(unread)? {
                    Some(held) => held.into_live_info(clock.wall()),
                    None => Ok(None),
                };
                self.pool.read(look).await
            }
        }
    }

    async fn purge_expired(&self) -> Result<u64> {
        let mut all = 0;
        loop {
            let Answer::Purged(some) = self.write(Operation::Purge).await? else { return Err(crossed()) };
            all += some;
            if some < PURGE_AT_ONCE {
                return Ok(all);
            }
        }
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        match lock_name(key) {
            Ok(name) => self.pool.subscribe(&name),
            Err(_) => WakeHint::never(),
        }
    }

    async fn health(&self) -> HealthReport {
        health::report(self).await
    }

    fn inspector(&self) -> Option<Inspector> {
        Some(Inspector::new(self.clone()))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }
}
