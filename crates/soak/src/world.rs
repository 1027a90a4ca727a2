//! Which storage do the workers talk to, and what can happen to it?

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use syncguard_testkit::redis::Appendonly;
use syncguard_testkit::{
    Fault, FaultProxy, PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer, RedisOptions, RedisServer,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A kind of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Storage {
    /// A file; no server, so only processes and clocks can fail.
    Sqlite,
    /// One Redis with an append-only file that is synced before every reply.
    Redis,
    /// A `PostgreSQL`, for half of the workers behind `PgBouncer`.
    Postgres,
    /// The Firestore emulator inside this process.
    Firestore,
}

impl Storage {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sqlite, Self::Redis, Self::Postgres, Self::Firestore];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Firestore => "firestore",
        }
    }

    /// Whether a server's clock decides, and not that of the process that asks.
    pub fn has_a_clock(self) -> bool {
        matches!(self, Self::Redis | Self::Postgres)
    }

    /// How far the clock of a client may be wrong, either way, while everything is still promised: as far as it likes
    /// where the server's clock decides, else two of them together by less than the tolerance.
    pub fn clock_steps_ms(self) -> u64 {
        if self.has_a_clock() { 3_600_000 } else { 400 }
    }
}

/// How long one call of a worker may take. Shorter than the lease, so that a silent server is noticed within it.
const TIMEOUT: &str = "timeout=1s";

/// How long one call may take where nothing is broken on purpose.
const PATIENCE: &str = "timeout=30s";

/// The storage of a run, behind proxies.
pub struct World {
    storage: Storage,
    proxies: Vec<FaultProxy>,
    server: Server,
}

enum Server {
    Sqlite(PathBuf),
    Redis(RedisServer),
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
/// Between the pooler and the server.
const BEHIND: usize = 2;

impl World {
    /// Starts a storage. `folder` is for a file, if it is one.
    ///
    /// # Errors
    /// When a server is not installed or does not start.
    pub fn start(storage: Storage, folder: &Path) -> Result<Self> {
        let (server, proxies) = match storage {
            Storage::Sqlite => (Server::Sqlite(folder.join("locks.db")), Vec::new()),
            Storage::Redis => {
                let server = RedisServer::try_start(RedisOptions::new().appendonly(Appendonly::Always))?;
                let proxies = vec![FaultProxy::start(server.port())];
                (Server::Redis(server), proxies)
            }
            Storage::Postgres => {
                let server = PostgresServer::try_start(PostgresOptions::new())?;
                let behind = FaultProxy::start(server.port());
                let pooler = PgBouncer::try_start_at(&server, behind.port(), &PgBouncerOptions::new())?;
                let proxies = vec![FaultProxy::start(server.port()), FaultProxy::start(pooler.port()), behind];
                (Server::Postgres { pooler, server }, proxies)
            }
            Storage::Firestore => {
                let emulator = Emulator::start()?;
                let proxies = vec![FaultProxy::start(emulator.port)];
                (Server::Firestore(emulator), proxies)
            }
        };
        Ok(Self { storage, proxies, server })
    }

    /// What kind it is.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The URL of a worker, through a proxy where there is one.
    pub fn url(&self, worker: usize) -> String {
        match &self.server {
            Server::Postgres { .. } => self.postgres_url(if worker.is_multiple_of(2) { FRONT } else { POOLER }),
            _ => self.url_at(self.proxies.first().map_or(0, FaultProxy::port), TIMEOUT),
        }
    }

    /// The URL without any proxy.
    pub fn direct_url(&self) -> String {
        match &self.server {
            Server::Sqlite(_) => self.url_at(0, PATIENCE),
            Server::Redis(server) => self.url_at(server.port(), PATIENCE),
            Server::Postgres { server, .. } => self.url_at(server.port(), PATIENCE),
            Server::Firestore(emulator) => self.url_at(emulator.port, PATIENCE),
        }
    }

    fn url_at(&self, port: u16, timeout: &str) -> String {
        match &self.server {
            Server::Sqlite(path) => format!("sqlite:{}", path.display()),
            Server::Redis(_) => format!("redis://127.0.0.1:{port}?{timeout}"),
            Server::Postgres { .. } => format!("postgres://postgres@127.0.0.1:{port}/postgres?{timeout}"),
            Server::Firestore(_) => format!("firestore://soak?emulator=127.0.0.1:{port}&{timeout}"),
        }
    }

