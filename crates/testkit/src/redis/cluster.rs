//! How does a test get a Redis Cluster, and how does it move a slot or lose a master?
//!
//! Formed with the commands `redis-cli --cluster create` would send, so no other program is needed: give every master
//! its slots and its epoch, introduce the nodes, attach the replicas, wait until every node calls the cluster whole.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::resp::Reply;
use super::server::{RedisOptions, RedisServer, info_field};
use super::slots::{ranges, slots_of};
use crate::place::Port;
use crate::process::wait_for;
use crate::proxy::FaultProxy;

pub use super::slots::{SLOTS, slot_of};

/// Forming and failing over takes seconds; the rest is for a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A replica whose connection went silent asks again after seconds; the default is a minute.
pub(super) const NOTICES_SILENCE: [&str; 2] = ["repl-ping-replica-period 1", "repl-timeout 6"];

/// When a request to fail over that did not succeed is no longer pursued.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(6);

/// A Redis Cluster of this test: masters first, then the replicas of master 0, of master 1, …
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    masters: usize,
    bus_ports: Vec<Port>,
    /// One per node where asked for: the address that the node tells clients and its replicas.
    proxies: Vec<FaultProxy>,
    /// One per node where asked for: how the other nodes reach it.
    bus_proxies: Vec<FaultProxy>,
}

/// What the nodes of a cluster should be like.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    node: RedisOptions,
    behind_proxies: bool,
}

impl ClusterOptions {
    /// Plain nodes that keep nothing on disk and elect a replica after two seconds of silence.
    pub fn new() -> Self {
        Self { node: RedisOptions::new().config("cluster-node-timeout 2000"), behind_proxies: false }
    }

    /// Nodes with these options instead.
    #[must_use]
    pub fn nodes(mut self, node: RedisOptions) -> Self {
        self.node = node;
        self
    }

    /// Puts proxies before every node: one for clients and replicas, one for the other nodes.
    #[must_use]
    pub fn behind_proxies(mut self) -> Self {
        self.behind_proxies = true;
        self
    }
}

impl RedisCluster {
    /// Starts and forms a cluster.
    ///
    /// # Panics
    ///
    /// When it cannot be started or does not form.
    pub fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::try_start(masters, replicas_per_master).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Starts and forms a cluster.
    ///
    /// # Errors
    ///
    /// When it cannot be started or does not form.
    pub fn try_start(masters: usize, replicas_per_master: usize) -> Result<Self> {
        Self::try_start_with(masters, replicas_per_master, &ClusterOptions::new())
    }

    /// Starts and forms a cluster of nodes with options.
    ///
    /// # Errors
    ///
    /// When it cannot be started or does not form.
    pub fn try_start_with(masters: usize, replicas_per_master: usize, options: &ClusterOptions) -> Result<Self> {
        ensure!(masters >= 1, "a cluster needs a master");
        let mut cluster =
            Self { nodes: Vec::new(), masters, bus_ports: Vec::new(), proxies: Vec::new(), bus_proxies: Vec::new() };
        for _ in 0..masters * (1 + replicas_per_master) {
            cluster.add_node(options)?;
        }
        cluster.form()?;
        Ok(cluster)
    }

    fn add_node(&mut self, options: &ClusterOptions) -> Result<()> {
        let bus = Port::reserve()?;
        let mut node = options
            .node
            .clone()
            .config("cluster-enabled yes")
            .config("cluster-config-file nodes.conf")
            .config(format!("cluster-port {}", bus.number()))
            // The default waits five seconds for more replicas to come.
            .config("repl-diskless-sync-delay 0");
        for line in NOTICES_SILENCE {
            node = node.config(line);
        }
        if options.behind_proxies {
            // The node has its port only once it runs.
            let (proxy, bus_proxy) = (FaultProxy::start(0), FaultProxy::start(bus.number()));
            node = node
                .config("cluster-announce-ip 127.0.0.1")
                .config(format!("cluster-announce-port {}", proxy.port()))
                .config(format!("cluster-announce-bus-port {}", bus_proxy.port()));
            self.proxies.push(proxy);
            self.bus_proxies.push(bus_proxy);
        }
        let node = RedisServer::try_start(node)?;
        if let Some(proxy) = self.proxies.last() {
            proxy.set_target(node.port());
        }
        self.nodes.push(node);
        self.bus_ports.push(bus);
        Ok(())
    }

