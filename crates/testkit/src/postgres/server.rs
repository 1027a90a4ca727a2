//! How does one PostgreSQL start, die and come back with its data?
//!
//! The folder, the port and the options outlive the process, so [`kill_hard`](PostgresServer::kill_hard) followed by
//! [`restart`](PostgresServer::restart) is crash recovery on the same address. Everybody may log in without a password
//! from 127.0.0.1 unless a line of [`PostgresOptions::hba`] says otherwise.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::template;
use super::wire::{PgClient, Rows};
use crate::clock::SteppableClock;
use crate::place::{Folder, Port};
use crate::process::{ServerProcess, truncate};
use crate::program::{Account, POSTGRES};
use crate::tls::Certificates;

/// What the server should be like. The default survives a killed process but not a power cut (`fsync = off`), which is
/// faster.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    config: Vec<String>,
    hba: Vec<String>,
    fsync: bool,
    tls: bool,
    steppable_clock: bool,
    disk: Option<PathBuf>,
}

impl PostgresOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one line to `postgresql.conf`, for example `max_connections = 20`.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }

    /// Adds one line to `pg_hba.conf`, before the lines that trust everybody.
    #[must_use]
    pub fn hba(mut self, line: impl Into<String>) -> Self {
        self.hba.push(line.into());
        self
    }

    /// Writes through to the disk at every commit, as a real server does.
    #[must_use]
    pub fn fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    /// Also accepts TLS on the same port.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
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

/// A PostgreSQL server of this test.
#[derive(Debug)]
pub struct PostgresServer {
    // Fields drop in this order: the process before its files.
    process: ServerProcess,
    port: Port,
    tls: Option<Certificates>,
    clock: Option<SteppableClock>,
    account: Option<Account>,
    databases: AtomicU32,
    folder: Folder,
}

impl PostgresServer {
    /// Starts a server and waits until it takes queries.
    ///
    /// # Panics
    ///
    /// When it cannot be started; the message says why and how to install it.
    pub fn start(options: PostgresOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts a server and waits until it takes queries.
    ///
    /// # Errors
    ///
    /// When it is not installed or does not start.
    #[allow(clippy::needless_pass_by_value, reason = "options are built in the call, as for the other servers")]
    pub fn try_start(options: PostgresOptions) -> Result<Self> {
        POSTGRES.find()?;
        let account = Account::unprivileged()?;
        let folder = match &options.disk {
            Some(disk) => Folder::new_in(disk, "postgres")?,
            None => Folder::new("postgres")?,
        };
        let port = Port::reserve()?;
        if let Some(account) = account {
            account.own(folder.path())?;
        }
        let data = folder.path().join("data");
        template::copy_to(&data, account)?;
        let tls = options.tls.then(|| make_certificates(folder.path(), account)).transpose()?;
        configure(&options, &folder, &port, tls.as_ref())?;
        let clock = options.steppable_clock.then(|| SteppableClock::create(folder.path())).transpose()?;
        let mut process = spawn(&folder, account, clock.as_ref())?;
        process.wait_ready(|| PgClient::connect(port.number(), "postgres", "postgres").map(drop))?;
        Ok(Self { process, port, tls, clock, account, databases: AtomicU32::new(0), folder })
    }

    /// The URL of the database `postgres`, as its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of a database, as the superuser.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port())
    }

    /// The URL that insists on TLS. The host is `localhost`, one of the certificate's names.
    ///
    /// # Panics
    ///
    /// When the server was started without [`PostgresOptions::tls`].
    pub fn tls_url(&self) -> String {
        assert!(self.tls.is_some(), "started without PostgresOptions::tls");
        format!("postgres://postgres@localhost:{}/postgres?sslmode=require", self.port())
    }

    /// Makes an empty database and returns its URL.
    ///
    /// # Panics
    ///
    /// When it exists already.
    pub fn create_database(&self, name: &str) -> String {
        self.query(&format!("CREATE DATABASE \"{name}\""));
        self.url_of(name)
    }

    /// Makes an empty database with a name of its own and returns its URL.
    pub fn fresh_database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        self.create_database(&format!("test_{}_{number}", std::process::id()))
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The certificates of this server's own authority.
    ///
    /// # Panics
    ///
    /// When the server was started without [`PostgresOptions::tls`].
    pub fn certificates(&self) -> &Certificates {
        self.tls.as_ref().expect("started without PostgresOptions::tls")
    }

    /// The certificate a client must trust.
    pub fn ca_path(&self) -> &Path {
        &self.certificates().ca
    }

    /// The process id of the postmaster; a new one after [`restart`](Self::restart).
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the postmaster with SIGKILL and waits until it is gone; its children follow by themselves. Data and port
    /// stay.
    pub fn kill_hard(&mut self) {
        self.process.kill().expect("a child can be killed");
    }

