//! Which server answers for this name?
//!
//! One server, the master that sentinels name, or the cluster node that owns the slot. A redirect (`MOVED`, `ASK`) says that nothing
//! was done, so it is followed; whatever may have been done is never repeated here. That is why the driver's cluster client, which
//! repeats commands on its own, is not used.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use syncguard_core::{ErrorCode, LockError, Result};

use crate::dial::{Dial, Place};
use crate::error::{CallError, DialError};
use crate::line::Line;
use crate::names::slot;
use crate::options::{Address, RedisOptions, Topology};
use crate::script::Script;
use crate::stream::connector;

/// A slot moves at most once per failover; more redirects than this in one call are a loop.
const MAX_REDIRECTS: u32 = 5;

pub(crate) enum Router {
    Server(Line),
    Cluster(Cluster),
    Given(Box<dyn Given>),
}

/// The servers of a cluster, as far as they are known.
pub(crate) struct Cluster {
    dial: Dial,
    connections: usize,
    seeds: Vec<Address>,
    lines: Mutex<HashMap<Address, Arc<Line>>>,
    /// First slot, last slot, master.
    slots: RwLock<Vec<(u16, u16, Address)>>,
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
    pub(crate) fn new(options: &RedisOptions) -> Result<Self> {
        let place = match &options.topology {
            Topology::Single(address) => Place::Address(address.clone()),
            Topology::Sentinel { sentinels, master } => {
                Place::Master { sentinels: sentinels.clone(), name: master.clone() }
            }
            Topology::Cluster(seeds) => {
                Place::Address(seeds.first().cloned().ok_or_else(|| LockError::invalid("the cluster has no host"))?)
            }
        };
        let dial = Dial {
            place,
            login: options.login.clone(),
            sentinel_login: options.sentinel_login.clone(),
            tls: options.tls.as_ref().map(connector).transpose()?,
            timeout: options.connect_timeout,
        };
        Ok(match &options.topology {
            Topology::Cluster(seeds) => Self::Cluster(Cluster {
                dial,
                connections: options.connections,
                seeds: seeds.clone(),
                lines: Mutex::default(),
                slots: RwLock::default(),
            }),
            _ => Self::Server(Line::new(dial, options.connections)),
        })
    }

    /// Connects, so that a wrong address or password is an error now.
    pub(crate) async fn ready(&self) -> Result<()> {
        match self {
            Self::Server(line) => line.ready().await.map_err(DialError::into_lock_error),
            Self::Cluster(cluster) => cluster.refresh().await.map_err(CallError::into_lock_error),
            Self::Given(_) => Ok(()),
        }
    }

    /// Runs a script where its first key lives. All keys must live there.
    pub(crate) async fn script(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&str],
        timeout: Duration,
    ) -> Result<Value, CallError> {
        let short = eval("EVALSHA", &script.sha, keys, args);
        match self.command(&short, keys[0], timeout).await {
            // The server forgot it: nothing was done. The full text makes it remember.
            Err(error) if error.is_server(ServerErrorKind::NoScript) => {
                self.command(&eval("EVAL", &script.source, keys, args), keys[0], timeout).await
            }
            answer => answer,
        }
    }

    /// Runs a command where a name lives.
    pub(crate) async fn command(&self, command: &Cmd, name: &str, timeout: Duration) -> Result<Value, CallError> {
        match self {
            Self::Server(line) => {
                let answer = line.command(command, timeout).await;
                if matches!(line.dial().place, Place::Master { .. }) && is_demoted(&answer) {
                    line.hang_up();
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
            Self::Server(line) => {
                let mut both = Pipeline::with_capacity(2);
                both.add_command(get).add_command(time);
                two(line.commands(&both, timeout).await?)
            }
            Self::Cluster(cluster) => cluster.get_with_time(get, time, slot(name), timeout).await,
            // The time first: a lock read later than the clock can only look more alive than it is.
            Self::Given(_) => {
                let time = self.command(&time, name, timeout).await?;
                Ok((self.command(&get, name, timeout).await?, time))
            }
        }
    }

    /// One line for each server that takes writes, with its name; none for a connection that was brought along.
    pub(crate) async fn masters(&self) -> Result<Vec<Master<'_>>, CallError> {
        match self {
            Self::Server(line) => Ok(vec![Master::Borrowed(line)]),
            Self::Cluster(cluster) => cluster.masters().await,
            Self::Given(_) => Ok(Vec::new()),
        }
    }

    /// Where a listener for messages may connect: any server of a cluster relays them.
    pub(crate) async fn listening_post(&self) -> Option<Dial> {
        match self {
            Self::Server(line) => Some(line.dial().clone()),
            Self::Cluster(cluster) => cluster.masters().await.ok()?.first().map(|master| master.line().dial().clone()),
            Self::Given(_) => None,
        }
    }
}

