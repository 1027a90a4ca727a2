//! What can be chosen, and what is chosen by default?

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use syncguard_core::protection::Protection;
use syncguard_core::{LockError, Result};
use tokio_postgres::Config;

use crate::backend::PostgresBackend;
use crate::connect::TargetSessionAttrs;
use crate::logins::Logins;
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

/// The settings of a [`PostgresBackend`]. Made by [`PostgresBackend::builder`] or read from a URL.
///
/// What nobody sets comes from libpq's environment (`PGHOST`, `PGUSER`, `PGSSLMODE`, …) when connecting.
///
/// ```no_run
/// # async fn example() -> Result<(), syncguard_core::LockError> {
/// use std::time::Duration;
/// use syncguard_postgres::{PostgresBackend, PostgresBuilder, SslMode};
///
/// let backend = PostgresBackend::builder("db.example:5432")
///     .user("app")
///     .database("app")
///     .sslmode(SslMode::VerifyFull)
///     .table("jobs.locks")
///     .fence_table("jobs.fence_counters")
///     .connect()
///     .await?;
/// let same = PostgresBuilder::from_url("postgres://app@db.example/app?sslmode=verify-full&table=jobs.locks")?
///     .fence_table("jobs.fence_counters")
///     .timeout(Duration::from_secs(3))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
#[allow(clippy::struct_excessive_bools, reason = "each is an independent switch with a setter of its own name")]
pub struct PostgresBuilder {
    /// What the driver reads: login, database, sockets. Its hosts count only while `address` is empty.
    pub(crate) config: Config,
    pub(crate) address: Option<String>,
    pub(crate) table: String,
    pub(crate) fence_table: String,
    pub(crate) auto_create_tables: bool,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) fence_floor: bool,
    pub(crate) prepared: Prepared,
    pub(crate) pool_size: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) lock_timeout: Duration,
    pub(crate) timeout: Duration,
    pub(crate) wake: bool,
    /// May hold a password.
    pub(crate) wake_url: Option<String>,
    pub(crate) require_tls: bool,
    pub(crate) require_auth: Option<Logins>,
    pub(crate) tls: TlsOptions,
    pub(crate) target_session_attrs: Option<TargetSessionAttrs>,
    pub(crate) passfile: Option<PathBuf>,
}

impl Default for PostgresBuilder {
    fn default() -> Self {
        let mut config = Config::new();
        // A connection on which nothing is heard is given up well within the shortest lease that people use.
        config
            .keepalives_idle(Duration::from_secs(5))
            .keepalives_interval(Duration::from_secs(3))
            .keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(14));
        Self {
            config,
            address: None,
            table: "syncguard_locks".to_owned(),
            fence_table: "syncguard_fence_counters".to_owned(),
            auto_create_tables: true,
            cleanup_in_is_locked: false,
            fence_floor: false,
            prepared: Prepared::Auto,
            pool_size: 16,
            connect_timeout: Duration::from_secs(2),
            lock_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
            wake: true,
            wake_url: None,
            require_tls: false,
            require_auth: None,
            tls: TlsOptions::default(),
            target_session_attrs: None,
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
            .field("timeout", &self.timeout)
            // Login and wake_url may hold a password.
            .finish_non_exhaustive()
    }
}

impl PostgresBuilder {
    /// Reads the settings that a URL makes. The page of this backend lists the options.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL or option. No part of the URL is repeated that could be a password.
    pub fn from_url(url: &str) -> Result<Self> {
        url::parse(url)
    }

