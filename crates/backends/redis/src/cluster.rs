//! Which node of a cluster serves a slot?
//!
//! What `CLUSTER SLOTS` said, corrected by every `MOVED`. A redirect says that nothing was done, so it is followed; a
//! lost connection may have lost an answer, so it is not repeated, only learned from: whoever doubts a node asks the
//! others, in a task that outlives the caller, until they name another master or the node answers again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
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

/// How often the others are asked about a node in doubt. A cluster promotes a replica after its node timeout, 15 s by
/// default.
const ASK_EVERY: Duration = Duration::from_millis(500);
const ASK_TIMES: u32 = 40;

/// The servers of a cluster, as far as they are known.
pub(crate) struct Cluster {
    /// For tasks and pools that must not keep the cluster alive.
    this: Weak<Self>,
    connector: Connector,
    connections: usize,
    seeds: Vec<Address>,
    pools: Mutex<HashMap<Address, Arc<Pool>>>,
    /// First slot, last slot, master.
    slots: RwLock<Vec<(u16, u16, Address)>>,
    /// Nodes that a task asks the others about: one task each.
    in_doubt: Mutex<HashSet<Address>>,
}

impl Cluster {
    pub(crate) fn new(connector: Connector, seeds: Vec<Address>, connections: usize) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            connector,
            connections,
            seeds,
            pools: Mutex::default(),
            slots: RwLock::default(),
            in_doubt: Mutex::default(),
        })
    }

    /// Asks the other nodes about this one, unless somebody does already. Returns at once.
    fn doubt(&self, node: &Address) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.in_doubt().insert(node.clone()) {
            runtime.spawn(Doubt { cluster: self.this.clone(), node: node.clone() }.settle());
        }
    }

    fn in_doubt(&self) -> MutexGuard<'_, HashSet<Address>> {
        self.in_doubt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serves(&self, node: &Address) -> bool {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).iter().any(|(_, _, master)| master == node)
    }

    pub(crate) async fn command(&self, command: &Cmd, slot: u16, timeout: Duration) -> Result<Value, CallError> {
        let mut asking = false;
        let mut pool = self.pool_of(slot).await?;
        for _ in 0..MAX_REDIRECTS {
            let answer = if asking { ask(&pool, command, timeout).await } else { pool.command(command, timeout).await };
            let Err(error) = answer else { return answer };
            let Some(step) = self.redirect(&error, &pool) else {
                self.learn_from(&error, &pool).await;
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
                self.learn_from(&error, &pool).await;
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
    pub(crate) async fn learn_from(&self, error: &CallError, pool: &Pool) {
        match error {
            // The caller has waited for long enough; the pool has told of the silence.
            CallError::Timeout => {}
            CallError::Redis(redis) if redis.code().is_some() => {
                if error.is_server(ServerErrorKind::ReadOnly) || error.is_server(ServerErrorKind::ClusterDown) {
                    let _ = self.refresh().await;
                }
            }
            CallError::Redis(_) | CallError::Connect(_) => {
                if let Target::Address(node) = &pool.connector().target {
                    self.doubt(node);
                }
                let _ = self.refresh().await;
            }
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
        let (this, node) = (self.this.clone(), address.clone());
        let on_silence = move || {
            if let Some(cluster) = this.upgrade() {
                cluster.doubt(&node);
            }
        };
        let pool = Arc::new(Pool::new(self.connector.to(address.clone()), self.connections, on_silence));
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
        let mut candidates: Vec<Address> = self.pools().keys().chain(&self.seeds).cloned().collect();
        // Those in doubt last: one that is silent costs a whole timeout.
        let in_doubt = self.in_doubt().clone();
        candidates.sort_by_key(|node| (in_doubt.contains(node), node.clone()));
        candidates.dedup();
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let mut last = None;
        for address in candidates {
            let pool = self.pool(&address);
            match pool.command(&command, self.connector.timeout).await {
                Ok(reply) => {
                    let slots = parse_slots(&reply, &pool);
                    if !slots.is_empty() {
                        // Said at once, and not by the first call that happens to need that node.
                        let checked = slots.iter().try_for_each(|(_, _, node)| self.connector.check_protection(node));
                        checked.map_err(CallError::Connect)?;
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

/// The task of one node in doubt.
struct Doubt {
    cluster: Weak<Cluster>,
    node: Address,
}

impl Doubt {
    async fn settle(self) {
        for _ in 0..ASK_TIMES {
            let Some(cluster) = self.cluster.upgrade() else { return };
            let _ = cluster.refresh().await;
            if !cluster.serves(&self.node) {
                return;
            }
            let mut ping = Cmd::new();
            ping.arg("PING");
            if cluster.pool(&self.node).command(&ping, ASK_EVERY).await.is_ok() {
                return;
            }
            drop(cluster);
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

// Also when the task ends with its runtime: the next doubt must find the node free to be asked about.
impl Drop for Doubt {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.in_doubt().remove(&self.node);
        }
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
