//! How does a connection come about?
//!
//! The hosts are tried in order; each attempt ends with one question that tells whether the server may be written to
//! (`target_session_attrs`) and whether a pooler stands in between, and that makes the settings of a connection which is
//! ours alone. Connecting is rare, so the question costs nothing that counts.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use syncguard_core::protection::{Protection, Way, is_loopback};
use syncguard_core::{ErrorCode, LockError, Result};
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslNegotiation};
use tokio_postgres::{AsyncMessage, Client, Config, Error};

use crate::builder::PostgresBuilder;
use crate::introduce::{Bounds, Introduction, Purpose};
use crate::logins::Logins;
use crate::table::Tables;
use crate::tls::Tls;
use crate::wire::{Connector, Encryption, HostConnector, Learned};
use crate::{environment, error, hosts, introduce, passfile};

/// Which kind of server will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetSessionAttrs {
    /// Every server.
    #[default]
    Any,
    /// One that takes writes.
    ReadWrite,
    /// One that takes none.
    ReadOnly,
    /// One that is not in recovery.
    Primary,
    /// One that is in recovery.
    Standby,
}

impl TargetSessionAttrs {
    pub(crate) const WORDS: [(&str, Self); 5] = [
        ("any", Self::Any),
        ("read-write", Self::ReadWrite),
        ("read-only", Self::ReadOnly),
        ("primary", Self::Primary),
        ("standby", Self::Standby),
    ];

    fn accept(self, server: &Introduction) -> bool {
        match self {
            Self::Any => true,
            Self::ReadWrite => !server.read_only,
            Self::ReadOnly => server.read_only,
            Self::Primary => !server.in_recovery,
            Self::Standby => server.in_recovery,
        }
    }
}

/// What connections have shown so far; shared by all connections of a backend.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pooler: AtomicBool,
    plain: AtomicBool,
    places: OnceLock<[Option<String>; 2]>,
}

impl Seen {
    /// Whether a connection went through a pooler.
    pub(crate) fn pooler(&self) -> bool {
        self.pooler.load(Ordering::Acquire)
    }

    /// Whether a connection was not encrypted.
    pub(crate) fn plain(&self) -> bool {
        self.plain.load(Ordering::Acquire)
    }

    /// The tables with the schemas in which the first connection found them, because the others do not look for them.
    pub(crate) fn place(&self, tables: Tables) -> Tables {
        match self.places.get() {
            Some(places) => tables.within(places),
            None => tables,
        }
    }
}

/// Everything needed to connect.
#[derive(Clone)]
pub(crate) struct Target {
    /// Login, database and sockets; which server is in `servers`.
    config: Config,
    /// Tried in this order.
    servers: Vec<(Host, u16)>,
    /// One per server where a password file decides.
    passwords: Vec<Option<String>>,
    wanted: TargetSessionAttrs,
    pub(crate) tls: Tls,
    connect_timeout: Duration,
    bounds: Bounds,
    logins: Logins,
    tables: Tables,
    pub(crate) seen: Arc<Seen>,
}

// Login and password file hold secrets.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({} servers)", self.servers.len())
    }
}

/// A connection and what is known of it.
pub(crate) struct Connected {
    pub(crate) client: Client,
    pub(crate) messages: Messages,
    pub(crate) behind_pooler: bool,
}

/// The driving half of a connection: yields what the server says unasked.
pub(crate) type Messages = Pin<Box<dyn Drive>>;

pub(crate) trait Drive: Send {
    /// The next message, `None` at the end.
    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<AsyncMessage, Error>>>;
}

impl<S, T> Drive for tokio_postgres::Connection<S, T>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<AsyncMessage, Error>>> {
        self.get_mut().poll_message(cx)
    }
}

/// Settings with what the environment adds, and what follows from them.
struct Filled {
    settings: PostgresBuilder,
    servers: Vec<(Host, u16)>,
    passwords: Vec<Option<String>>,
    way: Way,
}

