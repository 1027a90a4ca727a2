//! What do the tests of this crate share?
#![allow(dead_code, reason = "every test binary uses a part of it")]

pub(crate) mod rights;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, Key, Lease, LockBackend, LockId, Ttl};
use syncguard_postgres::{PostgresBackend, PostgresBuilder};
use tokio_postgres::{Client, NoTls};

/// Long enough for a busy machine, and never the expected case.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A pair of table names that nobody else uses.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) locks: String,
    pub(crate) fences: String,
}

impl Tables {
    pub(crate) fn fresh() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = LockId::random().hash().to_string();
        Self { locks: format!("l{number}_{name}"), fences: format!("f{number}_{name}") }
    }

    pub(crate) fn builder(&self) -> PostgresBuilder {
        self.name(PostgresBuilder::default())
    }

    /// The settings of a URL, on these tables.
    pub(crate) fn at(&self, url: &str) -> PostgresBuilder {
        self.name(PostgresBuilder::from_url(url).expect("a good URL"))
    }

    fn name(&self, builder: PostgresBuilder) -> PostgresBuilder {
        // The defaults suit people who wait; a busy machine that runs tests may take longer.
        let builder = builder.connect_timeout(PATIENCE).timeout(PATIENCE / 2);
        builder.table(&self.locks).fence_table(&self.fences).pool_size(8)
    }
}

/// A connection straight to the server, for peeking and for standing in as another client.
pub(crate) async fn sql(url: &str) -> Client {
    let bare = url.split('?').next().unwrap_or(url);
    let (client, connection) = tokio_postgres::connect(bare, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("a good key")
}

pub(crate) fn ttl(millis: i64) -> Ttl {
    Ttl::from_millis(millis).expect("a good ttl")
}

/// One attempt. On a busy machine an answer may come too late; then the same id asks again.
pub(crate) async fn try_acquire(backend: &PostgresBackend, name: &str, millis: i64) -> Option<(LockId, Lease)> {
    let (key, lock_id) = (key(name), LockId::random());
    let request = AcquireRequest::new(&key, &lock_id, ttl(millis));
    let trying = async {
        loop {
            match backend.acquire(request).await {
                Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => return answer.expect("acquire answers"),
            }
        }
    };
    match tokio::time::timeout(PATIENCE, trying).await.expect("acquire answers in time") {
        AcquireOutcome::Acquired(lease) => Some((lock_id, lease)),
        AcquireOutcome::Contended(_) => None,
    }
}

/// Tries until it is true, for at most `limit`.
pub(crate) async fn eventually(limit: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let trying = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(limit, trying).await.is_ok()
}
