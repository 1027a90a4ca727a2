//! How does one Redis start, die and come back with its data?
//!
//! The folder, the ports and the options outlive the process, so [`kill_hard`](RedisServer::kill_hard) followed by
//! [`restart`](RedisServer::restart) is the same server on the same address.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::resp::{Reply, RespClient};
use crate::clock::SteppableClock;
use crate::place::{Folder, Port};
use crate::process::{ServerProcess, truncate};
use crate::program::REDIS_SERVER;
use crate::tls::Certificates;

/// How often the append-only file reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appendonly {
    /// Before every reply.
    Always,
    /// Once per second: up to a second of acknowledged writes is lost by a power cut, none by a killed process.
    EverySecond,
    /// When the kernel likes.
    Never,
}

impl Appendonly {
    fn word(self) -> &'static str {
        match self {
            Appendonly::Always => "always",
            Appendonly::EverySecond => "everysec",
            Appendonly::Never => "no",
        }
    }
}

/// Whether a TLS client must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientCertificate {
    NotAsked,
    Required,
}

/// What the server should be like. The default keeps nothing on disk, has no password and speaks plain TCP.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    config: Vec<String>,
    appendonly: Option<Appendonly>,
    tls: Option<ClientCertificate>,
    unix_socket: bool,
    password: Option<String>,
    steppable_clock: bool,
    disk: Option<PathBuf>,
}

impl RedisOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one line to `redis.conf`, for example `maxmemory 10mb` or `user app on >secret ~app:* +@all`.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// Keeps an append-only file, so that the data survives [`RedisServer::kill_hard`].
    #[must_use]
    pub fn appendonly(mut self, fsync: Appendonly) -> Self {
        self.appendonly = Some(fsync);
        self
    }

    /// Also listens with TLS on a second port; clients need no certificate.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(ClientCertificate::NotAsked);
        self
    }

    /// Like [`tls`](Self::tls), but a client without a certificate of our authority is refused.
    #[must_use]
    pub fn tls_with_client_certs(mut self) -> Self {
        self.tls = Some(ClientCertificate::Required);
        self
    }

    /// Also listens on a Unix socket.
    #[must_use]
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Asks the default user for a password. It must need no escaping in a URL.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Gives the server a wall clock of its own for `step_clock`; expiry and time functions follow it.
    #[must_use]
    pub fn steppable_clock(mut self) -> Self {
        self.steppable_clock = true;
        self
    }

    /// Keeps all files of the server below `path`, for example on a [`Disk`](crate::Disk).
    #[must_use]
    pub fn on_disk(mut self, path: impl Into<PathBuf>) -> Self {
        self.disk = Some(path.into());
        self
    }
}

