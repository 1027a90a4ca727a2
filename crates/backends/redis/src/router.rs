//! Which server answers for this name?
//!
//! One server, the master that sentinels name, or the cluster node that owns the slot. A redirect (`MOVED`, `ASK`) says
//! that nothing was done, so it is followed; whatever may have been done is never repeated here. That is why the
//! driver's cluster client, which repeats commands on its own, is not used.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use syncguard_core::{LockError, Result};

use crate::builder::{RedisBuilder, Topology};
use crate::cluster::Cluster;
use crate::connect::{Connector, Target};
use crate::error::{CallError, ConnectError};
use crate::names::slot;
use crate::pool::Pool;
use crate::script::Script;

pub(crate) enum Router {
    Server(Box<Pool>),
    Cluster(Arc<Cluster>),
    #[cfg_attr(not(feature = "client"), allow(dead_code, reason = "nobody can bring a connection along"))]
    Given(Box<dyn Given>),
}

type Replies<'a, T> = Pin<Box<dyn Future<Output = redis::RedisResult<T>> + Send + 'a>>;

/// A connection that the user brought along.
pub(crate) trait Given: Send + Sync {
    fn command<'a>(&'a self, command: &'a Cmd) -> Replies<'a, Value>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Given for C {
    fn command<'a>(&'a self, command: &'a Cmd) -> Replies<'a, Value> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(command).await?.extract_error() })
    }
}

impl Router {
    pub(crate) fn new(options: &RedisBuilder) -> Result<Self> {
        let target = match &options.topology {
            Topology::Single(address) => Target::Address(address.clone()),
            Topology::Sentinel { sentinels, master } => {
                Target::Master { sentinels: sentinels.clone(), name: master.clone() }
            }
            Topology::Cluster(seeds) => {
                Target::Address(seeds.first().cloned().ok_or_else(|| LockError::invalid("the cluster has no host"))?)
            }
        };
        let connector = Connector {
            target,
            login: options.login.clone(),
            sentinel_login: options.sentinel_login.clone(),
            tls: options.tls.as_ref().map(|files| Ok(Arc::new(files.load()?).into())).transpose()?,
            require_tls: options.require_tls,
            timeout: options.connect_timeout,
        };
        Ok(match &options.topology {
            Topology::Cluster(seeds) => Self::Cluster(Cluster::new(connector, seeds.clone(), options.connections)),
            _ => Self::Server(Box::new(Pool::new(connector, options.connections, || {}))),
        })
    }

    /// Connects, so that a wrong address or password is an error now.
    pub(crate) async fn ready(&self) -> Result<()> {
        match self {
            Self::Server(pool) => pool.ready().await.map_err(ConnectError::into_lock_error),
            Self::Cluster(cluster) => cluster.refresh().await.map_err(CallError::into_lock_error),
            Self::Given(_) => Ok(()),
        }
    }

    /// Whether all commands and all listeners of all processes are at one server.
    pub(crate) const fn is_one_server(&self) -> bool {
        matches!(self, Self::Server(_))
    }

    /// Runs a script where its first key lives. All keys must live there.
    pub(crate) async fn script(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        timeout: Duration,
    ) -> Result<Value, CallError> {
        match self.eval("EVALSHA", &script.sha, keys, args, timeout).await {
            // The server forgot it: nothing was done. The full text makes it remember.
            Err(error) if error.is_server(ServerErrorKind::NoScript) => {
                self.eval("EVAL", &script.source, keys, args, timeout).await
            }
            answer => answer,
        }
    }