    fn form(&self) -> Result<()> {
        for (index, master) in self.nodes[..self.masters].iter().enumerate() {
            let (first, last) = slots_of(index, self.masters);
            master.try_command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            master.try_command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
        }
        for index in 1..self.nodes.len() {
            let bus = self.bus_proxies.get(index).map_or(self.bus_ports[index].number(), FaultProxy::port);
            let (port, bus) = (self.public_port(index).to_string(), bus.to_string());
            self.nodes[0].try_command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        self.wait_whole()?;
        for index in self.masters..self.nodes.len() {
            let master = self.node_id(self.master_of(index))?;
            // A replica may not have heard of its master yet.
            wait_for("a replica to accept its master", PATIENCE, || {
                self.nodes[index].try_command(&["CLUSTER", "REPLICATE", &master]).map(Some)
            })?;
        }
        for index in self.masters..self.nodes.len() {
            wait_for("a replica to be in step", PATIENCE, || self.is_replica_in_step(index))?;
            let (master, replica) = (self.master_of(index), self.node_id(index)?);
            let name = self.node_id(master)?;
            wait_for("a master to know its replica", PATIENCE, || {
                let replicas = self.nodes[master].try_command(&["CLUSTER", "REPLICAS", &name])?.to_string();
                Ok(replicas.contains(&replica).then_some(()))
            })?;
        }
        self.wait_whole()
    }

    /// Waits until every node knows every other and calls the cluster ok.
    ///
    /// # Errors
    ///
    /// When that does not happen.
    pub fn wait_whole(&self) -> Result<()> {
        let count = self.nodes.len().to_string();
        for node in &self.nodes {
            wait_for("the cluster to be whole", PATIENCE, || {
                let info = node.try_command(&["CLUSTER", "INFO"])?.to_string();
                let whole =
                    info_field(&info, "cluster_state")? == "ok" && info_field(&info, "cluster_known_nodes")? == count;
                Ok(whole.then_some(()))
            })?;
        }
        Ok(())
    }

    fn is_replica_in_step(&self, index: usize) -> Result<Option<()>> {
        let info = self.nodes[index].try_command(&["INFO", "replication"])?.to_string();
        let in_step = info_field(&info, "role")? == "slave" && info_field(&info, "master_link_status")? == "up";
        Ok(in_step.then_some(()))
    }

    /// The URL of the whole cluster: `redis+cluster://host:port,host:port,…`, masters only.
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            (0..self.masters).map(|index| format!("127.0.0.1:{}", self.public_port(index))).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The proxies before the nodes, for clients and replicas; empty unless asked for.
    pub fn proxies(&self) -> &[FaultProxy] {
        &self.proxies
    }

    /// The proxies between the nodes: how the others reach each; empty unless asked for.
    pub fn bus_proxies(&self) -> &[FaultProxy] {
        &self.bus_proxies
    }

    /// The port under which a node is known.
    fn public_port(&self, index: usize) -> u16 {
        self.proxies.get(index).map_or_else(|| self.nodes[index].port(), FaultProxy::port)
    }

    /// Whether a node is a master now.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn is_master(&self, index: usize) -> Result<bool> {
        let info = self.nodes[index].try_command(&["INFO", "replication"])?.to_string();
        Ok(info_field(&info, "role")? == "master")
    }

    /// The plain URL of every node.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// All nodes: masters first.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One node, by its position in [`nodes`](Self::nodes).
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// One node, to kill or restart it.
    pub fn node_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// The cluster's own name for a node.
    ///
    /// # Errors
    ///
    /// When the node does not answer.
    pub fn node_id(&self, index: usize) -> Result<String> {
        Ok(self.nodes[index].try_command(&["CLUSTER", "MYID"])?.to_string())
    }

