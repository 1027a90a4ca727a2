//! How does a test see its statements through a transaction pooler?
//!
//! `PgBouncer` in transaction mode: consecutive transactions of one client may run on different server connections, so
//! session state and session locks do not hold. Every database of the server behind it is reachable under its own name.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::Result;
use rustix::process::Signal;

use super::server::PostgresServer;
use super::wire::PgClient;
use crate::place::{Folder, Port};
use crate::process::ServerProcess;
use crate::program::PGBOUNCER;

/// What the pooler should be like. The default has transaction mode and 20 server connections per database.
#[derive(Debug, Clone, Default)]
pub struct PgBouncerOptions {
    config: Vec<String>,
}

impl PgBouncerOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one line to the section `[pgbouncer]`, for example `default_pool_size = 2`.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.config.push(line.into());
        self
    }
}

/// A `PgBouncer` of this test.
#[derive(Debug)]
pub struct PgBouncer {
    // Fields drop in this order: the process before its files.
    process: ServerProcess,
    port: Port,
    _folder: Folder,
}

impl PgBouncer {
    /// Starts a pooler in front of `server` and waits until a query passes through it.
    ///
    /// # Panics
    ///
    /// When it cannot be started; the message says why and how to install it.
    pub fn start(server: &PostgresServer) -> Self {
        Self::try_start(server, &PgBouncerOptions::new()).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts a pooler with options.
    ///
    /// # Errors
    ///
    /// When it is not installed or does not start.
    pub fn try_start(server: &PostgresServer, options: &PgBouncerOptions) -> Result<Self> {
        Self::try_start_at(server, server.port(), options)
    }

    /// Starts a pooler that reaches `server` on another port, which belongs to a proxy in front of it.
    ///
    /// # Errors
    ///
    /// When it is not installed or does not start.
    pub fn try_start_at(server: &PostgresServer, server_port: u16, options: &PgBouncerOptions) -> Result<Self> {
        let program = PGBOUNCER.find()?;
        let folder = Folder::new("pgbouncer")?;
        let port = Port::reserve()?;
        let ini = folder.path().join("pgbouncer.ini");
        fs::write(&ini, render_config(server_port, port.number(), options)?)?;
        let mut command = Command::new(program);
        command.arg(&ini).current_dir(folder.path());
        if let Some(account) = server.account() {
            account.own(folder.path())?;
            account.apply(&mut command);
        }
        let mut process =
            ServerProcess::spawn("pgbouncer", command, &folder.path().join("pgbouncer.log"), Signal::KILL)?;
        process.wait_ready(|| PgClient::connect(port.number(), "postgres", "postgres")?.query("SELECT 1").map(drop))?;
        Ok(Self { process, port, _folder: folder })
    }

    /// The URL of the database `postgres` through the pooler.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of a database through the pooler.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port())
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the pooler with SIGKILL and waits until it is gone.
    pub fn kill_hard(&mut self) {
        self.process.kill().expect("a child can be killed");
    }
}

fn render_config(server_port: u16, port: u16, options: &PgBouncerOptions) -> Result<String> {
    // `auth_type = any` lets every client in under the one user that the database line names.
    let mut config = format!(
        "[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
         pool_mode = transaction\nmax_client_conn = 1000\nignore_startup_parameters = extra_float_digits\n"
    );
    for line in &options.config {
        writeln!(config, "{line}")?;
    }
    Ok(config)
}
