//! Where are the ledgers of one test?

use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use tempfile::TempDir;

use super::ledger::{Ledger, Place, prepare_postgres};
use super::service;

/// All kinds of ledger.
pub(crate) const KINDS: [&str; 7] = ["file", "sqlite", "postgres", "sqlx", "redis", "http", "object"];

/// The ledgers of some kinds, each with its guard and without, and the servers behind them. Servers of its own: 64
/// writers that are killed leave too many connections behind for one that others use.
pub(crate) struct World {
    folder: TempDir,
    postgres: Option<PostgresServer>,
    redis: Option<RedisServer>,
    service: Option<String>,
}

impl World {
    pub(crate) fn start(kinds: &[&str]) -> Self {
        let has = |kind| kinds.contains(&kind);
        let postgres = (has("postgres") || has("sqlx"))
            .then(|| PostgresServer::start(PostgresOptions::new().config("max_connections = 400")));
        Self {
            folder: tempfile::tempdir().unwrap(),
            postgres,
            redis: has("redis").then(|| RedisServer::start(RedisOptions::new())),
            service: (has("http") || has("object")).then(service::start),
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// One ledger with its guard, one without.
    pub(crate) async fn places(&self, kind: &str) -> [Place; 2] {
        let both = |location: &str| [true, false].map(|guarded| Place::new(kind, location, guarded));
        match kind {
            "postgres" | "sqlx" => {
                let url = self.postgres.as_ref().unwrap().fresh_database();
                prepare_postgres(&url).await;
                both(&url)
            }
            "redis" => both(&self.redis.as_ref().unwrap().url()),
            "http" | "object" => both(self.service.as_ref().unwrap()),
            _ => [true, false].map(|guarded| Place::new(kind, self.path(&format!("{kind}-{guarded}")), guarded)),
        }
    }
}

/// What was accepted there, in order.
pub(crate) async fn entries(place: &Place) -> Vec<u64> {
    Ledger::open(place).await.entries().await
}