/// Puts the settings and the environment together. All servers are known then, so it is decided here who is sent anything.
fn fill(settings: &PostgresBuilder) -> Result<Filled> {
    let mut settings = settings.clone();
    environment::fill(&mut settings)?;
    settings.validate()?;
    let servers = match &settings.address {
        Some(address) => hosts::parse(address)?,
        None => hosts::of(&settings.config)?,
    };
    let addresses = settings.config.get_hostaddrs();
    let is_here = |(index, (host, _)): (usize, &(Host, u16))| is_local(host, addresses.get(index));
    let way = if servers.iter().enumerate().all(is_here) { Way::Local } else { settings.tls.way() };
    if settings.require_tls && way > Way::Verified {
        return Err(unproven());
    }
    let passwords = passfile::passwords(&settings.config, &servers, settings.passfile.as_deref());
    Ok(Filled { settings, servers, passwords, way })
}

pub(crate) fn protection(settings: &PostgresBuilder) -> Result<Protection> {
    let filled = fill(settings)?;
    let has_password = filled.settings.config.get_password().is_some() || filled.passwords.iter().any(Option::is_some);
    Ok(Protection::new(filled.way, has_password))
}

impl Target {
    /// Puts the settings and the environment together, and reads the files that they name.
    pub(crate) fn new(settings: &PostgresBuilder) -> Result<Self> {
        let Filled { settings, servers, passwords, .. } = fill(settings)?;
        Ok(Self {
            passwords,
            servers,
            tls: Tls::new(&settings.tls)?,
            wanted: settings.target_session_attrs.unwrap_or_default(),
            connect_timeout: settings.connect_timeout,
            bounds: Bounds {
                lock_timeout: settings.lock_timeout.as_millis(),
                statement_timeout: settings.timeout.as_millis(),
            },
            tables: settings.tables()?,
            logins: settings.require_auth.unwrap_or_default(),
            config: settings.config,
            seen: Arc::default(),
        })
    }

    /// Connects to the first host that answers and fits.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Result<Connected> {
        let mut last = None;
        for index in 0..self.servers.len() {
            match self.connect_host(index, purpose).await {
                Ok(connected) => return Ok(connected),
                Err(failure) => last = Some(failure),
            }
        }
        // There is always one: localhost if nobody names another.
        Err(last.map_or_else(unfit, Failure::into_error))
    }

    async fn connect_host(&self, index: usize, purpose: Purpose) -> Result<Connected, Failure> {
        let (config, host) = self.single(index);
        let mut refused = None;
        for encryption in &self.tls.attempts {
            match self.attempt((&config, &host), encryption.clone(), purpose).await {
                // Only a refusal by pg_hba.conf is a reason to try without or with encryption. After a failed
                // handshake the other way would hand the session to whoever broke it.
                Err(failure) if failure.is_refusal() => refused = Some(failure),
                other => return other,
            }
        }
        Err(refused.unwrap_or_else(|| Failure::Ours(unfit())))
    }

    async fn attempt(
        &self,
        (config, host): (&Config, &Host),
        encryption: Encryption,
        purpose: Purpose,
    ) -> Result<Connected, Failure> {
        let learned = Arc::new(Learned::new(self.logins));
        let connector = Connector { encryption, learned: learned.clone() };
        let connecting = open(config, host, connector);
        let (client, messages) = timeout(self.connect_timeout, connecting)
            .await
            .map_err(|_| Failure::Ours(error::no_answer_to_connect()))??;
        let question = introduce::question(purpose, learned.announced_pid(), self.bounds, &self.tables);
        let introducing = introduce::introduce(client, messages, &question);
        let (client, messages, server) = timeout(self.connect_timeout, introducing)
            .await
            .map_err(|_| Failure::Ours(error::no_answer_to_connect()))??;
        if !self.wanted.accept(&server) {
            return Err(Failure::Ours(unfit()));
        }
        self.seen.places.get_or_init(|| server.places);
        let local = is_local(host, config.get_hostaddrs().first());
        if !learned.encrypted() && !local && !self.seen.plain.swap(true, Ordering::AcqRel) {
            tracing::warn!(target: "syncguard", "the connection to postgres is not encrypted");
        }
        let behind_pooler = learned.announced_pid() != server.pid;
        if behind_pooler {
            self.seen.pooler.store(true, Ordering::Release);
        }
        Ok(Connected { client, messages, behind_pooler })
    }

    /// The settings for one of the hosts.
    fn single(&self, index: usize) -> (Config, Host) {
        let all = &self.config;
        let (host, port) = self.servers[index].clone();
        let mut config = Config::new();
        if let Host::Tcp(name) = &host {
            config.host(name);
        }
        if let Some(address) = all.get_hostaddrs().get(index) {
            config.hostaddr(*address);
        }
        config.port(port);
        if let Some(user) = all.get_user() {
            config.user(user);
        }
        if let Some(database) = all.get_dbname() {
            config.dbname(database);
        }
        match (all.get_password(), self.passwords.get(index).and_then(Option::as_ref)) {
            (Some(password), _) => config.password(password),
            (None, Some(password)) => config.password(password),
            (None, None) => &mut config,
        };
        if let Some(options) = all.get_options() {
            config.options(options);
        }
        config.application_name(all.get_application_name().unwrap_or("syncguard"));
        config.connect_timeout(self.connect_timeout).keepalives(all.get_keepalives());
        config.keepalives_idle(all.get_keepalives_idle());
        if let Some(interval) = all.get_keepalives_interval() {
            config.keepalives_interval(interval);
        }
        if let Some(retries) = all.get_keepalives_retries() {
            config.keepalives_retries(retries);
        }
        if let Some(wait) = all.get_tcp_user_timeout() {
            config.tcp_user_timeout(*wait);
        }
        config.channel_binding(all.get_channel_binding()).load_balance_hosts(all.get_load_balance_hosts());
        // The driver hands over the bare socket and asks no questions: see `wire`.
        config.ssl_mode(tokio_postgres::config::SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
        (config, host)
    }
}

