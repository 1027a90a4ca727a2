//! Which servers does the whole test run share?
//!
//! `cargo xtask test` starts one of each and exports their URLs. Where a variable is absent (a developer runs `cargo
//! nextest` or `cargo test` alone), the first test that asks starts a private server that lives as long as its process.
//! nextest has one process per test, so for many tests the quick way is `cargo xtask test --quick -p PACKAGE`, or
//! `cargo xtask servers` in another terminal. Set a variable yourself to use a server that exists already.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::firestore::FirestoreEmulator;
use crate::postgres::{PgBouncer, PgBouncerOptions, PgClient, PostgresOptions, PostgresServer};
use crate::redis::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};

/// The names of the variables.
pub mod variables {
    /// `redis://…`
    pub const REDIS: &str = "SYNCGUARD_TEST_REDIS_URL";
    /// `rediss://…`
    pub const REDIS_TLS: &str = "SYNCGUARD_TEST_REDIS_TLS_URL";
    /// The path of the certificate to trust for [`REDIS_TLS`].
    pub const REDIS_CA: &str = "SYNCGUARD_TEST_REDIS_CA";
    /// `redis+cluster://…`
    pub const REDIS_CLUSTER: &str = "SYNCGUARD_TEST_REDIS_CLUSTER_URL";
    /// `redis+sentinel://…`
    pub const REDIS_SENTINEL: &str = "SYNCGUARD_TEST_REDIS_SENTINEL_URL";
    /// `postgres://…` of a role that may create databases.
    pub const POSTGRES: &str = "SYNCGUARD_TEST_POSTGRES_URL";
    /// `postgres://…?sslmode=require`
    pub const POSTGRES_TLS: &str = "SYNCGUARD_TEST_POSTGRES_TLS_URL";
    /// The path of the certificate to trust for [`POSTGRES_TLS`].
    pub const POSTGRES_CA: &str = "SYNCGUARD_TEST_POSTGRES_CA";
    /// `postgres://…` through a transaction pooler.
    pub const PGBOUNCER: &str = "SYNCGUARD_TEST_PGBOUNCER_URL";
    /// `host:port` of Google's emulator.
    pub const FIRESTORE: &str = "SYNCGUARD_TEST_FIRESTORE_EMULATOR";
    /// All of them.
    pub const ALL: [&str; 10] = [
        REDIS,
        REDIS_TLS,
        REDIS_CA,
        REDIS_CLUSTER,
        REDIS_SENTINEL,
        POSTGRES,
        POSTGRES_TLS,
        POSTGRES_CA,
        PGBOUNCER,
        FIRESTORE,
    ];
}

/// The URL of a plain Redis.
pub fn redis_url() -> String {
    given(variables::REDIS).unwrap_or_else(|| redis().url())
}

/// The URL of a Redis behind TLS; trust [`redis_ca`].
pub fn redis_tls_url() -> String {
    given(variables::REDIS_TLS).unwrap_or_else(|| redis().tls_url())
}

/// The certificate to trust for [`redis_tls_url`].
pub fn redis_ca() -> PathBuf {
    given(variables::REDIS_CA).map_or_else(|| redis().ca_path().to_owned(), PathBuf::from)
}

/// The URL of a Redis Cluster with three masters and three replicas.
pub fn redis_cluster_url() -> String {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    given(variables::REDIS_CLUSTER).unwrap_or_else(|| CLUSTER.get_or_init(|| RedisCluster::start(3, 1)).url())
}

/// The URL of three sentinels that watch a master and a replica. Do not fail it over: others use it too.
pub fn redis_sentinel_url() -> String {
    static SENTINEL: OnceLock<RedisSentinel> = OnceLock::new();
    given(variables::REDIS_SENTINEL).unwrap_or_else(|| SENTINEL.get_or_init(|| RedisSentinel::start(1)).url())
}

/// The URL of a PostgreSQL, as a role that may create databases. See [`fresh_postgres_database`].
pub fn postgres_url() -> String {
    given(variables::POSTGRES).unwrap_or_else(|| postgres().url())
}

/// The URL of a PostgreSQL that insists on TLS; trust [`postgres_ca`].
pub fn postgres_tls_url() -> String {
    given(variables::POSTGRES_TLS).unwrap_or_else(|| postgres().tls_url())
}

/// The certificate to trust for [`postgres_tls_url`].
pub fn postgres_ca() -> PathBuf {
    given(variables::POSTGRES_CA).map_or_else(|| postgres().ca_path().to_owned(), PathBuf::from)
}

/// The URL of a PostgreSQL behind `PgBouncer` in transaction mode.
pub fn pgbouncer_url() -> String {
    static POOLER: OnceLock<PgBouncer> = OnceLock::new();
    given(variables::PGBOUNCER).unwrap_or_else(|| POOLER.get_or_init(|| PgBouncer::start(postgres())).url())
}

