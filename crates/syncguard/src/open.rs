//! Which storage stands behind this URL?
//!
//! A dispatch by scheme and nothing more: options, their defaults and their errors belong to each backend.

use syncguard_core::protection::{Protection, Way};
use syncguard_core::{AnyBackend, LockError, Locker, MemoryBackend, Result};

use crate::Scheme;

/// Connects to the backend that a URL names, and returns the locker that a program starts with.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard::LockError> {
/// let locker = syncguard::connect("memory:").await?;
/// assert_eq!(locker.lock("answer").run(async |_| 42).await?, 42);
/// locker.shutdown(Duration::from_secs(5)).await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// As [`open`].
pub async fn connect(url: &str) -> Result<Locker> {
    Ok(Locker::new(open(url).await?))
}

/// Opens the backend that a URL names, for those who want the backend itself. Most programs want [`connect`].
///
/// | URL | feature | seen by |
/// |---|---|---|
/// | `memory:` | – | this process |
/// | `sqlite:PATH` | `sqlite` | this machine |
/// | `redis://` `rediss://` `redis+unix://` `redis+cluster://` `redis+sentinel://` | `redis` | everybody who reaches it |
/// | `postgres://` | `postgres` | everybody who reaches it |
/// | `firestore://PROJECT[/DATABASE]` | `firestore` | everybody who reaches it |
///
/// ```
/// use syncguard::{LockBackend, open};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), syncguard::LockError> {
/// let backend = open("memory:").await?;
/// assert_eq!(backend.capabilities().backend, "memory");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) for an unknown scheme (the hint lists the known ones), a
/// scheme whose feature is off (the hint names it) and an unknown option (the hint names the known ones); otherwise
/// what the backend met when it opened. No part of the URL that could be a password is in any of them.
///
/// # Cancel safety
/// Dropping the future abandons the opening; nothing is locked by it.
pub async fn open(url: &str) -> Result<AnyBackend> {
    OpenOptions::new().open(url).await
}

/// What a program asks of every backend, whatever the URL says that somebody else wrote.
///
/// ```no_run
/// # async fn example(url: &str) -> Result<(), syncguard::LockError> {
/// let backend = syncguard::OpenOptions::new().require_tls(true).open(url).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    require_tls: bool,
    only_existing: bool,
}

impl OpenOptions {
    /// Asks for nothing, as [`open`] does.
    pub const fn new() -> Self {
        Self { require_tls: false, only_existing: false }
    }

    /// Sets whether a server on another machine must be spoken to over TLS and prove by its certificate who it is. Every
    /// address is refused otherwise before anything is sent there, also those that cluster nodes and sentinels announce.
    #[must_use]
    pub const fn require_tls(mut self, require: bool) -> Self {
        self.require_tls = require;
        self
    }

    /// Returns whether TLS is demanded.
    pub const fn requires_tls(self) -> bool {
        self.require_tls
    }

    /// Sets whether missing tables are left missing, which is an error then. A file of `sqlite:` is made all the same.
    #[must_use]
    pub const fn only_existing(mut self, only: bool) -> Self {
        self.only_existing = only;
        self
    }

    /// Opens the backend that a URL names.
    ///
    /// # Errors
    /// As [`open`], and `InvalidArgument` for a URL that these options refuse.
    ///
    /// # Cancel safety
    /// As [`open`].
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "redis", feature = "postgres", feature = "firestore")),
        allow(clippy::unused_async, reason = "without a backend there is nothing to await")
    )]
    pub async fn open(self, url: &str) -> Result<AnyBackend> {
        // Boxed: opening happens once, and its state, TLS and all, would otherwise make every caller's future kilobytes
        // large.
        match Scheme::of(url)? {
            Scheme::Memory => memory(url),
            #[cfg(feature = "sqlite")]
            Scheme::Sqlite => Ok(AnyBackend::new(Box::pin(syncguard_sqlite::SqliteBackend::connect(url)).await?)),
            #[cfg(feature = "redis")]
            Scheme::Redis => Ok(AnyBackend::new(Box::pin(self.redis(url)?.connect()).await?)),
            #[cfg(feature = "postgres")]
            Scheme::Postgres => Ok(AnyBackend::new(Box::pin(self.postgres(url)?.connect()).await?)),
            #[cfg(feature = "firestore")]
            Scheme::Firestore => Ok(AnyBackend::new(Box::pin(self.firestore(url)?.connect()).await?)),
            #[allow(unreachable_patterns, reason = "reachable while a backend's feature is off")]
            scheme => Err(not_compiled_in(scheme)),
        }
    }

    /// Returns how the way to a backend is protected, as far as its URL and the environment tell. Nothing is dialled.
    ///
    /// # Errors
    /// As [`open`](Self::open), as far as that is known without asking anybody.
    pub fn protection(self, url: &str) -> Result<Protection> {
        match Scheme::of(url)? {
            Scheme::Memory | Scheme::Sqlite => Ok(Protection::new(Way::Local, false)),
            #[cfg(feature = "redis")]
            Scheme::Redis => self.redis(url)?.protection(),
            #[cfg(feature = "postgres")]
            Scheme::Postgres => self.postgres(url)?.protection(),
            #[cfg(feature = "firestore")]
            Scheme::Firestore => self.firestore(url)?.protection(),
            #[allow(unreachable_patterns, reason = "reachable while a backend's feature is off")]
            scheme => Err(not_compiled_in(scheme)),
        }
    }

    #[cfg(feature = "redis")]
    fn redis(self, url: &str) -> Result<syncguard_redis::RedisBuilder> {
        let builder = syncguard_redis::RedisBuilder::from_url(url)?;
        Ok(if self.require_tls { builder.require_tls(true) } else { builder })
    }

    #[cfg(feature = "postgres")]
    fn postgres(self, url: &str) -> Result<syncguard_postgres::PostgresBuilder> {
        let builder = syncguard_postgres::PostgresBuilder::from_url(url)?;
        let builder = if self.only_existing { builder.auto_create_tables(false) } else { builder };
        Ok(if self.require_tls { builder.require_tls(true) } else { builder })
    }

    #[cfg(feature = "firestore")]
    fn firestore(self, url: &str) -> Result<syncguard_firestore::FirestoreBuilder> {
        Ok(syncguard_firestore::FirestoreBuilder::from_url(url)?.require_tls(self.require_tls))
    }
}

fn memory(url: &str) -> Result<AnyBackend> {
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    if !matches!(rest, "" | "//") {
        return Err(LockError::invalid("memory: takes no path and no options").with_hint("write just `memory:`"));
    }
    Ok(AnyBackend::new(MemoryBackend::new()))
}

fn not_compiled_in(scheme: Scheme) -> LockError {
    let feature = scheme.feature().unwrap_or_default();
    LockError::invalid(format!("this build has no {feature} backend"))
        .with_hint(format!("enable the cargo feature `{feature}`, for example: cargo build --features {feature}"))
}
