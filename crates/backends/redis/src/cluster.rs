//! Which node of a cluster serves a slot?
//!
//! What `CLUSTER SLOTS` said, corrected by every `MOVED`. A redirect says that nothing was done, so it is followed; a lost connection may
//! have lost an answer, so it is not repeated, only learned from.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use syncguard_core::ErrorCode;

use crate::builder::Address;
use crate::connect::{Connector, Target};
use crate::error::{CallError, ConnectError};
use crate::pool::Pool;
use crate::router::{Master, two};

/// A slot moves at most once per failover; more redirects than this in one call are a loop.
const MAX_REDIRECTS: u32 = 5;

/// The servers of a cluster, as far as they are known.
pub(crate) struct Cluster {
    connector: Connector,
    connections: usize,
    seeds: Vec<Address>,
    pools: Mutex<HashMap<Address, Arc<Pool>>>,
    /// First slot, last slot, master.
    slots: RwLock<Vec<(u16, u16, Address)>>,
}

impl Cluster {
    pub(crate) fn new(connector: Connector, seeds: Vec<Address>, connections: usize) -> Self {
        Self { connector, connections, seeds, pools: Mutex::default(), slots: RwLock::default() }
    }

    pub(crate) async fn command(&self, command: &Cmd, slot: u16, timeout: Duration) -> Result<Value, CallError> {
        let mut asking = false;
        let mut pool = self.pool_of(slot).await?;
        for _ in 0..MAX_REDIRECTS {
            let answer = if asking { ask(&pool, command, timeout).await } else { pool.command(command, timeout).await };
            let Err(error) = answer else { return answer };
            let Some(step) = self.redirect(&error, &pool) else {
                self.learn_from(&error).await;
                return Err(error);
            };
            (pool, asking) = step;
        }
        Err(loop_of_redirects())
    }

    pub(crate) async fn get_with_time(
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
        let mut pool = self.pool_of(slot).await?;
        for _ in 0..MAX_REDIRECTS {
            let replies = if asking {
                pool.commands(&asked, timeout).await.map(|mut replies| replies.split_off(1.min(replies.len())))
            } else {
                pool.commands(&both, timeout).await
            };
            let answer = replies.and_then(two);
            let Err(error) = answer else { return answer };
            let Some(step) = self.redirect(&error, &pool) else {
                self.learn_from(&error).await;
                return Err(error);
            };
            (pool, asking) = step;
        }
        Err(loop_of_redirects())
    }

    /// Where a refused call must go instead, and whether with `ASKING`.
    fn redirect(&self, error: &CallError, from: &Pool) -> Option<(Arc<Pool>, bool)> {
        let CallError::Redis(redis) = error else { return None };
        let (host, slot) = redis.redirect_node()?;
        let address = node_address(host, from)?;
        if error.is_server(ServerErrorKind::Ask) {
            return Some((self.pool(&address), true));
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|(first, last, _)| !(*first == slot && *last == slot));
        slots.insert(0, (slot, slot, address.clone()));
        drop(slots);
        Some((self.pool(&address), false))
    }

    /// A dead or demoted master: the next call must not go there again if the cluster has moved on.
    async fn learn_from(&self, error: &CallError) {
        let lost = !matches!(error, CallError::Redis(redis) if redis.code().is_some());
        if lost || error.is_server(ServerErrorKind::ReadOnly) || error.is_server(ServerErrorKind::ClusterDown) {
            let _ = self.refresh().await;
        }
    }

    async fn pool_of(&self, slot: u16) -> Result<Arc<Pool>, CallError> {
        if let Some(pool) = self.known(slot) {
            return Ok(pool);
        }
        self.refresh().await?;
        self.known(slot).ok_or_else(|| {
            CallError::Connect(ConnectError::new(
                ErrorCode::ServiceUnavailable,
                "no node of the redis cluster serves this slot",
                "look at `CLUSTER SLOTS`: slots or masters are missing",
            ))
        })
    }

    fn known(&self, slot: u16) -> Option<Arc<Pool>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let address = slots
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(_, _, address)| address.clone())?;
        drop(slots);
        Some(self.pool(&address))
    }

    fn pool(&self, address: &Address) -> Arc<Pool> {
        let mut pools = self.pools();
        if let Some(pool) = pools.get(address) {
            return pool.clone();
        }
        let pool = Arc::new(Pool::new(self.connector.to(address.clone()), self.connections));
        pools.insert(address.clone(), pool.clone());
        pool
    }

    pub(crate) async fn masters(&self) -> Result<Vec<Master<'_>>, CallError> {
        if self.slots.read().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.refresh().await?;
        }
        let mut addresses: Vec<Address> = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            slots.iter().map(|(_, _, address)| address.clone()).collect()
        };
        addresses.sort();
        addresses.dedup();
        Ok(addresses.iter().map(|address| Master::Shared(self.pool(address))).collect())
    }

    /// Asks any node that answers who serves what.
    pub(crate) async fn refresh(&self) -> Result<(), CallError> {
        let mut candidates: Vec<Address> = self.pools().keys().cloned().collect();
        candidates.extend(self.seeds.iter().cloned());
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let mut last = None;
        for address in candidates {
            let pool = self.pool(&address);
            match pool.command(&command, self.connector.timeout).await {
                Ok(reply) => {
                    let slots = parse_slots(&reply, &pool);
                    if !slots.is_empty() {
                        self.keep(slots);
                        return Ok(());
                    }
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            CallError::Connect(ConnectError::new(
                ErrorCode::ServiceUnavailable,
                "the redis cluster serves no slots",
                "look at `CLUSTER INFO`",
            ))
        }))
    }

    fn keep(&self, slots: Vec<(u16, u16, Address)>) {
        // Lines to nodes that left the cluster end with their last call.
        self.pools()
            .retain(|address, _| self.seeds.contains(address) || slots.iter().any(|(_, _, known)| known == address));
        *self.slots.write().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<Address, Arc<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(pool: &Pool, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command.clone());
    two(pool.commands(&both, timeout).await?).map(|(_, answer)| answer)
}

fn loop_of_redirects() -> CallError {
    CallError::Connect(ConnectError::new(
        ErrorCode::ServiceUnavailable,
        "the redis cluster sends requests in a circle",
        "a slot is being moved; it ends by itself",
    ))
}

/// `host:port` of a redirect. An empty host means the node that answered.
fn node_address(text: &str, from: &Pool) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match (&from.connector().target, host) {
        (Target::Address(Address::Tcp { host, .. }), "") => Some(Address::Tcp { host: host.clone(), port }),
        (_, host) => Some(Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port }),
    }
}

/// `CLUSTER SLOTS`: a list of `[first, last, [host, port, …], replicas…]`.
fn parse_slots(reply: &Value, from: &Pool) -> Vec<(u16, u16, Address)> {
    let Value::Array(ranges) = reply else { return Vec::new() };
    ranges.iter().filter_map(|range| parse_range(range, from)).collect()
}

fn parse_range(range: &Value, from: &Pool) -> Option<(u16, u16, Address)> {
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
