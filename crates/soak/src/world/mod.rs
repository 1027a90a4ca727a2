//! What do the workers talk to, and what can happen to it?

mod cluster;
mod emulator;
mod sentinel;
mod storage;

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use syncguard_testkit::redis::Appendonly;
use syncguard_testkit::{
    Disk, Fault, FaultProxy, PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer, RedisCluster, RedisOptions,
    RedisSentinel, RedisServer,
};

use crate::random::Random;
use emulator::Emulator;
pub use storage::{DECIDING_CLOCK_STEPS_MS, SLACK_MS, Storage};

/// How long one call of a worker may take. Shorter than the lease, so that a silent server is noticed within it.
const TIMEOUT: &str = "timeout=1s";

/// How long one call may take where nothing is broken on purpose.
const PATIENCE: &str = "timeout=30s";

/// The size of the disks that are filled: enough for the data of a long run, little enough to fill in a moment.
const DISK_MB: u64 = 192;

/// The storage of a run, behind proxies.
pub struct World {
    storage: Storage,
    /// Before the server, or one before the server and one before the pooler.
    front: Vec<FaultProxy>,
    /// Between the pooler and the server.
    behind: Option<FaultProxy>,
    server: Server,
    /// Where the files are, to be filled; `None` without root, or where there are none.
    disk: Option<Disk>,
    /// How far the server's clock is from the truth.
    clock_offset: i64,
    /// How many promotions were asked for.
    promotions: usize,
}

enum Server {
    Sqlite(PathBuf),
    Redis(RedisServer),
    Cluster(RedisCluster),
    Sentinel(RedisSentinel),
    Postgres {
        // The pooler drops before the server it leads to.
        pooler: PgBouncer,
        server: PostgresServer,
    },
    Firestore(Emulator),
}

/// In front of the server, for those who talk to it directly.
const FRONT: usize = 0;
/// In front of the pooler.
const POOLER: usize = 1;

impl World {
    /// Starts a storage. `folder` is for a file, if it is one.
    ///
    /// # Errors
    /// When a server is not installed or does not start.
    pub fn start(storage: Storage, folder: &Path) -> Result<Self> {
        let has_files = matches!(storage, Storage::Sqlite | Storage::Redis | Storage::Postgres);
        let disk = if has_files { Disk::in_memory(DISK_MB)? } else { None };
        let (mut front, mut behind) = (Vec::new(), None);
        let server = match storage {
            Storage::Sqlite => Server::Sqlite(disk.as_ref().map_or(folder, Disk::path).join("locks.db")),
            Storage::Redis => {
                let server = RedisServer::try_start(redis_options(disk.as_ref()))?;
                front.push(FaultProxy::start(server.port()));
                Server::Redis(server)
            }
            Storage::Cluster => Server::Cluster(cluster::start()?),
            Storage::Sentinel => Server::Sentinel(sentinel::start()?),
            Storage::Postgres => {
                let server = PostgresServer::try_start(postgres_options(disk.as_ref()))?;
                let between = FaultProxy::start(server.port());
                let pooler = PgBouncer::try_start_at(&server, between.port(), &PgBouncerOptions::new())?;
                front.extend([FaultProxy::start(server.port()), FaultProxy::start(pooler.port())]);
                behind = Some(between);
                Server::Postgres { pooler, server }
            }
            Storage::Firestore => {
                let emulator = Emulator::start()?;
                front.push(FaultProxy::start(emulator.port));
                Server::Firestore(emulator)
            }
        };
        let world = Self { storage, front, behind, server, disk, clock_offset: 0, promotions: 0 };
        world.proxies().for_each(FaultProxy::reset_holes);
        Ok(world)
    }

    /// What kind it is.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The URL of a worker, through a proxy where there is one.
    pub fn url(&self, worker: usize) -> String {
        match &self.server {
            Server::Postgres { .. } => self.postgres_url(if worker.is_multiple_of(2) { FRONT } else { POOLER }),
            _ => self.url_at(self.front.first().map_or(0, FaultProxy::port), TIMEOUT),
        }
    }

    /// The URL without any proxy, where servers do not tell their addresses themselves.
    pub fn direct_url(&self) -> String {
        match &self.server {
            Server::Sqlite(_) | Server::Cluster(_) | Server::Sentinel(_) => self.url_at(0, PATIENCE),
            Server::Redis(server) => self.url_at(server.port(), PATIENCE),
            Server::Postgres { server, .. } => self.url_at(server.port(), PATIENCE),
            Server::Firestore(emulator) => self.url_at(emulator.port, PATIENCE),
        }
    }

