//! Who takes part?

mod etcd;
mod files;
mod ours;
mod postgres;
mod redis;

use anyhow::Result;

use crate::contender::{Contender, Taken};
use crate::servers::Servers;

/// Which servers and guarantees a contender belongs to: those of one group stand in one chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Redis,
    Databases,
    OneMachine,
    Client,
}

impl Group {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Databases => "PostgreSQL and etcd",
            Self::OneMachine => "one machine",
            Self::Client => "client and emulator",
        }
    }
}

/// One who takes part.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// Whose figures its own are divided by.
    pub(crate) beside: &'static str,
    pub(crate) contender: Box<dyn Contender>,
}

pub(crate) const OUR_REDIS: &str = "SyncGuard, Redis";
pub(crate) const OUR_POSTGRES: &str = "SyncGuard, PostgreSQL";
pub(crate) const OUR_SQLITE: &str = "SyncGuard, sqlite";
pub(crate) const OUR_MEMORY: &str = "SyncGuard, memory";
pub(crate) const OUR_FIRESTORE: &str = "SyncGuard, Firestore emulator";
pub(crate) const ETCD: &str = "etcd";
pub(crate) const RSLOCK: &str = "rslock, 1 server";

/// Everybody of the wanted groups, connected.
pub(crate) async fn all(servers: &Servers, wants: impl Fn(Group) -> bool) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    let mut add = |name, group, beside, contender| all.push(Entry { name, group, beside, contender });
    if wants(Group::Redis) {
        let urls: Vec<String> = servers.redis.iter().map(syncguard_testkit::RedisServer::url).collect();
        let group = Group::Redis;
        add(OUR_REDIS, group, OUR_REDIS, ours::connect(&urls[0]).await?);
        add("raw socket, SET NX", group, OUR_REDIS, Box::new(redis::Raw::connect(servers.redis[0].port()).await?));
        add(RSLOCK, group, OUR_REDIS, redis::rslock(&urls[..1]));
        add("rslock, 3 servers", group, OUR_REDIS, redis::rslock(&urls));
        add("distributed-lock, Redis", group, OUR_REDIS, redis::distributed_lock(&urls[0]).await?);
    }
    if wants(Group::Databases) {
        let (url, group) = (servers.postgres.url(), Group::Databases);
        add(OUR_POSTGRES, group, OUR_POSTGRES, ours::connect(&url).await?);
        add(
            "SyncGuard, PostgreSQL without fsync",
            group,
            OUR_POSTGRES,
            ours::connect(&servers.unsafe_postgres.url()).await?,
        );
        add("advisory lock, tokio-postgres", group, OUR_POSTGRES, Taken::boxed(postgres::Plain::new(&url)));
        add("advisory lock, sqlx", group, OUR_POSTGRES, Taken::boxed(postgres::Sqlx::connect(&url).await?));
        add("distributed-lock, PostgreSQL", group, OUR_POSTGRES, postgres::distributed_lock(&url).await?);
        add(ETCD, group, OUR_POSTGRES, Taken::boxed(etcd::Etcd::connect(&servers.etcd.url()).await?));
    }
    if wants(Group::OneMachine) {
        let (folder, group) = (servers.folder.path(), Group::OneMachine);
        add(
            OUR_SQLITE,
            group,
            OUR_SQLITE,
            ours::connect(&format!("sqlite:{}", folder.join("locks.db").display())).await?,
        );
        add("fd-lock", group, OUR_SQLITE, Box::new(files::FdLock::new(folder)));
        add("flock(1) with true(1)", group, OUR_SQLITE, Box::new(files::Flock::new(folder)));
    }
    if wants(Group::Client) {
        let group = Group::Client;
        add(OUR_MEMORY, group, OUR_MEMORY, ours::connect("memory:").await?);
        add(OUR_FIRESTORE, group, OUR_MEMORY, ours::connect(&servers.firestore.url()).await?);
    }
    Ok(all)
}