    /// Stops the server at once, without a checkpoint (SIGQUIT, "immediate shutdown").
    pub fn stop_immediate(&mut self) {
        self.process.stop(Signal::QUIT, Duration::from_secs(10)).expect("a child can be stopped");
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
        truncate(&self.folder.path().join("postgres.log"))?;
        let port = self.port();
        // The orphans of a killed postmaster hold its shared memory for a moment, and a new one refuses to start next
        // to them.
        crate::process::wait_for("postgres to come back", crate::process::READY_WITHIN, || {
            self.process = spawn(&self.folder, self.account, self.clock.as_ref())?;
            self.process.wait_ready(|| PgClient::connect(port, "postgres", "postgres").map(drop)).map(Some)
        })
    }

    /// Freezes the postmaster **and its backends** with SIGSTOP: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Thaws a paused server.
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Kills a paused server, its backends included: frozen ones would not notice that their postmaster is gone.
    pub fn kill_frozen(&mut self) {
        let children = children_of(self.pid());
        self.kill_hard();
        for child in children {
            kill(child, Signal::KILL);
        }
    }

    /// The postmaster first, so that it forks nobody while its children are being stopped.
    fn signal_all(&self, signal: Signal) {
        self.process.signal(signal).expect("the server runs");
        for child in children_of(self.pid()) {
            kill(child, signal);
        }
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

    /// Runs statements in the database `postgres` as its superuser.
    ///
    /// # Panics
    ///
    /// When the server refuses them.
    pub fn query(&self, sql: &str) -> Rows {
        self.try_query("postgres", sql).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Runs statements in a database as its superuser.
    ///
    /// # Errors
    ///
    /// When the server refuses them.
    pub fn try_query(&self, database: &str, sql: &str) -> Result<Rows> {
        PgClient::connect(self.port(), "postgres", database)?.query(sql)
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    pub(super) fn account(&self) -> Option<Account> {
        self.account
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.process.is_running() {
            // A paused server would not hear the request to stop.
            self.resume();
            drop(self.process.stop(Signal::QUIT, Duration::from_secs(10)));
        } else {
            remove_shared_memory(self.folder.path());
        }
    }
}

/// A postmaster that was killed leaves its System V segment, of which a machine has few. Its number is in the lock
/// file.
fn remove_shared_memory(folder: &Path) {
    let lock_file = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
    let segment = lock_file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
    if let Some(segment) = segment {
        // The worst outcome is what would be without it: a few bytes stay until the next boot.
        drop(Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status());
    }
}

fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        // A backend that ended meanwhile needs no signal.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn make_certificates(folder: &Path, account: Option<Account>) -> Result<Certificates> {
    let files = Certificates::create(folder)?;
    if let Some(account) = account {
        account.own(&files.server_key)?;
    }
    Ok(files)
}

fn configure(options: &PostgresOptions, folder: &Folder, port: &Port, tls: Option<&Certificates>) -> Result<()> {
    let data = folder.path().join("data");
    let mut config = format!(
        "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\nfsync = {}\n",
        port.number(),
        folder.path().display(),
        if options.fsync { "on" } else { "off" },
    );
    config.push_str("max_connections = 200\nshared_buffers = 32MB\ndynamic_shared_memory_type = mmap\n");
    if let Some(files) = tls {
        writeln!(config, "ssl = on\nssl_cert_file = '{}'", files.server_cert.display())?;
        writeln!(config, "ssl_key_file = '{}'\nssl_ca_file = '{}'", files.server_key.display(), files.ca.display())?;
    }
    for line in &options.config {
        writeln!(config, "{line}")?;
    }
    let trust = "local all all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n";
    fs::write(data.join("pg_hba.conf"), options.hba.join("\n") + "\n" + trust)?;
    // The main file ends with what it includes, so these lines win over the defaults of initdb.
    let main = data.join("postgresql.conf");
    let defaults = fs::read_to_string(&main)?;
    fs::write(main, format!("{defaults}\n{config}"))?;
    Ok(())
}

fn spawn(folder: &Folder, account: Option<Account>, clock: Option<&SteppableClock>) -> Result<ServerProcess> {
    let mut command = Command::new(POSTGRES.find()?);
    command.arg("-D").arg(folder.path().join("data")).current_dir(folder.path());
    if let Some(account) = account {
        account.apply(&mut command);
    }
    if let Some(clock) = clock {
        clock.apply(&mut command);
    }
    // SIGKILL would leave shared memory behind on the machine; SIGQUIT is as quick and removes it.
    ServerProcess::spawn("postgres", command, &folder.path().join("postgres.log"), Signal::QUIT)
}