    /// The position of the node that serves `slot` now, in the eyes of the nodes that run.
    ///
    /// # Errors
    ///
    /// When no node serves it.
    pub fn owner_of(&self, slot: u16) -> Result<usize> {
        let port = self
            .nodes
            .iter()
            .find_map(|node| {
                let slots = node.try_command(&["CLUSTER", "SLOTS"]).ok()?;
                ranges(&slots).iter().find(|range| (range.0..=range.1).contains(&slot)).map(|range| range.2)
            })
            .with_context(|| format!("no node serves slot {slot}"))?;
        (0..self.nodes.len()).find(|&index| self.public_port(index) == port).context("the owner is not one of ours")
    }

    /// Makes a replica take over from its master (`CLUSTER FAILOVER`), and waits until it did.
    ///
    /// # Errors
    ///
    /// When the node is no replica or the failover does not happen.
    pub fn fail_over_to(&self, replica: usize) -> Result<()> {
        // A master that has not yet heard of its replica ignores the request, and after five seconds it is forgotten.
        let mut outcome = Ok(());
        for _ in 0..4 {
            self.nodes[replica].try_command(&["CLUSTER", "FAILOVER"])?;
            let promoted = || Ok(self.is_master(replica)?.then_some(()));
            outcome = wait_for("the replica to be promoted", FORGOTTEN_AFTER, promoted);
            if outcome.is_ok() {
                return self.wait_promoted(replica);
            }
        }
        outcome
    }

    /// Waits until a replica has become a master in the eyes of all nodes that run, for example because its master was
    /// killed.
    ///
    /// # Errors
    ///
    /// When that does not happen.
    pub fn wait_promoted(&self, replica: usize) -> Result<()> {
        wait_for("the replica to be promoted", PATIENCE, || Ok(self.is_master(replica)?.then_some(())))?;
        let port = self.public_port(replica);
        wait_for("the cluster to hear of the promotion", PATIENCE, || {
            let mut views = self.nodes.iter().filter_map(|node| node.try_command(&["CLUSTER", "SLOTS"]).ok());
            Ok(views.all(|slots| ranges(&slots).iter().any(|range| range.2 == port)).then_some(()))
        })
    }

    /// Opens the migration of `slot`: from now on absent keys are answered with ASK, until
    /// [`finish_migration`](Self::finish_migration).
    ///
    /// # Errors
    ///
    /// When a node refuses.
    pub fn begin_migration(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let number = slot.to_string();
        self.nodes[to].try_command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.node_id(from)?])?;
        self.nodes[from].try_command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.node_id(to)?])?;
        Ok(())
    }

    /// Moves up to `count` keys of `slot`; returns how many moved. Fewer than all leaves the slot split, as a real
    /// migration does.
    ///
    /// # Errors
    ///
    /// When a node refuses.
    pub fn migrate_keys(&self, slot: u16, from: usize, to: usize, count: usize) -> Result<usize> {
        let found =
            self.nodes[from].try_command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &count.to_string()])?;
        let keys: Vec<String> = found.items().iter().map(Reply::to_string).collect();
        let port = self.nodes[to].port().to_string();
        for key in &keys {
            self.nodes[from].try_command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])?;
        }
        Ok(keys.len())
    }

    /// Closes the migration: `to` serves `slot`, and every master is told.
    ///
    /// # Errors
    ///
    /// When a node refuses.
    pub fn finish_migration(&self, slot: u16, from: usize, to: usize) -> Result<()> {
        let (number, owner) = (slot.to_string(), self.node_id(to)?);
        // The new owner first: told last, it could lose the slot if it died in between.
        for index in [to, from].into_iter().chain((0..self.nodes.len()).filter(|&index| index != to && index != from)) {
            // Replicas hear of it from their masters and take no such orders.
            if self.is_master(index)? {
                self.nodes[index].try_command(&["CLUSTER", "SETSLOT", &number, "NODE", &owner])?;
            }
        }
        Ok(())
    }

    /// Moves `slot` with all its keys to another master.
    ///
    /// # Errors
    ///
    /// When a node refuses.
    pub fn migrate_slot(&self, slot: u16, to: usize) -> Result<()> {
        let from = self.owner_of(slot)?;
        self.begin_migration(slot, from, to)?;
        while self.migrate_keys(slot, from, to, 100)? > 0 {}
        self.finish_migration(slot, from, to)
    }

    fn master_of(&self, replica: usize) -> usize {
        let replicas_per_master = self.nodes.len() / self.masters - 1;
        (replica - self.masters) / replicas_per_master
    }
}
