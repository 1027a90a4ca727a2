//! Which servers run, and who stops them?

use std::process::Command;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use syncguard_testkit::place::{Folder, Port};
use syncguard_testkit::process::ServerProcess;
use syncguard_testkit::program::Program;
use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};

const ETCD: Program = Program { name: "etcd", package: "etcd-server" };

/// All servers of a run, stopped when it ends.
pub(crate) struct Servers {
    /// As most people run it, without persistence. The first is everybody's, the others are for Redlock.
    pub(crate) redis: Vec<RedisServer>,
    /// Every commit reaches the disk.
    pub(crate) postgres: PostgresServer,
    /// Commits are lost by a power cut: what remains without the disk.
    pub(crate) unsafe_postgres: PostgresServer,
    pub(crate) etcd: EtcdServer,
    pub(crate) firestore: Firestore,
    pub(crate) folder: Folder,
}

impl Servers {
    pub(crate) fn start() -> Result<Self> {
        let postgres = || PostgresOptions::new().config("max_connections = 500").config("shared_buffers = 256MB");
        Ok(Self {
            redis: (0..3).map(|_| RedisServer::start(RedisOptions::new())).collect(),
            postgres: PostgresServer::try_start(postgres().fsync())?,
            unsafe_postgres: PostgresServer::try_start(postgres())?,
            etcd: EtcdServer::start()?,
            firestore: Firestore::start()?,
            folder: Folder::new("bench")?,
        })
    }

    /// What `INFO memory` says of the first Redis, in bytes.
    pub(crate) fn redis_memory(&self) -> Option<f64> {
        let info = self.redis[0].command(&["INFO", "memory"]);
        info.lines().find_map(|line| line.trim().strip_prefix("used_memory:")?.parse().ok())
    }

    /// The first line that each server says about itself.
    pub(crate) fn versions() -> Vec<String> {
        let programs = [syncguard_testkit::program::REDIS_SERVER, syncguard_testkit::program::POSTGRES, ETCD];
        programs.iter().filter_map(|program| first_line(*program)).collect()
    }
}

fn first_line(program: Program) -> Option<String> {
    let output = Command::new(program.find().ok()?).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned();
    // Redis adds its digest and allocator.
    Some(text.split(" sha=").next().unwrap_or_default().replace(" Version:", "").to_owned())
}

/// One member of etcd, as Debian ships it, its log on the disk.
pub(crate) struct EtcdServer {
    // Fields drop in this order: the process before its files.
    _process: ServerProcess,
    client: Port,
    _peer: Port,
    _folder: Folder,
}

impl EtcdServer {
    fn start() -> Result<Self> {
        let (folder, client, peer) = (Folder::new("etcd")?, Port::reserve()?, Port::reserve()?);
        let url = |port: &Port| format!("http://127.0.0.1:{}", port.number());
        let mut command = Command::new(ETCD.find()?);
        command.arg("--data-dir").arg(folder.path().join("data"));
        command.args(["--listen-client-urls", &url(&client), "--advertise-client-urls", &url(&client)]);
        command.args(["--listen-peer-urls", &url(&peer), "--initial-advertise-peer-urls", &url(&peer)]);
        command.args(["--initial-cluster", &format!("default={}", url(&peer)), "--log-level", "error"]);
        let log = folder.path().join("etcd.log");
        let mut process = ServerProcess::spawn("etcd", command, &log, Signal::KILL)?;
        process.wait_ready(|| ping(client.number()))?;
        Ok(Self { _process: process, client, _peer: peer, _folder: folder })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client.number())
    }
}

/// It takes connections before it has elected itself, and says when it has.
fn ping(port: u16) -> Result<()> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
    stream.write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.contains("\"true\""), "etcd is not healthy yet");
    Ok(())
}

/// hidane, an emulator, on a thread of this process. Its speed says nothing about Google's servers.
pub(crate) struct Firestore {
    port: u16,
}

impl Firestore {
    fn start() -> Result<Self> {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let admin = hidane::Admin::default();
                let listeners = hidane::bind("127.0.0.1", 0).await?;
                tell.send(listeners[0].local_addr()?.port()).map_err(std::io::Error::other)?;
                let (grpc, http) = (hidane::grpc_routes(&admin), hidane::http_routes(admin));
                drop(hidane::serve(listeners, grpc, http, std::future::pending()).await);
                Ok::<_, std::io::Error>(())
            })
        });
        Ok(Self { port: told.recv().context("the emulator did not start")? })
    }

    pub(crate) fn url(&self) -> String {
        format!("firestore://bench?emulator=127.0.0.1:{}", self.port)
    }
}
