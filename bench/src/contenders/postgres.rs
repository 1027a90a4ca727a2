//! PostgreSQL's advisory locks: they live in the memory of the server and as long as the connection that took them, have
//! no lease and no fence, write nothing, and need a connection for every lock that is held or waited for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

use anyhow::Result;
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPool, PgPoolOptions};
use tokio_postgres::{Client, NoTls, Statement};

use crate::contender::{Contender, Lock, Taken};

/// As many as wait at most, and the holder.
const CONNECTIONS: u32 = 101;

/// Two prepared statements on tokio-postgres, and the simplest pool there is.
pub(super) struct Plain {
    url: String,
    idle: Mutex<Vec<Session>>,
}

pub(super) struct Session {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

impl Plain {
    pub(super) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), idle: Mutex::default() }
    }

    async fn session(&self) -> Result<Session> {
        let idle = self.idle.lock().expect("nobody panics").pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        let lock = client.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await?;
        Ok(Session { client, lock, unlock })
    }
}

impl Lock for Plain {
    type Held = (Session, i64);

    async fn acquire(&self, key: &str) -> Result<(Session, i64)> {
        let (session, number) = (self.session().await?, number_of(key));
        session.client.query_one(&session.lock, &[&number]).await?;
        Ok((session, number))
    }

    async fn release(&self, (session, number): (Session, i64)) -> Result<()> {
        session.client.query_one(&session.unlock, &[&number]).await?;
        self.idle.lock().expect("nobody panics").push(session);
        Ok(())
    }
}

fn number_of(key: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    i64::from_ne_bytes(hasher.finish().to_ne_bytes())
}

/// `sqlx::postgres::PgAdvisoryLock`.
pub(super) struct Sqlx(PgPool);

impl Sqlx {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        Ok(Self(PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?))
    }
}

impl Lock for Sqlx {
    type Held = PgAdvisoryLockGuard<PoolConnection<sqlx::Postgres>>;

    async fn acquire(&self, key: &str) -> Result<Self::Held> {
        let lock = PgAdvisoryLock::new(format!("sqlx:{key}"));
        Ok(lock.acquire(self.0.acquire().await?).await?)
    }

    async fn release(&self, held: Self::Held) -> Result<()> {
        held.release_now().await?;
        Ok(())
    }
}

/// The crate `distributed-lock`.
pub(super) async fn distributed_lock(url: &str) -> Result<Box<dyn Contender>> {
    let pool = sqlx_0_8::postgres::PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
    Ok(Taken::boxed(Distributed(PostgresLockProvider::builder().pool(pool).build().await?)))
}

struct Distributed(PostgresLockProvider);

impl Lock for Distributed {
    type Held = PostgresLockHandle;

    async fn acquire(&self, key: &str) -> Result<Self::Held> {
        Ok(self.0.create_lock(key).acquire(None).await?)
    }

    async fn release(&self, held: Self::Held) -> Result<()> {
        Ok(held.release().await?)
    }
}
