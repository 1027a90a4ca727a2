//! What can a user choose about the Redis backend?
//!
//! Everything a URL can say, as a builder. The URL's grammar is in [`url`](crate::url); both end in one validated
//! [`RedisBuilder`].

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use syncguard_core::protection::{Protection, Way, is_loopback};
use syncguard_core::tls::TlsFiles;
use syncguard_core::{LockError, Result};

use crate::backend::RedisBackend;
use crate::error::ConnectError;
use crate::names::Names;
use crate::url;

/// Where the server is and how to use it. `Debug` shows no password.
///
/// ```
/// use std::time::Duration;
/// use syncguard_redis::RedisBuilder;
///
/// let options = RedisBuilder::from_url("redis://:secret@127.0.0.1/0?prefix=app")?.timeout(Duration::from_secs(2));
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches of a builder, never passed by position")]
pub struct RedisBuilder {
    pub(crate) topology: Topology,
    pub(crate) login: Login,
    /// For the sentinels themselves, which have users of their own.
    pub(crate) sentinel_login: Login,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) require_tls: bool,
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) wake: bool,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) fence_floor: bool,
    pub(crate) wait_replicas: Option<WaitReplicas>,
    /// Names spread over hash tags although the topology does not say so: for a connection that is brought along.
    pub(crate) cluster_names: bool,
}

/// How the servers are arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Address),
    Sentinel { sentinels: Vec<Address>, master: String },
    Cluster(Vec<Address>),
}

/// One server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

/// How many replicas must have a lock before it is given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitReplicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

/// Where Redis is: one server, the master that sentinels name, or a cluster.
///
/// ```
/// use syncguard_redis::{RedisAddress, RedisBackend};
///
/// let server = RedisBackend::builder(("127.0.0.1", 6379)).prefix("app");
/// let cluster = RedisBackend::builder(RedisAddress::cluster([("10.0.0.1", 6379), ("10.0.0.2", 6379)])).prefix("app");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisAddress(pub(crate) Topology);

impl RedisAddress {
    /// One server.
    pub fn server(host: impl Into<String>, port: u16) -> Self {
        Self(Topology::Single(Address::Tcp { host: host.into(), port }))
    }

    /// One server, over its Unix socket.
    pub fn unix_socket(path: impl Into<PathBuf>) -> Self {
        Self(Topology::Single(Address::Unix(path.into())))
    }

    /// Whatever server these sentinels call the master of this name.
    pub fn sentinel<H: Into<String>>(sentinels: impl IntoIterator<Item = (H, u16)>, master: impl Into<String>) -> Self {
        Self(Topology::Sentinel { sentinels: addresses(sentinels), master: master.into() })
    }

    /// The cluster that these nodes belong to. One that answers is enough.
    pub fn cluster<H: Into<String>>(nodes: impl IntoIterator<Item = (H, u16)>) -> Self {
        Self(Topology::Cluster(addresses(nodes)))
    }
}

fn addresses<H: Into<String>>(hosts: impl IntoIterator<Item = (H, u16)>) -> Vec<Address> {
    hosts.into_iter().map(|(host, port)| Address::Tcp { host: host.into(), port }).collect()
}

impl<H: Into<String>> From<(H, u16)> for RedisAddress {
    fn from((host, port): (H, u16)) -> Self {
        Self::server(host, port)
    }
}

impl Default for RedisBuilder {
    /// The server on this machine, `127.0.0.1:6379`; for settings that go with a connection of your own.
    fn default() -> Self {
        Self::of(RedisAddress::server("127.0.0.1", 6379).0)
    }
}

impl RedisBuilder {
    pub(crate) fn of(topology: Topology) -> Self {
        Self {
            topology,
            login: Login::default(),
            sentinel_login: Login::default(),
            tls: None,
            require_tls: false,
            prefix: "syncguard".to_owned(),
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(2),
            connections: 2,
            wake: true,
            cleanup_in_is_locked: false,
            fence_floor: false,
            wait_replicas: None,
            cluster_names: false,
        }
    }

    /// Reads a URL with all its options; `docs/backends/redis.md` lists them.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for an unknown scheme or option (the hint names
    /// the known ones) and for a malformed part. No message repeats the URL.
    pub fn from_url(url: &str) -> Result<Self> {
        url::parse(url)
    }

    /// Connects.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for settings that contradict each other;
    /// otherwise what kept it from connecting, with the address and a hint, and never with the password.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection.
    pub async fn connect(self) -> Result<RedisBackend> {
        RedisBackend::open(self).await
    }

