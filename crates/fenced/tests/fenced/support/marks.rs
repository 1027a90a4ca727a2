//! The stores of marks, as the suite wants them.

use std::sync::{Arc, Mutex};

use object_store::path::Path as ObjectPath;
use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use syncguard_core::{Fence, Key};
use syncguard_fenced::file::FileMarks;
use syncguard_fenced::object::FencedObject;
use syncguard_fenced::suite::Harness;
use syncguard_fenced::{HighWater, MemoryMarks, Result, postgres, redis as fenced_redis, sqlite};
use tempfile::TempDir;

use super::shelf::{ETags, Shelf};

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

pub(crate) struct SqliteMarks(Mutex<Connection>);

impl Harness for SqliteFile {
    type Marks = SqliteMarks;

    async fn open(&self) -> SqliteMarks {
        let connection = Connection::open(self.0.path().join("marks.db")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        sqlite::install(&connection).unwrap();
        SqliteMarks(Mutex::new(connection))
    }
}

impl HighWater for SqliteMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        sqlite::announce(&mut self.0.lock().unwrap(), key, fence)
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        sqlite::highest(&self.0.lock().unwrap(), key)
    }
}

/// Announces, or takes over from whoever is in the way.
pub(crate) struct Postgres {
    url: String,
    takes_over: bool,
}

impl Postgres {
    pub(crate) fn new(takes_over: bool) -> Self {
        Self { url: syncguard_testkit::fresh_postgres_database(), takes_over }
    }
}

pub(crate) struct PostgresMarks {
    client: tokio_postgres::Client,
    takes_over: bool,
}

impl Harness for Postgres {
    type Marks = PostgresMarks;

    async fn open(&self) -> PostgresMarks {
        let client = super::ledger::connect(&self.url).await;
        postgres::install(&client).await.unwrap();
        PostgresMarks { client, takes_over: self.takes_over }
    }
}

impl HighWater for PostgresMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        if self.takes_over {
            return postgres::take_over(&self.client, key, fence).await.map(drop);
        }
        postgres::announce(&self.client, key, fence).await
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        postgres::highest(&self.client, key).await
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

pub(crate) struct RedisMarks {
    connection: MultiplexedConnection,
    prefix: String,
}

impl Harness for Redis {
    type Marks = RedisMarks;

    async fn open(&self) -> Self::Marks {
        let client = redis::Client::open(self.url.as_str()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        RedisMarks { connection, prefix: self.prefix.clone() }
    }
}

impl RedisMarks {
    // Of any key the hash is a name that has a mark.
    fn name(&self, key: &Key) -> String {
        format!("{}:{}", self.prefix, key.hash())
    }
}

impl HighWater for RedisMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        fenced_redis::announce(&mut self.connection.clone(), &self.name(key), fence).await
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        let mark = fenced_redis::mark_key(&self.name(key))?;
        let stored: Option<String> =
            redis::cmd("GET").arg(mark).query_async(&mut self.connection.clone()).await.unwrap();
        Ok(stored.map(|text| text.parse().unwrap()))
    }
}

/// One object for each key, with the conditions of this kind of store.
pub(crate) struct Objects(Arc<Shelf>);

impl Objects {
    pub(crate) fn new(tags: ETags) -> Self {
        Self(Arc::new(Shelf::new(tags)))
    }
}

pub(crate) struct ObjectMarks(Arc<Shelf>);

impl Harness for Objects {
    type Marks = ObjectMarks;

    async fn open(&self) -> ObjectMarks {
        ObjectMarks(self.0.clone())
    }
}

impl ObjectMarks {
    fn object(&self, key: &Key) -> FencedObject<'_, Shelf> {
        let path = ObjectPath::from(key.hash().to_string());
        match self.0.tags {
            ETags::OfContents => FencedObject::enveloped(&*self.0, path),
            ETags::Generations => FencedObject::new(&*self.0, path),
        }
    }
}

impl HighWater for ObjectMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        self.object(key).announce(fence).await
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        self.object(key).highest().await
    }
}