/// Makes an empty database on the server of [`postgres_url`] and returns its URL.
///
/// # Panics
///
/// When the server refuses.
pub fn fresh_postgres_database() -> String {
    fresh_database_at(&postgres_url())
}

/// Makes an empty database on the server behind `url` and returns its URL: the same with another database. It works
/// through a pooler too.
///
/// # Panics
///
/// When the server refuses.
pub fn fresh_database_at(url: &str) -> String {
    try_fresh_database(url).unwrap_or_else(|error| panic!("cannot make a database: {error:#}"))
}

/// `host:port` of Google's Firestore emulator.
///
/// # Errors
///
/// The reason why there is none: it is the one server a machine may lack, and the test that wanted it prints the
/// reason.
pub fn firestore_emulator() -> Result<String> {
    static EMULATOR: OnceLock<Result<FirestoreEmulator, String>> = OnceLock::new();
    if let Some(address) = given(variables::FIRESTORE) {
        return Ok(address);
    }
    let started = EMULATOR.get_or_init(|| FirestoreEmulator::try_start().map_err(|error| format!("{error:#}")));
    started.as_ref().map(FirestoreEmulator::address).map_err(|reason| anyhow::anyhow!("{reason}"))
}

fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

fn redis() -> &'static RedisServer {
    static REDIS: OnceLock<RedisServer> = OnceLock::new();
    // Not every build of a server has TLS; who asks for it then hears so.
    REDIS.get_or_init(|| {
        RedisServer::try_start(RedisOptions::new().tls()).unwrap_or_else(|_| RedisServer::start(RedisOptions::new()))
    })
}

fn postgres() -> &'static PostgresServer {
    static POSTGRES: OnceLock<PostgresServer> = OnceLock::new();
    POSTGRES.get_or_init(|| PostgresServer::start(PostgresOptions::new().tls()))
}

fn try_fresh_database(url: &str) -> Result<String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // The time keeps the names of two runs apart on a server that outlives them.
    let time = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let name = format!("test_{}_{time}_{number}", std::process::id());
    let sql = format!("CREATE DATABASE {name}");
    match own_server_port(url) {
        Some(port) => drop(PgClient::connect(port, "postgres", "postgres")?.query(&sql)?),
        None => run_psql(url, &sql)?,
    }
    with_database(url, &name)
}

/// The port of a URL that [`PostgresServer`] or [`PgBouncer`] made: no password, so our own client will do.
fn own_server_port(url: &str) -> Option<u16> {
    let rest = url.strip_prefix("postgres://postgres@")?;
    let rest = rest.strip_prefix("127.0.0.1:").or_else(|| rest.strip_prefix("localhost:"))?;
    rest.split('/').next()?.parse().ok()
}

