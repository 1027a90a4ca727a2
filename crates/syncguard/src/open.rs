//! Which storage stands behind this URL?
//!
//! A dispatch by scheme and nothing more: options, their defaults and their errors belong to each backend.

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
/// | `sqlite:PATH` | `sqlite` (default) | this machine |
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
    // Boxed: opening happens once, and its state, TLS and all, would otherwise make every caller's future kilobytes
    // large.
    match Scheme::of(url)? {
        Scheme::Memory => memory(url),
        #[cfg(feature = "sqlite")]
        Scheme::Sqlite => Ok(AnyBackend::new(Box::pin(syncguard_sqlite::SqliteBackend::connect(url)).await?)),
        #[cfg(feature = "redis")]
        Scheme::Redis => Ok(AnyBackend::new(Box::pin(syncguard_redis::RedisBackend::connect(url)).await?)),
        #[cfg(feature = "postgres")]
        Scheme::Postgres => Ok(AnyBackend::new(Box::pin(syncguard_postgres::PostgresBackend::connect(url)).await?)),
        #[cfg(feature = "firestore")]
        Scheme::Firestore => Ok(AnyBackend::new(Box::pin(syncguard_firestore::FirestoreBackend::connect(url)).await?)),
        #[allow(unreachable_patterns, reason = "reachable while a backend's feature is off")]
        scheme => Err(not_compiled_in(scheme)),
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