/// A Redis server of this test.
#[derive(Debug)]
pub struct RedisServer {
    // Fields drop in this order: the process before its files.
    process: ServerProcess,
    options: RedisOptions,
    sentinel: bool,
    port: Port,
    tls: Option<(Port, Certificates)>,
    clock: Option<SteppableClock>,
    folder: Folder,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When it cannot be started; the message says why and how to install it.
    pub fn start(options: RedisOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it is not installed or does not start.
    pub fn try_start(options: RedisOptions) -> Result<Self> {
        Self::launch(options, false)
    }

    /// Starts a sentinel: the same program in another mode.
    pub(super) fn try_start_sentinel(options: RedisOptions) -> Result<Self> {
        Self::launch(options, true)
    }

    fn launch(options: RedisOptions, sentinel: bool) -> Result<Self> {
        REDIS_SERVER.find()?;
        let folder = match &options.disk {
            Some(disk) => Folder::new_in(disk, "redis")?,
            None => Folder::new("redis")?,
        };
        let port = Port::reserve()?;
        let tls =
            if options.tls.is_some() { Some((Port::reserve()?, Certificates::create(folder.path())?)) } else { None };
        let config = render_config(&options, &folder, &port, tls.as_ref());
        fs::write(folder.path().join("redis.conf"), config)?;
        let clock = options.steppable_clock.then(|| SteppableClock::create(folder.path())).transpose()?;
        let mut process = spawn(&folder, sentinel, clock.as_ref())?;
        process.wait_ready(|| ping(&port, &options))?;
        Ok(Self { process, options, sentinel, port, tls, clock, folder })
    }

    /// The plain URL, password included.
    pub fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}/", self.credentials(), self.port())
    }

    /// The TLS URL. The host is `localhost`, one of the certificate's names.
    ///
    /// # Panics
    ///
    /// When the server was started without [`RedisOptions::tls`].
    pub fn tls_url(&self) -> String {
        format!("rediss://{}localhost:{}/", self.credentials(), self.tls_port())
    }

    /// The URL of the Unix socket.
    ///
    /// # Panics
    ///
    /// When the server was started without [`RedisOptions::unix_socket`].
    pub fn unix_url(&self) -> String {
        assert!(self.options.unix_socket, "started without RedisOptions::unix_socket");
        format!("redis+unix://{}", self.folder.path().join("redis.sock").display())
    }

    /// The plain TCP port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The TLS port.
    ///
    /// # Panics
    ///
    /// When the server was started without [`RedisOptions::tls`].
    pub fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("started without RedisOptions::tls").0.number()
    }

    /// The certificates of this server's own authority.
    ///
    /// # Panics
    ///
    /// When the server was started without [`RedisOptions::tls`].
    pub fn certificates(&self) -> &Certificates {
        &self.tls.as_ref().expect("started without RedisOptions::tls").1
    }

    /// The certificate a client must trust, as [`certificates`](Self::certificates)`().ca`.
    pub fn ca_path(&self) -> &Path {
        &self.certificates().ca
    }

    /// The certificate a client may show.
    pub fn client_cert_path(&self) -> &Path {
        &self.certificates().client_cert
    }

    /// The key of [`client_cert_path`](Self::client_cert_path).
    pub fn client_key_path(&self) -> &Path {
        &self.certificates().client_key
    }

    /// Where the server keeps its data.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The process id; a new one after [`restart`](Self::restart).
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the server with SIGKILL and waits until it is gone. Its data and port stay.
    pub fn kill_hard(&mut self) {
        self.process.kill().expect("a child can be killed");
    }

    /// Stops the server with SIGTERM: it saves what it is configured to save.
    pub fn stop(&mut self) {
        self.process.stop(Signal::TERM, Duration::from_secs(10)).expect("a child can be stopped");
    }

    /// Whether the server still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Starts the server again on the same port with the same data, killing it first if it runs.
    ///
    /// # Panics
    ///
    /// When it does not come back.
    pub fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn try_restart(&mut self) -> Result<()> {
        self.process.kill()?;
        truncate(&self.folder.path().join("redis.log"))?;
        self.process = spawn(&self.folder, self.sentinel, self.clock.as_ref())?;
        let (port, options) = (&self.port, &self.options);
        self.process.wait_ready(|| ping(port, options))
    }

    /// Freezes the server with SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.process.signal(Signal::STOP).expect("the server runs");
    }

    /// Thaws a paused server.
    pub fn resume(&self) {
        self.process.signal(Signal::CONT).expect("the server runs");
    }

    /// Moves the server's wall clock, backwards if negative. Steps add up and survive a restart.
    ///
    /// # Panics
    ///
    /// When the server was started without `steppable_clock`.
    pub fn step_clock(&self, milliseconds: i64) {
        let clock = self.clock.as_ref().expect("started without steppable_clock");
        clock.step(milliseconds).expect("the clock can be stepped");
    }

    /// Runs one command and returns its reply as text: nil is empty, an array has one item per line.
    ///
    /// # Panics
    ///
    /// When the server does not answer or answers with an error.
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).unwrap_or_else(|error| panic!("{error:#}")).to_string()
    }

    /// Runs one command on a new connection.
    ///
    /// # Errors
    ///
    /// When the server does not answer or answers with an error.
    pub fn try_command(&self, words: &[&str]) -> Result<Reply> {
        self.client()?.command(words)
    }

    /// A new connection, logged in.
    ///
    /// # Errors
    ///
    /// When the server does not accept it.
    pub fn client(&self) -> Result<RespClient> {
        connect(&self.port, &self.options)
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    fn credentials(&self) -> String {
        self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default()
    }
}

fn spawn(folder: &Folder, sentinel: bool, clock: Option<&SteppableClock>) -> Result<ServerProcess> {
    let mut command = Command::new(REDIS_SERVER.find()?);
    command.arg("redis.conf").current_dir(folder.path());
    if sentinel {
        command.arg("--sentinel");
    }
    if let Some(clock) = clock {
        clock.apply(&mut command);
    }
    ServerProcess::spawn("redis-server", command, &folder.path().join("redis.log"), Signal::KILL)
}

fn connect(port: &Port, options: &RedisOptions) -> Result<RespClient> {
    let mut client = RespClient::connect(port.number())?;
    if let Some(password) = &options.password {
        client.command(&["AUTH", password])?;
    }
    Ok(client)
}

fn ping(port: &Port, options: &RedisOptions) -> Result<()> {
    let reply = connect(port, options)?.command(&["PING"])?;
    anyhow::ensure!(reply == Reply::Text("PONG".to_owned()), "redis answered the ping with {reply}");
    Ok(())
}

fn render_config(options: &RedisOptions, folder: &Folder, port: &Port, tls: Option<&(Port, Certificates)>) -> String {
    let mut config =
        format!("bind 127.0.0.1\nport {}\ndir {}\ndaemonize no\nsave \"\"\n", port.number(), folder.path().display());
    let mut line = |text: String| writeln!(config, "{text}").expect("a string accepts text");
    if let Some(fsync) = options.appendonly {
        line("appendonly yes".to_owned());
        line(format!("appendfsync {}", fsync.word()));
    }
    if let Some((tls_port, files)) = tls {
        line(format!("tls-port {}", tls_port.number()));
        line(format!("tls-cert-file {}", files.server_cert.display()));
        line(format!("tls-key-file {}", files.server_key.display()));
        line(format!("tls-ca-cert-file {}", files.ca.display()));
        let asked = if options.tls == Some(ClientCertificate::Required) { "yes" } else { "no" };
        line(format!("tls-auth-clients {asked}"));
    }
    if options.unix_socket {
        line(format!("unixsocket {}", folder.path().join("redis.sock").display()));
    }
    if let Some(password) = &options.password {
        line(format!("requirepass {password}"));
    }
    for extra in &options.config {
        line(extra.clone());
    }
    config
}

/// The value of `field:value` in the text of `INFO` and `CLUSTER INFO`.
pub(super) fn info_field(info: &str, field: &str) -> Result<String> {
    info.lines()
        .find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':').map(str::to_owned))
        .with_context(|| format!("redis does not report {field}"))
}