fn run_psql(url: &str, sql: &str) -> Result<()> {
    let output = Command::new("psql").args(["-X", "-q", "-c", sql, url]).output().context("cannot run psql")?;
    ensure!(output.status.success(), "psql failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Replaces the path of a URL.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (base, query) = url.split_once('?').map_or((url, None), |(base, query)| (base, Some(query)));
    let host_at = base.find("://").context("the URL has no scheme")? + 3;
    let end = base[host_at..].find('/').map_or(base.len(), |slash| host_at + slash);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Ok(format!("{}/{name}{query}", &base[..end]))
}

/// One server of each kind, for a whole test run.
#[derive(Debug, Default)]
pub struct Servers {
    // The pooler drops before the server it leads to.
    pooler: Option<PgBouncer>,
    postgres: Option<PostgresServer>,
    redis: Option<RedisServer>,
    cluster: Option<RedisCluster>,
    sentinel: Option<RedisSentinel>,
    firestore: Option<FirestoreEmulator>,
    firestore_absent: Option<String>,
    /// The variables that name a server which is not ours.
    elsewhere: Vec<&'static str>,
}

impl Servers {
    /// Starts what the environment does not name yet, all at once.
    ///
    /// # Errors
    ///
    /// When a server is not installed or does not start. Google's emulator is optional.
    pub fn start() -> Result<Self> {
        Self::start_except(variables::ALL.into_iter().filter(|variable| given(variable).is_some()).collect())
    }

    /// Starts one of each, whatever the environment says.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_all() -> Result<Self> {
        Self::start_except(Vec::new())
    }

    fn start_except(elsewhere: Vec<&'static str>) -> Result<Self> {
        let mut servers = Self::default();
        std::thread::scope(|scope| {
            let absent = |variable: &'static str| !elsewhere.contains(&variable);
            let redis = (absent(variables::REDIS) || absent(variables::REDIS_TLS))
                .then(|| scope.spawn(|| RedisServer::try_start(RedisOptions::new().tls())));
            let cluster = absent(variables::REDIS_CLUSTER).then(|| scope.spawn(|| RedisCluster::try_start(3, 1)));
            let sentinel = absent(variables::REDIS_SENTINEL).then(|| scope.spawn(|| RedisSentinel::try_start(1)));
            let postgres = [variables::POSTGRES, variables::POSTGRES_TLS, variables::PGBOUNCER]
                .into_iter()
                .any(absent)
                .then(|| scope.spawn(start_postgres));
            let firestore = absent(variables::FIRESTORE).then(|| scope.spawn(FirestoreEmulator::try_start));
            servers.redis = started(redis)?;
            servers.cluster = started(cluster)?;
            servers.sentinel = started(sentinel)?;
            (servers.postgres, servers.pooler) = started(postgres)?.unzip();
            // Absent is allowed; installed and broken is not.
            match started(firestore) {
                Err(reason) if FirestoreEmulator::find().is_err() => {
                    servers.firestore_absent = Some(format!("{reason:#}"));
                }
                outcome => servers.firestore = outcome?,
            }
            anyhow::Ok(())
        })?;
        servers.elsewhere = elsewhere;
        Ok(servers)
    }

    /// The variables to export; what the environment names already is left as it is.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let path = |path: &std::path::Path| path.display().to_string();
        let mut exported = Vec::new();
        if let Some(redis) = &self.redis {
            exported.push((variables::REDIS, redis.url()));
            exported.push((variables::REDIS_TLS, redis.tls_url()));
            exported.push((variables::REDIS_CA, path(redis.ca_path())));
        }
        exported.extend(self.cluster.as_ref().map(|cluster| (variables::REDIS_CLUSTER, cluster.url())));
        exported.extend(self.sentinel.as_ref().map(|sentinel| (variables::REDIS_SENTINEL, sentinel.url())));
        if let Some(postgres) = &self.postgres {
            exported.push((variables::POSTGRES, postgres.url()));
            exported.push((variables::POSTGRES_TLS, postgres.tls_url()));
            exported.push((variables::POSTGRES_CA, path(postgres.ca_path())));
        }
        exported.extend(self.pooler.as_ref().map(|pooler| (variables::PGBOUNCER, pooler.url())));
        exported.extend(self.firestore.as_ref().map(|emulator| (variables::FIRESTORE, emulator.address())));
        exported.retain(|(variable, _)| !self.elsewhere.contains(variable));
        exported
    }

    /// The process ids of all servers.
    pub fn pids(&self) -> Vec<u32> {
        let cluster = self.cluster.iter().flat_map(RedisCluster::nodes);
        let sentinel = self.sentinel.iter().flat_map(|sentinel| sentinel.servers().iter().chain(sentinel.sentinels()));
        let mut pids: Vec<u32> = self.redis.iter().chain(cluster).chain(sentinel).map(RedisServer::pid).collect();
        pids.extend(self.postgres.as_ref().map(PostgresServer::pid));
        pids.extend(self.pooler.as_ref().map(PgBouncer::pid));
        pids.extend(self.firestore.as_ref().map(FirestoreEmulator::pid));
        pids
    }

    /// Why there is no Firestore emulator, if there is none.
    pub fn firestore_absent(&self) -> Option<&str> {
        self.firestore_absent.as_deref()
    }
}

fn start_postgres() -> Result<(PostgresServer, PgBouncer)> {
    let server = PostgresServer::try_start(PostgresOptions::new().tls())?;
    let pooler = PgBouncer::try_start(&server, &PgBouncerOptions::new())?;
    Ok((server, pooler))
}

fn started<T>(thread: Option<std::thread::ScopedJoinHandle<'_, Result<T>>>) -> Result<Option<T>> {
    match thread {
        Some(thread) => thread.join().map_err(|_| anyhow::anyhow!("starting a server panicked"))?.map(Some),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_keeps_everything_but_its_database() {
        let url = "postgres://me:pw@host:1/old?sslmode=require";
        assert_eq!(with_database(url, "new").expect("url"), "postgres://me:pw@host:1/new?sslmode=require");
        assert_eq!(with_database("postgres://host", "new").expect("url"), "postgres://host/new");
    }

    #[test]
    fn only_servers_of_our_own_making_are_asked_without_a_password() {
        assert_eq!(own_server_port("postgres://postgres@127.0.0.1:15001/postgres"), Some(15_001));
        assert_eq!(own_server_port("postgres://postgres@localhost:15001/x?sslmode=require"), Some(15_001));
        assert_eq!(own_server_port("postgres://postgres:pw@127.0.0.1:15001/postgres"), None);
        assert_eq!(own_server_port("postgres://app@db.example/postgres"), None);
    }
}