async fn open(config: &Config, host: &Host, connector: Connector) -> Result<(Client, Messages), Failure> {
    match host {
        Host::Tcp(_) => {
            let (client, connection) = config.connect(connector).await?;
            Ok((client, Box::pin(connection)))
        }
        #[cfg(unix)]
        Host::Unix(folder) => {
            let port = config.get_ports().first().copied().unwrap_or(5432);
            let path = folder.join(format!(".s.PGSQL.{port}"));
            let stream =
                tokio::net::UnixStream::connect(path).await.map_err(|error| Failure::Ours(no_socket(&error)))?;
            // As in libpq, sslmode is about networks.
            let plain = Connector { encryption: Encryption::Never, ..connector };
            let connecting = HostConnector { connector: plain, host: String::new() };
            let (client, connection) = config.connect_raw(stream, connecting).await?;
            Ok((client, Box::pin(connection)))
        }
    }
}

/// Whether nothing leaves this machine. The address is what is dialled; then the name only stands in the certificate.
fn is_local(host: &Host, address: Option<&IpAddr>) -> bool {
    match (host, address) {
        #[cfg(unix)]
        (Host::Unix(_), _) => true,
        (Host::Tcp(_), Some(address)) => address.to_canonical().is_loopback(),
        (Host::Tcp(name), None) => is_loopback(name),
    }
}

/// Why one attempt did not lead to a connection.
enum Failure {
    Driver(Error),
    Ours(LockError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl Failure {
    /// Whether `pg_hba.conf` has no line for this way of connecting.
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Driver(error) if error.code().is_some_and(|code| code.code() == "28000"))
    }

    fn into_error(self) -> LockError {
        match self {
            Self::Driver(error) => error::from_connect(&error),
            Self::Ours(error) => error,
        }
    }
}

fn unfit() -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, "no postgres host fits target_session_attrs")
        .with_hint("every host that answered is read-only, or a standby, or the opposite of what was asked for")
}

fn unproven() -> LockError {
    LockError::invalid("TLS is required, but sslmode does not make postgres prove who it is")
        .with_hint("add sslmode=verify-full, and sslrootcert=FILE if the authority is your own")
}

#[cfg(unix)]
fn no_socket(error: &std::io::Error) -> LockError {
    LockError::new(ErrorCode::ServiceUnavailable, "the socket of postgres does not answer")
        .with_source(error.to_string())
        .with_hint("check the folder in `host` and the port")
}