    fn postgres_url(&self, proxy: usize) -> String {
        // Notifications do not pass a transaction pooler.
        let wake = if proxy == POOLER { "&wake=false" } else { "" };
        format!("{}{wake}", self.url_at(self.proxies[proxy].port(), TIMEOUT))
    }

    /// The proxies, for the nemesis to choose one.
    pub fn proxies(&self) -> &[FaultProxy] {
        &self.proxies
    }

    /// How often a proxy did something to bytes or connections.
    pub fn proxy_effects(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.counts().faults).sum()
    }

    /// Lets everything pass again.
    pub fn heal(&self) {
        for proxy in &self.proxies {
            proxy.set(Fault::Pass);
        }
    }

    /// Kills the server with SIGKILL and starts it again after a while. The emulator, which is inside this process,
    /// closes all connections instead.
    ///
    /// # Errors
    /// When it does not start again.
    pub fn kill_server(&mut self, down: Duration) -> Result<()> {
        match &mut self.server {
            Server::Sqlite(_) => Ok(()),
            Server::Redis(server) => {
                server.kill_hard();
                std::thread::sleep(down);
                server.restart();
                Ok(())
            }
            Server::Postgres { server, .. } => {
                server.kill_hard();
                std::thread::sleep(down);
                server.restart();
                Ok(())
            }
            Server::Firestore(emulator) => emulator.restart(down),
        }
    }

    /// Freezes the server with SIGSTOP for a while.
    pub fn pause_server(&self, length: Duration) {
        match &self.server {
            Server::Redis(server) => {
                server.pause();
                std::thread::sleep(length);
                server.resume();
            }
            Server::Postgres { server, .. } => {
                server.pause();
                std::thread::sleep(length);
                server.resume();
            }
            Server::Sqlite(_) | Server::Firestore(_) => {}
        }
    }

    /// Kills the pooler and starts another in its place.
    ///
    /// # Errors
    /// When that does not start.
    pub fn replace_pooler(&mut self) -> Result<()> {
        let Server::Postgres { pooler, server } = &mut self.server else { return Ok(()) };
        pooler.kill_hard();
        *pooler = PgBouncer::try_start_at(server, self.proxies[BEHIND].port(), &PgBouncerOptions::new())?;
        self.proxies[POOLER].set_target(pooler.port());
        Ok(())
    }

    /// Has the server forget all scripts (Redis).
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn flush_scripts(&self) -> Result<()> {
        let Server::Redis(server) = &self.server else { return Ok(()) };
        server.try_command(&["SCRIPT", "FLUSH"]).map(drop)
    }

    /// Has the server end every client's connection.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn end_connections(&self) -> Result<()> {
        match &self.server {
            Server::Redis(server) => server.try_command(&["CLIENT", "KILL", "TYPE", "normal"]).map(drop),
            Server::Postgres { server, .. } => server
                .try_query(
                    "postgres",
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
                )
                .map(drop),
            Server::Sqlite(_) | Server::Firestore(_) => Ok(()),
        }
    }
}

/// The Firestore emulator inside this process. Its documents outlive its socket.
struct Emulator {
    runtime: Runtime,
    admin: hidane::Admin,
    port: u16,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Emulator {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut emulator = Self { runtime, admin: hidane::Admin::default(), port: 0, running: None };
        emulator.serve()?;
        Ok(emulator)
    }

    fn serve(&mut self) -> Result<()> {
        let listeners = self.runtime.block_on(hidane::bind("127.0.0.1", self.port))?;
        self.port = listeners.first().context("the emulator listens nowhere")?.local_addr()?.port();
        let (grpc, http) = (hidane::grpc_routes(&self.admin), hidane::http_routes(self.admin.clone()));
        let (stop, stopped) = oneshot::channel::<()>();
        let served = self.runtime.spawn(async move {
            drop(hidane::serve(listeners, grpc, http, async { drop(stopped.await) }).await);
        });
        self.running = Some((stop, served));
        Ok(())
    }

    fn restart(&mut self, down: Duration) -> Result<()> {
        if let Some((stop, served)) = self.running.take() {
            ensure!(stop.send(()).is_ok(), "the emulator ended by itself");
            // A connection that does not end is ended with its task.
            let abort = served.abort_handle();
            let ended = self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), served).await });
            if ended.is_err() {
                abort.abort();
            }
        }
        std::thread::sleep(down);
        syncguard_testkit::process::wait_for("the emulator's port", Duration::from_secs(30), || Ok(self.serve().ok()))
    }
}
