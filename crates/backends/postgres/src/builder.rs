//! What can be chosen, and what is chosen by default?

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use syncguard_core::{LockError, Result};

use crate::backend::PostgresBackend;
use crate::connect::Attributes;
use crate::table::Tables;
use crate::tls::{SslMode, TlsOptions};
use crate::url;

/// Whether statements are prepared under a name on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prepared {
    /// Where a connection leads straight to a server. Behind a pooler, and on a pool that was brought along (of which
    /// nobody knows where it leads), they are not.
    #[default]
    Auto,
    /// Always. Right for a pooler that understands prepared statements (PgBouncer 1.21 and later), and twice as fast.
    Always,
    /// Never.
    Never,
}

/// The choices of a [`PostgresBackend`]. Made by [`PostgresBackend::builder`] or read from a URL.
///
/// ```no_run
/// # async fn example() -> Result<(), syncguard_core::LockError> {
/// use syncguard_postgres::PostgresBackend;
///
/// let backend = PostgresBackend::builder()
///     .table("jobs.locks")
///     .fence_table("jobs.fence_counters")
///     .auto_create_tables(false)
///     .connect("postgres://app@db.example/app?sslmode=verify-full")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent switch with a setter of its own name")]
pub struct PostgresBuilder {
    pub(crate) table: String,
    pub(crate) fence_table: String,
    pub(crate) auto_create_tables: bool,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) clock_floored_fences: bool,
    pub(crate) prepared: Prepared,
    pub(crate) pool_size: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) lock_timeout: Duration,
    pub(crate) operation_timeout: Duration,
    pub(crate) listen: bool,
    pub(crate) listen_url: Option<String>,
    pub(crate) require_tls: bool,
    pub(crate) tls: TlsOptions,
    pub(crate) attributes: Attributes,
    pub(crate) passfile: Option<PathBuf>,
}

impl Default for PostgresBuilder {
    fn default() -> Self {
        Self {
            table: "syncguard_locks".to_owned(),
            fence_table: "syncguard_fence_counters".to_owned(),
            auto_create_tables: true,
            cleanup_in_is_locked: false,
            clock_floored_fences: false,
            prepared: Prepared::Auto,
            pool_size: 16,
            connect_timeout: Duration::from_secs(2),
            lock_timeout: Duration::from_secs(1),
            operation_timeout: Duration::from_secs(5),
            listen: true,
            listen_url: None,
            require_tls: false,
            tls: TlsOptions::default(),
            attributes: Attributes::Any,
            passfile: None,
        }
    }
}

impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBuilder")
            .field("table", &self.table)
            .field("fence_table", &self.fence_table)
            .field("pool_size", &self.pool_size)
            .field("prepared", &self.prepared)
            // listen_url may hold a password.
            .finish_non_exhaustive()
    }
}

impl PostgresBuilder {
    /// The table of locks: `table` or `schema.table`. Default `syncguard_locks`.
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// The table of fence counters. Default `syncguard_fence_counters`.
    pub fn fence_table(mut self, name: impl Into<String>) -> Self {
        self.fence_table = name.into();
        self
    }

    /// Whether missing tables are created when connecting. Default true. Switch it off for a role that may not create tables.
    pub fn auto_create_tables(mut self, yes: bool) -> Self {
        self.auto_create_tables = yes;
        self
    }

    /// Whether `is_locked` removes the key's lock if it has been dead for two seconds. Default false: looking changes nothing.
    pub fn cleanup_in_is_locked(mut self, yes: bool) -> Self {
        self.cleanup_in_is_locked = yes;
        self
    }

    /// Whether a fence is never below the server's time in milliseconds, so that it rises even after the counters were lost
    /// (an asynchronous failover, a restore). The first fence of a key is then not 1. Default false.
    pub fn clock_floored_fences(mut self, yes: bool) -> Self {
        self.clock_floored_fences = yes;
        self
    }

    /// Whether statements get names on the server.
    pub fn prepared(mut self, prepared: Prepared) -> Self {
        self.prepared = prepared;
        self
    }

    /// How many connections are kept at most, beside one that listens for wake-ups. Default 16. Operations take a connection for
    /// one round trip each and never while they wait for a lock.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// How long one attempt to connect may take. Default 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// How long the server may wait for another transaction that works on the same key. Default 1 s.
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// How long one operation may take altogether. Default 5 s; acquire and extend also stop at a third of their ttl, but not
    /// before 1 s.
    pub fn operation_timeout(mut self, limit: Duration) -> Self {
        self.operation_timeout = limit;
        self
    }

    /// Whether waiters are woken by the server (on one connection of their own) or only look again from time to time.
    /// Default true.
    pub fn listen(mut self, yes: bool) -> Self {
        self.listen = yes;
        self
    }

    /// Where to listen for wake-ups if the main URL leads to a pooler: a URL straight to the server.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Whether a connection to another machine must be encrypted. Default false, as in libpq; a plain one is warned of.
    pub fn require_tls(mut self, yes: bool) -> Self {
        self.require_tls = yes;
        self
    }

    /// How connections are encrypted. The URL's `sslmode` wins.
    pub fn sslmode(mut self, mode: SslMode) -> Self {
        self.tls.mode = mode;
        self
    }

    /// The PEM file with the roots to trust, or `system`. The URL's `sslrootcert` wins.
    pub fn sslrootcert(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.root = Some(file.into());
        self
    }

    /// The client's certificate and key as PEM files. The URL's `sslcert` and `sslkey` win.
    pub fn client_certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.cert = Some(cert.into());
        self.tls.key = Some(key.into());
        self
    }

    /// Connects, and creates the tables if they are missing and may be created.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, option or table; otherwise why the server cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn connect(self, url: &str) -> Result<PostgresBackend> {
        let (options, target) = url::read(self, url)?;
        PostgresBackend::with_target(options, target).await
    }

    /// Uses a pool that was made elsewhere. Wake-ups then need [`listen_url`](Self::listen_url).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn with_pool(self, pool: deadpool_postgres::Pool) -> Result<PostgresBackend> {
        PostgresBackend::with_brought_pool(self, pool).await
    }

    pub(crate) fn tables(&self) -> Result<Tables> {
        Tables::parse(&self.table, &self.fence_table)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.pool_size == 0 || self.pool_size > 10_000 {
            return Err(LockError::invalid("pool_size is outside 1..=10000"));
        }
        let limits = [self.connect_timeout, self.lock_timeout, self.operation_timeout];
        if limits.iter().any(|limit| limit.as_millis() == 0 || limit.as_secs() > 3600) {
            return Err(LockError::invalid("a timeout is outside 1 ms ..= 1 h"));
        }
        Ok(())
    }
}
