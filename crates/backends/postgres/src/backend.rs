//! How are locks kept in `PostgreSQL`?
//!
//! One row per lock, one row per fence counter, and the server's clock. What each operation does stands in
//! [`operations`](crate::operations).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, HealthReport, Inspector, Key, LockBackend, LockId,
    LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Ttl, WakeHint,
};
use tokio::runtime;
use tokio::time::Instant;

use crate::batch::Lines;
use crate::builder::PostgresBuilder;
use crate::connect::Target;
use crate::health;
use crate::listener::{self, PostgresListener};
use crate::names::Names;
use crate::pool::{Pool, Use, deadline};
use crate::statement::{Columns, Statements};
use crate::table::Tables;

/// Locks in a `PostgreSQL` database. Cheap to clone; clones share their connections.
///
/// ```no_run
/// # async fn example() -> Result<(), syncguard_core::LockError> {
/// use syncguard_core::Locker;
/// use syncguard_postgres::PostgresBackend;
///
/// let locker = Locker::new(PostgresBackend::connect("postgres://app@localhost/app").await?);
/// locker.lock("nightly-report").run(async |lock| println!("fence {}", lock.fence())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresBackend(Arc<Inner>);

/// What the clones of a backend share.
pub(crate) struct Inner {
    pub(crate) pool: Arc<Pool>,
    pub(crate) tables: Tables,
    /// With the table names put in, for every choice of columns.
    pub(crate) statements: [Statements; 4],
    /// Which of them fit: the place of the columns that are there. Found when connecting, and again when the server
    /// misses a column.
    pub(crate) columns: AtomicUsize,
    pub(crate) settings: PostgresBuilder,
    /// In milliseconds, as the text that the server takes; made once because every transaction sends it.
    pub(crate) lock_timeout: String,
    /// As `lock_timeout`.
    pub(crate) statement_timeout: String,
    /// Who waits to be asked for, on each runtime.
    pub(crate) lines: Mutex<HashMap<runtime::Id, Arc<Lines>>>,
    /// Before when no listing in this process goes on: see [`inspect`](crate::inspect).
    pub(crate) next_page: Mutex<Option<Instant>>,
    /// Whether a dead lock that `is_locked` met is being removed in the background: one at a time.
    pub(crate) cleaning: AtomicBool,
    /// Absent when wake-ups are off, or when nobody knows where to listen.
    pub(crate) listener: Option<PostgresListener>,
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresBackend({})", self.0.tables.locks.display())
    }
}

impl PostgresBackend {
    /// Connects with the settings that the URL makes, and creates the tables if they are missing.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, option or table; otherwise why the server cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn connect(url: &str) -> Result<Self> {
        PostgresBuilder::from_url(url)?.connect().await
    }

    /// Starts from the default settings and an address: `host`, `host:port`, several of them with commas between, or
    /// the folder of a Unix socket.
    pub fn builder(address: impl Into<String>) -> PostgresBuilder {
        PostgresBuilder::default().address(address)
    }

    /// Uses a pool that was made elsewhere, with default settings.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    #[cfg(feature = "deadpool")]
    pub async fn from_pool(pool: deadpool_postgres::Pool) -> Result<Self> {
        PostgresBuilder::default().connect_with_pool(pool).await
    }

    /// Creates the tables and indexes that are missing, and the column `holder` in a table of an earlier version. May
    /// be called again, and by many processes at once.
    ///
    /// # Errors
    /// `InvalidArgument` when one of the two tables is there without the other, `AuthFailed` when the role may not
    /// create tables; otherwise why the server cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the schema as it was or complete.
    pub async fn setup_schema(&self) -> Result<()> {
        self.0.set_up_schema().await
    }

    pub(crate) async fn start(settings: PostgresBuilder) -> Result<Self> {
        let target = Target::new(&settings)?;
        let pool = Pool::own(target, settings.pool_size);
        Self::start_on(settings, pool).await
    }

    #[cfg(feature = "deadpool")]
    pub(crate) async fn start_with_pool(settings: PostgresBuilder, pool: deadpool_postgres::Pool) -> Result<Self> {
        settings.validate()?;
        Self::start_on(settings, Pool::Brought(pool)).await
    }

    async fn start_on(settings: PostgresBuilder, pool: Pool) -> Result<Self> {
        let tables = match pool.target() {
            // The first connection tells where the tables are.
            Some(target) => {
                drop(pool.get(Use::Statement, deadline(settings.timeout)).await?);
                target.seen.place(settings.tables()?)
            }
            None => settings.tables()?,
        };
        let elsewhere = match &settings.wake_url {
            Some(url) => {
                let mut listening = PostgresBuilder::from_url(url)?;
                listening.require_tls |= settings.require_tls;
                Some(Target::new(&listening)?)
            }
            None => None,
        };
        let pool = Arc::new(pool);
        let knows_where = elsewhere.is_some() || pool.target().is_some();
        let listener = (settings.wake && knows_where).then(|| listener::new(pool.clone(), elsewhere, &tables));
        let inner = Inner {
            statements: Columns::EVERY_CHOICE.map(|columns| Statements::new(&tables, columns)),
            columns: AtomicUsize::new(0),
            lock_timeout: settings.lock_timeout.as_millis().to_string(),
            statement_timeout: settings.timeout.as_millis().to_string(),
            lines: Mutex::default(),
            next_page: Mutex::default(),
            cleaning: AtomicBool::new(false),
            pool,
            tables,
            settings,
            listener,
        };
        inner.ensure_schema().await?;
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl LockBackend for PostgresBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("postgres", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.0.acquire(request).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.0.release(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.0.extend(lock_id, ttl).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.0.is_locked(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.0.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.0.purge().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        match (&self.0.listener, Names::new(key)) {
            (Some(listener), Ok(names)) => listener.subscribe(&names.lock).await,
            _ => WakeHint::never(),
        }
    }

    async fn health(&self) -> HealthReport {
        health::report(&self.0).await
    }

    fn inspector(&self) -> Option<Inspector> {
        Some(Inspector::new(self.clone()))
    }
}