    fn url_at(&self, port: u16, timeout: &str) -> String {
        match &self.server {
            Server::Sqlite(path) => format!("sqlite:{}", path.display()),
            Server::Redis(_) => format!("redis://127.0.0.1:{port}?{timeout}"),
            Server::Cluster(cluster) => format!("{}?{timeout}", cluster.url()),
            // Nothing else keeps fences rising over the loss of their counter.
            Server::Sentinel(sentinel) => format!("{}?{timeout}&fence_floor=clock", sentinel.url()),
            Server::Postgres { .. } => format!("postgres://postgres@127.0.0.1:{port}/postgres?{timeout}"),
            Server::Firestore(_) => format!("firestore://soak?emulator=127.0.0.1:{port}&{timeout}"),
        }
    }

    fn postgres_url(&self, proxy: usize) -> String {
        // Notifications do not pass a transaction pooler.
        let wake = if proxy == POOLER { "&wake=false" } else { "" };
        format!("{}{wake}", self.url_at(self.front[proxy].port(), TIMEOUT))
    }

    /// The proxies that clients go through.
    pub fn front(&self) -> &[FaultProxy] {
        match &self.server {
            Server::Cluster(cluster) => cluster.proxies(),
            Server::Sentinel(sentinel) => sentinel.proxies(),
            _ => &self.front,
        }
    }

    /// The proxies between the pooler and the server, or between the nodes.
    pub fn between(&self) -> &[FaultProxy] {
        match &self.server {
            Server::Cluster(cluster) => cluster.bus_proxies(),
            _ => self.behind.as_slice(),
        }
    }

    fn proxies(&self) -> impl Iterator<Item = &FaultProxy> {
        self.front().iter().chain(self.between())
    }

    /// How often a proxy did something to bytes or connections.
    pub fn proxy_effects(&self) -> u64 {
        self.proxies().map(|proxy| proxy.counts().faults).sum()
    }

    /// How many pieces of replies were sent by a server and never arrived.
    pub fn replies_lost(&self) -> u64 {
        self.proxies().map(|proxy| proxy.counts().replies_lost).sum()
    }

    /// Lets everything pass again.
    ///
    /// # Errors
    /// When a cluster does not become whole.
    pub fn heal(&self) -> Result<()> {
        for proxy in self.proxies() {
            proxy.set(Fault::Pass);
        }
        if let Server::Cluster(cluster) = &self.server { cluster.wait_whole() } else { Ok(()) }
    }

    /// Kills a server with SIGKILL and starts it again after a while. The emulator, which is inside this process,
    /// closes all connections instead.
    ///
    /// # Errors
    /// When it does not start again.
    pub fn kill_server(&mut self, down: Duration, random: &mut Random) -> Result<bool> {
        match &mut self.server {
            Server::Sqlite(_) => return Ok(false),
            Server::Redis(server) => {
                server.kill_hard();
                sleep(down);
                server.restart();
            }
            Server::Cluster(cluster) => {
                let index = pick_node(cluster.nodes().len(), random);
                cluster.node_mut(index).kill_hard();
                sleep(down);
                cluster.node_mut(index).restart();
                cluster.wait_whole()?;
            }
            Server::Sentinel(sentinel) => return sentinel::lose_the_master(sentinel),
            Server::Postgres { server, .. } => {
                server.kill_hard();
                sleep(down);
                server.restart();
            }
            Server::Firestore(emulator) => emulator.restart(down)?,
        }
        Ok(true)
    }

    /// Freezes a server with SIGSTOP for a while.
    pub fn pause_server(&self, length: Duration, random: &mut Random) -> bool {
        match &self.server {
            Server::Redis(server) => pause(server, length),
            Server::Cluster(cluster) => pause(cluster.node(pick_node(cluster.nodes().len(), random)), length),
            Server::Postgres { server, .. } => {
                server.pause();
                sleep(length);
                server.resume();
            }
            Server::Sqlite(_) | Server::Sentinel(_) | Server::Firestore(_) => return false,
        }
        true
    }