    /// Makes one connection with these settings (address or sentinels, password, TLS) and gives it to you, for what a lock
    /// protects.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for a Cluster, which has no
    /// one connection.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection.
    #[cfg(feature = "client")]
    pub async fn connection(self) -> Result<impl redis::aio::ConnectionLike + Clone + Send + Sync + 'static> {
        self.validate()?;
        match crate::router::Router::new(&self)? {
            crate::router::Router::Server(pool) => {
                pool.connector().connect().await.map_err(crate::error::ConnectError::into_lock_error)
            }
            _ => Err(LockError::invalid("a Redis Cluster has no one connection").with_hint("name a single server")),
        }
    }

    /// The user to log in as. Without one, Redis' `default` user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.login.user = Some(user.into());
        self
    }

    /// The password to log in with.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.login.password = Some(password.into());
        self
    }

    /// The database number. 0 by default; a cluster has no other.
    #[must_use]
    pub fn db(mut self, number: u16) -> Self {
        self.login.database = i64::from(number);
        self
    }

    /// The user to log in as at the sentinels themselves.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl Into<String>) -> Self {
        self.sentinel_login.user = Some(user.into());
        self
    }

    /// The password to log in with at the sentinels themselves.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_login.password = Some(password.into());
        self
    }

    /// Speaks TLS: certificate and host name are always checked. In a URL: `rediss://`.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls.get_or_insert_default();
        self
    }

    /// Speaks TLS, and trusts the authorities in this PEM file instead of the system's.
    #[must_use]
    pub fn tls_ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls.get_or_insert_default().roots = Some(file.into());
        self
    }

    /// Speaks TLS, and shows this certificate, with its key, to the server. In a URL: `tls_cert` and `tls_key`.
    #[must_use]
    pub fn tls_client(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.get_or_insert_default().client = Some((certificate.into(), key.into()));
        self
    }

    /// Refuses every address beyond this machine that is not spoken to over TLS, also those that sentinels and cluster nodes
    /// announce, before anything is sent there. Off by default. In a URL: `tls=required`.
    #[must_use]
    pub fn require_tls(mut self, require: bool) -> Self {
        self.require_tls = require;
        self
    }

    /// Returns how the way to the servers that are named is protected.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for settings that contradict each other, or where
    /// [`require_tls`](Self::require_tls) refuses the way.
    pub fn protection(&self) -> Result<Protection> {
        self.validate()?;
        let way = match &self.tls {
            _ if self.topology.elsewhere().is_none() => Way::Local,
            Some(_) => Way::Verified,
            None => Way::Plain,
        };
        Ok(Protection::new(way, self.login.password.is_some() || self.sentinel_login.password.is_some()))
    }

    /// What every stored name starts with. `syncguard` by default.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one operation may take. 5 s by default; operations with a ttl use at most a third of it, but at least 1
    /// s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long making a connection may take, TLS and log-in included. 2 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The most connections that the operations share. 2 by default; the second is made when 64 calls are under way on
    /// the first.
    #[must_use]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Whether releases are published and waiters listen. On by default.
    #[must_use]
    pub fn wake(mut self, wake: bool) -> Self {
        self.wake = wake;
        self
    }

    /// Whether `is_locked` also removes the key's lock if it has been dead for 2 s. Off by default.
    #[must_use]
    pub fn cleanup_in_is_locked(mut self, cleanup: bool) -> Self {
        self.cleanup_in_is_locked = cleanup;
        self
    }

    /// Whether a fence is at least the server's clock in milliseconds, so that even a lost counter cannot repeat one.
    /// Off by default: the first fence of a key is then not 1, and the clock must not run behind.
    #[must_use]
    pub fn fence_floor(mut self, floor: bool) -> Self {
        self.fence_floor = floor;
        self
    }

    /// Gives a lock out only after `count` replicas have it; otherwise it is given back and acquire fails.
    #[must_use]
    pub fn wait_replicas(mut self, count: u32, timeout: Duration) -> Self {
        self.wait_replicas = Some(WaitReplicas { count, timeout });
        self
    }

    /// Spreads the stored names over sixteen hash tags, as `redis+cluster://` does. Needed only for a cluster
    /// connection that is [brought along](crate::RedisBackend::from_connection) with a prefix that has no hash tag.
    #[must_use]
    pub fn cluster_names(mut self, cluster: bool) -> Self {
        self.cluster_names = cluster;
        self
    }

    pub(crate) fn names(&self) -> Result<Names> {
        Names::new(&self.prefix, self.cluster_names || matches!(self.topology, Topology::Cluster(_)))
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.timeout.is_zero() || self.connect_timeout.is_zero() {
            return Err(LockError::invalid("a timeout is zero").with_hint("every call needs a positive bound"));
        }
        self.topology.validate(self.login.database)?;
        if let Some(address) = self.topology.elsewhere().filter(|_| self.require_tls && self.tls.is_none()) {
            return Err(ConnectError::unencrypted(address).into_lock_error());
        }
        if !(1..=64).contains(&self.connections) {
            return Err(LockError::invalid("`connections` is not within 1..=64").with_hint("2 is the default"));
        }
        if let Some(wait) = self.wait_replicas
            && (wait.count == 0 || wait.timeout.is_zero() || wait.timeout >= self.timeout)
        {
            return Err(LockError::invalid("`wait_replicas` needs a count, and a `wait_timeout` below `timeout`")
                .with_hint("for example: wait_replicas=1&wait_timeout=500ms"));
        }
        Ok(())
    }
}

impl Topology {
    fn validate(&self, database: i64) -> Result<()> {
        match self {
            Self::Sentinel { sentinels, .. } if sentinels.is_empty() => Err(LockError::invalid("no sentinel is named")),
            Self::Cluster(nodes) if nodes.is_empty() => Err(LockError::invalid("no node of the cluster is named")),
            Self::Cluster(_) if database != 0 => {
                Err(LockError::invalid("a cluster has database 0 only").with_hint("leave the number out"))
            }
            _ => Ok(()),
        }
    }

    /// The first of its addresses that is not on this machine.
    fn elsewhere(&self) -> Option<&Address> {
        let addresses = match self {
            Self::Single(address) => std::slice::from_ref(address),
            Self::Sentinel { sentinels: addresses, .. } | Self::Cluster(addresses) => addresses,
        };
        addresses.iter().find(|address| !address.is_local())
    }
}

impl Address {
    /// Whether nothing leaves this machine.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => is_loopback(host),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("password", &password)
            .field("database", &self.database)
            .finish()
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("topology", &self.topology)
            .field("login", &self.login)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