    /// Sets where the server is: `host`, `host:port`, several of them with commas between, or the folder of a Unix
    /// socket.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// Sets the role to log in as.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.config.user(name);
        self
    }

    /// Sets the password of the role.
    pub fn password(mut self, password: impl AsRef<[u8]>) -> Self {
        self.config.password(password);
        self
    }

    /// Sets the database. Default: the one with the role's name.
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.config.dbname(name);
        self
    }

    /// Sets the name that the server shows for these connections. Default `syncguard`.
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.config.application_name(name);
        self
    }

    /// Adds settings that the server applies when a session starts, as libpq's `options`: `-c name=value`.
    pub fn session_options(mut self, options: &str) -> Self {
        let all = self.config.get_options().map_or(options.to_owned(), |given| format!("{given} {options}"));
        self.config.options(all);
        self
    }

    /// Sets the table of locks: `table` or `schema.table`. Default `syncguard_locks`.
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// Sets the table of fence counters. Default `syncguard_fence_counters`.
    pub fn fence_table(mut self, name: impl Into<String>) -> Self {
        self.fence_table = name.into();
        self
    }

    /// Sets whether missing tables are created when connecting. Default true. Switch it off for a role that may not
    /// create tables. One table without the other is never completed: it means that counters were lost.
    pub fn auto_create_tables(mut self, yes: bool) -> Self {
        self.auto_create_tables = yes;
        self
    }

    /// Sets whether `is_locked` removes the key's lock, in the background, if it has been dead for two seconds. Default
    /// false: looking changes nothing.
    pub fn cleanup_in_is_locked(mut self, yes: bool) -> Self {
        self.cleanup_in_is_locked = yes;
        self
    }

    /// Sets whether a fence is never below the server's time in milliseconds, so that it rises even after the counters
    /// were lost (an asynchronous failover, a restore). The first fence of a key is then not 1. Default false.
    pub fn fence_floor(mut self, clock: bool) -> Self {
        self.fence_floor = clock;
        self
    }

    /// Sets whether statements get names on the server.
    pub fn prepared(mut self, prepared: Prepared) -> Self {
        self.prepared = prepared;
        self
    }

    /// Sets how many connections are kept at most, beside one that listens for wake-ups. Default 16. Operations take a
    /// connection for one round trip each and never while they wait for a lock.
    pub fn pool_size(mut self, connections: usize) -> Self {
        self.pool_size = connections;
        self
    }

    /// Sets how long one attempt to connect may take. Default 2 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets how long the server may wait for another transaction that works on the same key. Default 1 s.
    pub fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// Sets how long one operation may take altogether. Default 5 s; acquire and extend also stop at a third of their
    /// ttl, but not before 1 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets whether waiters are woken by the server (on one connection of their own) or only look again from time to
    /// time. Default true.
    pub fn wake(mut self, yes: bool) -> Self {
        self.wake = yes;
        self
    }

    /// Sets where to listen for wake-ups if the main address leads to a pooler: a URL straight to the server.
    pub fn wake_url(mut self, url: impl Into<String>) -> Self {
        self.wake_url = Some(url.into());
        self
    }

    /// Sets whether a server on another machine must prove by its certificate who it is, before anything is sent to it:
    /// `verify-full`, `verify-ca` with roots of your own, or `require` with roots. Default false, as in libpq; a plain
    /// connection is warned of.
    pub fn require_tls(mut self, yes: bool) -> Self {
        self.require_tls = yes;
        self
    }

    /// Returns how the way to the servers is protected by these settings and the environment.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad setting, or where [`require_tls`](Self::require_tls) refuses the way.
    pub fn protection(&self) -> Result<Protection> {
        crate::connect::protection(self)
    }

    /// Sets how connections are encrypted.
    pub fn sslmode(mut self, mode: SslMode) -> Self {
        self.tls.mode = Some(mode);
        self
    }

    /// Sets the PEM file with the roots to trust, or `system`.
    pub fn sslrootcert(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.root = Some(file.into());
        self
    }

    /// Sets the PEM file with the client's certificate. Goes with [`sslkey`](Self::sslkey).
    pub fn sslcert(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.cert = Some(file.into());
        self
    }

    /// Sets the PEM file with the key of the client's certificate.
    pub fn sslkey(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.key = Some(file.into());
        self
    }

    /// Sets which kind of server will do, where several hosts are named.
    pub fn target_session_attrs(mut self, wanted: TargetSessionAttrs) -> Self {
        self.target_session_attrs = Some(wanted);
        self
    }

    /// Connects, and creates the tables if they are missing and may be created.
    ///
    /// Takes no longer than `connect_timeout` per host, then `timeout`, and 30 s more where tables are created.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad setting or table; otherwise why the server cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn connect(self) -> Result<PostgresBackend> {
        PostgresBackend::start(self).await
    }

    /// Uses a pool that was made elsewhere. Wake-ups then need [`wake_url`](Self::wake_url); the settings of
    /// connections are the pool's own.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    #[cfg(feature = "deadpool")]
    pub async fn connect_with_pool(self, pool: deadpool_postgres::Pool) -> Result<PostgresBackend> {
        PostgresBackend::start_with_pool(self, pool).await
    }

    /// Makes one connection with these settings (hosts, passwords, TLS) and gives it to you, for what a lock protects. No table
    /// is looked at or created. It is carried by a task of the present runtime and ends with the client.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection.
    #[cfg(feature = "client")]
    pub async fn client(self) -> Result<tokio_postgres::Client> {
        self.validate()?;
        let connected = crate::connect::Target::new(&self)?.connect(crate::introduce::Purpose::Other).await?;
        let mut messages = connected.messages;
        tokio::spawn(async move {
            while let Some(Ok(_)) = std::future::poll_fn(|cx| messages.as_mut().poll_next(cx)).await {}
        });
        Ok(connected.client)
    }

    pub(crate) fn tables(&self) -> Result<Tables> {
        Tables::parse(&self.table, &self.fence_table)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.pool_size == 0 || self.pool_size > 10_000 {
            return Err(LockError::invalid("pool_size is outside 1..=10000"));
        }
        let limits = [self.connect_timeout, self.lock_timeout, self.timeout];
        if limits.iter().any(|limit| limit.as_millis() == 0 || limit.as_secs() > 3600) {
            return Err(LockError::invalid("a timeout is outside 1 ms ..= 1 h"));
        }
        Ok(())
    }
}