    async fn eval(
        &self,
        verb: &str,
        script: &str,
        keys: &[&str],
        args: &[&str],
        timeout: Duration,
    ) -> Result<Value, CallError> {
        // No script has more keys.
        let count = ["0", "1", "2", "3", "4", "5"].get(keys.len()).copied().unwrap_or_default();
        let words = || [verb, script, count].into_iter().chain(keys.iter().copied()).chain(args.iter().copied());
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), words().map(str::len).sum());
        words().for_each(|word| {
            command.arg(word);
        });
        self.command(&command, keys[0], timeout).await
    }

    /// Runs a command where a name lives.
    pub(crate) async fn command(&self, command: &Cmd, name: &str, timeout: Duration) -> Result<Value, CallError> {
        match self {
            Self::Server(pool) => {
                let answer = pool.command(command, timeout).await;
                if matches!(pool.connector().target, Target::Master { .. }) && is_demoted(&answer) {
                    pool.close_all();
                }
                answer
            }
            Self::Cluster(cluster) => cluster.command(command, slot(name), timeout).await,
            Self::Given(given) => match tokio::time::timeout(timeout, given.command(command)).await {
                Ok(reply) => Ok(reply?),
                Err(_) => Err(CallError::Timeout),
            },
        }
    }

    /// Reads a value and the time of its server in one round trip.
    pub(crate) async fn get_with_time(&self, name: &str, timeout: Duration) -> Result<(Value, Value), CallError> {
        let mut get = Cmd::new();
        get.arg("GET").arg(name);
        let mut time = Cmd::new();
        time.arg("TIME");
        match self {
            Self::Server(pool) => {
                let mut both = Pipeline::with_capacity(2);
                both.add_command(get).add_command(time);
                two(pool.commands(&both, timeout).await?)
            }
            Self::Cluster(cluster) => cluster.get_with_time(get, time, slot(name), timeout).await,
            // The time first: a lock read later than the clock can only look more alive than it is.
            Self::Given(_) => {
                let time = self.command(&time, name, timeout).await?;
                Ok((self.command(&get, name, timeout).await?, time))
            }
        }
    }

    /// One pool for each server that takes writes, with its name; none for a connection that was brought along.
    pub(crate) async fn masters(&self) -> Result<Vec<Master<'_>>, CallError> {
        match self {
            Self::Server(pool) => Ok(vec![Master::Borrowed(pool)]),
            Self::Cluster(cluster) => cluster.masters().await,
            Self::Given(_) => Ok(Vec::new()),
        }
    }

    /// Runs a command at one of the masters. When it fails, a cluster asks who took the place of that master.
    pub(crate) async fn at(&self, master: &Pool, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
        let answer = master.command(command, timeout).await;
        if let (Self::Cluster(cluster), Err(error)) = (self, &answer) {
            cluster.learn_from(error, master).await;
        }
        answer
    }

    /// Where a listener for messages may connect: any server of a cluster relays them.
    pub(crate) async fn listening_server(&self) -> Option<Connector> {
        match self {
            Self::Server(pool) => Some(pool.connector().clone()),
            Self::Cluster(cluster) => {
                cluster.masters().await.ok()?.first().map(|master| master.pool().connector().clone())
            }
            Self::Given(_) => None,
        }
    }
}

/// A server that takes writes.
pub(crate) enum Master<'a> {
    Borrowed(&'a Pool),
    Shared(Arc<Pool>),
}

impl Master<'_> {
    pub(crate) fn pool(&self) -> &Pool {
        match self {
            Self::Borrowed(pool) => pool,
            Self::Shared(pool) => pool,
        }
    }
}

pub(crate) fn two(replies: Vec<Value>) -> Result<(Value, Value), CallError> {
    let unexpected = || CallError::Redis((redis::ErrorKind::UnexpectedReturnType, "two replies were expected").into());
    let [first, second] = <[Value; 2]>::try_from(replies).map_err(|_| unexpected())?;
    let checked = |value| match value {
        Value::ServerError(error) => Err(CallError::Redis(error.into())),
        value => Ok(value),
    };
    Ok((checked(first)?, checked(second)?))
}

fn is_demoted(answer: &Result<Value, CallError>) -> bool {
    matches!(answer, Err(error) if error.is_server(ServerErrorKind::ReadOnly) || error.is_server(ServerErrorKind::MasterDown))
}