/// A server that takes writes.
pub(crate) enum Master<'a> {
    Borrowed(&'a Line),
    Shared(Arc<Line>),
}

impl Master<'_> {
    pub(crate) fn line(&self) -> &Line {
        match self {
            Self::Borrowed(line) => line,
            Self::Shared(line) => line,
        }
    }
}

fn eval(verb: &str, script: &str, keys: &[&str], args: &[&str]) -> Cmd {
    let size = keys.iter().chain(args).map(|part| part.len()).sum::<usize>() + script.len() + 16;
    let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), size);
    command.arg(verb).arg(script).arg(keys.len());
    for part in keys.iter().chain(args) {
        command.arg(*part);
    }
    command
}

fn two(replies: Vec<Value>) -> Result<(Value, Value), CallError> {
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

impl Cluster {
    async fn command(&self, command: &Cmd, slot: u16, timeout: Duration) -> Result<Value, CallError> {
        let mut asking = false;
        let mut line = self.line_of(slot).await?;
        for _ in 0..MAX_REDIRECTS {
            let answer = if asking { ask(&line, command, timeout).await } else { line.command(command, timeout).await };
            let Err(error) = answer else { return answer };
            let Some(step) = self.redirect(&error, &line) else {
                self.learn_from(&error).await;
                return Err(error);
            };
            (line, asking) = step;
        }
        Err(loop_of_redirects())
    }

    async fn get_with_time(
        &self,
        get: Cmd,
        time: Cmd,
        slot: u16,
        timeout: Duration,
    ) -> Result<(Value, Value), CallError> {
        let mut both = Pipeline::with_capacity(3);
        both.add_command(get.clone()).add_command(time.clone());
        let mut asked = Pipeline::with_capacity(3);
        asked.cmd("ASKING").add_command(get).add_command(time);
        let mut asking = false;
        let mut line = self.line_of(slot).await?;
        for _ in 0..MAX_REDIRECTS {
            let replies = if asking {
                line.commands(&asked, timeout).await.map(|mut replies| replies.split_off(1.min(replies.len())))
            } else {
                line.commands(&both, timeout).await
            };
            let answer = replies.and_then(two);
            let Err(error) = answer else { return answer };
            let Some(step) = self.redirect(&error, &line) else {
                self.learn_from(&error).await;
                return Err(error);
            };
            (line, asking) = step;
        }
        Err(loop_of_redirects())
    }

    /// Where a refused call must go instead, and whether with `ASKING`.
    fn redirect(&self, error: &CallError, from: &Line) -> Option<(Arc<Line>, bool)> {
        let CallError::Redis(redis) = error else { return None };
        let (host, slot) = redis.redirect_node()?;
        let address = node_address(host, from)?;
        if error.is_server(ServerErrorKind::Ask) {
            return Some((self.line(&address), true));
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|(first, last, _)| !(*first == slot && *last == slot));
        slots.insert(0, (slot, slot, address.clone()));
        drop(slots);
        Some((self.line(&address), false))
    }

    /// A dead or demoted master: the next call must not go there again if the cluster has moved on.
    async fn learn_from(&self, error: &CallError) {
        let lost = !matches!(error, CallError::Redis(redis) if redis.code().is_some());
        if lost || error.is_server(ServerErrorKind::ReadOnly) || error.is_server(ServerErrorKind::ClusterDown) {
            let _ = self.refresh().await;
        }
    }

    async fn line_of(&self, slot: u16) -> Result<Arc<Line>, CallError> {
        if let Some(line) = self.known(slot) {
            return Ok(line);
        }
        self.refresh().await?;
        self.known(slot).ok_or_else(|| {
            CallError::Dial(DialError::new(
                ErrorCode::ServiceUnavailable,
                "no node of the redis cluster serves this slot",
                "look at `CLUSTER SLOTS`: slots or masters are missing",
            ))
        })
    }

    fn known(&self, slot: u16) -> Option<Arc<Line>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let address = slots
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(_, _, address)| address.clone())?;
        drop(slots);
        Some(self.line(&address))
    }

    fn line(&self, address: &Address) -> Arc<Line> {
        let mut lines = self.lines();
        if let Some(line) = lines.get(address) {
            return line.clone();
        }
        let line = Arc::new(Line::new(self.dial.to(address.clone()), self.connections));
        lines.insert(address.clone(), line.clone());
        line
    }

    async fn masters(&self) -> Result<Vec<Master<'_>>, CallError> {
        if self.slots.read().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.refresh().await?;
        }
        let mut addresses: Vec<Address> = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            slots.iter().map(|(_, _, address)| address.clone()).collect()
        };
        addresses.sort();
        addresses.dedup();
        Ok(addresses.iter().map(|address| Master::Shared(self.line(address))).collect())
    }

    /// Asks any node that answers who serves what.
    async fn refresh(&self) -> Result<(), CallError> {
        let mut candidates: Vec<Address> = self.lines().keys().cloned().collect();
        candidates.extend(self.seeds.iter().cloned());
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let mut last = None;
        for address in candidates {
            let line = self.line(&address);
            match line.command(&command, self.dial.timeout).await {
                Ok(reply) => {
                    let slots = parse_slots(&reply, &line);
                    if !slots.is_empty() {
                        self.keep(slots);
                        return Ok(());
                    }
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            CallError::Dial(DialError::new(
                ErrorCode::ServiceUnavailable,
                "the redis cluster serves no slots",
                "look at `CLUSTER INFO`",
            ))
        }))
    }

    fn keep(&self, slots: Vec<(u16, u16, Address)>) {
        // Lines to nodes that left the cluster end with their last call.
        self.lines()
            .retain(|address, _| self.seeds.contains(address) || slots.iter().any(|(_, _, known)| known == address));
        *self.slots.write().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Address, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(line: &Line, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command.clone());
    two(line.commands(&both, timeout).await?).map(|(_, answer)| answer)
}

fn loop_of_redirects() -> CallError {
    CallError::Dial(DialError::new(
        ErrorCode::ServiceUnavailable,
        "the redis cluster sends requests in a circle",
        "a slot is being moved; it ends by itself",
    ))
}

/// `host:port` of a redirect. An empty host means the node that answered.
fn node_address(text: &str, from: &Line) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (&from.dial().place, host) {
        (Place::Address(Address::Tcp { host, .. }), "") => Some(Address::Tcp { host: host.clone(), port }),
        (_, host) => Some(Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port }),
    }
}

/// `CLUSTER SLOTS`: a list of `[first, last, [host, port, …], replicas…]`.
fn parse_slots(reply: &Value, from: &Line) -> Vec<(u16, u16, Address)> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    ranges.iter().filter_map(|range| parse_range(range, from)).collect()
}

fn parse_range(range: &Value, from: &Line) -> Option<(u16, u16, Address)> {
    let Value::Array(fields) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = fields.as_slice() else { return None };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        _ => "",
    };
    let address = node_address(&format!("{host}:{port}"), from)?;
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
}