    /// Kills the pooler and starts another in its place.
    ///
    /// # Errors
    /// When that does not start.
    pub fn replace_pooler(&mut self) -> Result<bool> {
        let (Server::Postgres { pooler, server }, Some(behind)) = (&mut self.server, &self.behind) else {
            return Ok(false);
        };
        pooler.kill_hard();
        *pooler = PgBouncer::try_start_at(server, behind.port(), &PgBouncerOptions::new())?;
        self.front[POOLER].set_target(pooler.port());
        Ok(true)
    }

    /// Has every Redis forget all scripts.
    ///
    /// # Errors
    /// When a server does not answer.
    pub fn flush_scripts(&self) -> Result<bool> {
        self.tell_every_redis(&["SCRIPT", "FLUSH"])
    }

    /// Has the server end every client's connection.
    ///
    /// # Errors
    /// When a server does not answer.
    pub fn end_connections(&self) -> Result<bool> {
        let Server::Postgres { server, .. } = &self.server else {
            return self.tell_every_redis(&["CLIENT", "KILL", "TYPE", "normal"]);
        };
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        server.try_query("postgres", sql).map(|_| true)
    }

    fn tell_every_redis(&self, words: &[&str]) -> Result<bool> {
        let servers = match &self.server {
            Server::Redis(server) => std::slice::from_ref(server),
            Server::Cluster(cluster) => cluster.nodes(),
            Server::Sentinel(sentinel) => sentinel.servers(),
            Server::Sqlite(_) | Server::Postgres { .. } | Server::Firestore(_) => return Ok(false),
        };
        for server in servers {
            server.try_command(words)?;
        }
        Ok(true)
    }

    /// Moves the server's clock to `target` milliseconds from the truth, in so many steps.
    pub fn set_server_clock(&mut self, target: i64, steps: i64) -> bool {
        for step in 1..=steps {
            let next = self.clock_offset + (target - self.clock_offset) * step / steps;
            match &self.server {
                Server::Redis(server) => server.step_clock(next - self.clock_offset),
                Server::Postgres { server, .. } => server.step_clock(next - self.clock_offset),
                _ => return false,
            }
            self.clock_offset = next;
            if step < steps {
                sleep(Duration::from_millis(50));
            }
        }
        true
    }

    /// Whether there is a disk that can be filled.
    pub fn has_a_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Leaves no room on the disk for a while. A server that ends over it is started again.
    ///
    /// # Errors
    /// When it does not start again.
    pub fn fill_disk(&mut self, length: Duration) -> Result<bool> {
        let Some(disk) = &self.disk else { return Ok(false) };
        disk.fill()?;
        sleep(length);
        disk.empty()?;
        if let Server::Redis(server) = &mut self.server
            && !server.is_running()
        {
            server.restart();
        }
        if let Server::Postgres { server, .. } = &mut self.server
            && !server.is_running()
        {
            server.restart();
        }
        Ok(true)
    }

    /// Promotes a replica: in order, or because its master is cut off. Returns whether it came to that.
    ///
    /// # Errors
    /// When the servers do not find together again.
    pub fn promote_replica(&mut self) -> Result<bool> {
        self.promotions += 1;
        match &self.server {
            Server::Cluster(cluster) => cluster::fail_over(cluster, self.promotions),
            Server::Sentinel(sentinel) => sentinel::cut_the_master_off(sentinel),
            _ => Ok(false),
        }
    }

    /// Moves a slot with its locks to another node.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn migrate_slot(&self, random: &mut Random) -> Result<bool> {
        let Server::Cluster(cluster) = &self.server else { return Ok(false) };
        cluster::migrate(cluster, random)
    }
}

fn pick_node(nodes: usize, random: &mut Random) -> usize {
    let last = u64::try_from(nodes.saturating_sub(1)).unwrap_or(0);
    usize::try_from(random.between(0, last)).unwrap_or(0)
}

fn pause(server: &RedisServer, length: Duration) {
    server.pause();
    sleep(length);
    server.resume();
}

fn redis_options(disk: Option<&Disk>) -> RedisOptions {
    let options = RedisOptions::new()
        .appendonly(Appendonly::Always)
        .steppable_clock()
        // Keeps the file small on a small disk.
        .config("auto-aof-rewrite-min-size 4mb");
    match disk {
        Some(disk) => options.on_disk(disk.path()),
        None => options,
    }
}

fn postgres_options(disk: Option<&Disk>) -> PostgresOptions {
    let options = PostgresOptions::new().steppable_clock().config("max_wal_size = 48MB").config("min_wal_size = 32MB");
    match disk {
        Some(disk) => options.on_disk(disk.path()),
        None => options,
    }
}
