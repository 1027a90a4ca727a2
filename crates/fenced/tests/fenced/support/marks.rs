//! The stores of marks, as the suite wants them.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use syncguard_fenced::MemoryMarks;
use syncguard_fenced::file::FileMarks;
use syncguard_fenced::postgres::PostgresMarks;
use syncguard_fenced::redis::RedisMarks;
use syncguard_fenced::sqlite::SqliteMarks;
use syncguard_fenced::suite::Harness;
use tempfile::TempDir;

/// Forgets when it is closed, so all clients share one.
pub(crate) struct Memory(pub(crate) Arc<MemoryMarks>);

impl Harness for Memory {
    type Marks = Arc<MemoryMarks>;

    async fn open(&self) -> Arc<MemoryMarks> {
        self.0.clone()
    }
}

pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Harness for Files {
    type Marks = FileMarks;

    async fn open(&self) -> FileMarks {
        FileMarks::new(self.0.path())
    }
}

pub(crate) struct SqliteFile(TempDir);

impl SqliteFile {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Harness for SqliteFile {
    type Marks = SqliteMarks;

    async fn open(&self) -> SqliteMarks {
        let connection = Connection::open(self.0.path().join("marks.db")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        SqliteMarks::new(connection).unwrap()
    }
}

pub(crate) struct Postgres(String);

impl Postgres {
    pub(crate) fn new() -> Self {
        Self(syncguard_testkit::fresh_postgres_database())
    }
}

impl Harness for Postgres {
    type Marks = PostgresMarks;

    async fn open(&self) -> PostgresMarks {
        PostgresMarks::new(super::ledger::connect(&self.0).await).await.unwrap()
    }
}

pub(crate) struct Redis {
    url: String,
    prefix: String,
}

impl Redis {
    pub(crate) fn new() -> Self {
        // The server is shared: another run's marks must not be ours.
        Self { url: syncguard_testkit::redis_url(), prefix: unique("marks") }
    }
}

/// A name that no other test has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", syncguard_core::LockId::random().as_str())
}

impl Harness for Redis {
    type Marks = RedisMarks<MultiplexedConnection>;

    async fn open(&self) -> Self::Marks {
        let client = redis::Client::open(self.url.as_str()).unwrap();
        RedisMarks::new(client.get_multiplexed_async_connection().await.unwrap(), &self.prefix)
    }
}
