//! How does a test get a Redis Cluster, and how does it move a slot or lose a master?
//!
//! Formed with the commands `redis-cli --cluster create` would send, so no other program is needed: give every master
//! its slots and its epoch, introduce the nodes, attach the replicas, wait until every node calls the cluster whole.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::resp::Reply;
use super::server::{RedisOptions, RedisServer, info_field};
use crate::place::Port;
use crate::process::wait_for;

/// The number of hash slots of every Redis Cluster.
pub const SLOTS: u16 = 16_384;

/// Forming and failing over takes seconds; the rest is for a loaded machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// A Redis Cluster of this test: masters first, then the replicas of master 0, of master 1, …
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    masters: usize,
    bus_ports: Vec<Port>,
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
        ensure!(masters >= 1, "a cluster needs a master");
        let mut nodes = Vec::new();
        let mut bus_ports = Vec::new();
        for _ in 0..masters * (1 + replicas_per_master) {
            let bus = Port::reserve()?;
            let options = RedisOptions::new()
                .config("cluster-enabled yes")
                .config("cluster-config-file nodes.conf")
                .config("cluster-node-timeout 2000")
                .config(format!("cluster-port {}", bus.number()))
                // The default waits five seconds for more replicas to come.
                .config("repl-diskless-sync-delay 0");
            nodes.push(RedisServer::try_start(options)?);
            bus_ports.push(bus);
        }
        let cluster = Self { nodes, masters, bus_ports };
        cluster.form()?;
        Ok(cluster)
    }

    fn form(&self) -> Result<()> {
        for (index, master) in self.nodes[..self.masters].iter().enumerate() {
            let (first, last) = slots_of(index, self.masters);
            master.try_command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            master.try_command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
        }
        for (node, bus) in self.nodes.iter().zip(&self.bus_ports).skip(1) {
            let (port, bus) = (node.port().to_string(), bus.number().to_string());
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
            self.nodes[..self.masters].iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
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
        self.nodes.iter().position(|node| node.port() == port).context("the owner is not one of ours")
    }

    /// Makes a replica take over from its master (`CLUSTER FAILOVER`), and waits until it did.
    ///
    /// # Errors
    ///
    /// When the node is no replica or the failover does not happen.
    pub fn fail_over_to(&self, replica: usize) -> Result<()> {
        self.nodes[replica].try_command(&["CLUSTER", "FAILOVER"])?;
        self.wait_promoted(replica)
    }

    /// Waits until a replica has become a master in the eyes of all nodes that run, for example because its master was
    /// killed.
    ///
    /// # Errors
    ///
    /// When that does not happen.
    pub fn wait_promoted(&self, replica: usize) -> Result<()> {
        wait_for("the replica to be promoted", PATIENCE, || {
            let info = self.nodes[replica].try_command(&["INFO", "replication"])?.to_string();
            Ok((info_field(&info, "role")? == "master").then_some(()))
        })?;
        let port = self.nodes[replica].port();
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
        for index in [to, from].into_iter().chain((0..self.masters).filter(|&index| index != to && index != from)) {
            self.nodes[index].try_command(&["CLUSTER", "SETSLOT", &number, "NODE", &owner])?;
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

/// The slot of a key: its hash tag alone counts if it has one.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    });
    crc % SLOTS
}

fn slots_of(index: usize, masters: usize) -> (usize, usize) {
    let slots = usize::from(SLOTS);
    (index * slots / masters, (index + 1) * slots / masters - 1)
}

/// First slot, last slot and master's port of each range in the answer of `CLUSTER SLOTS`, which is a list of
/// `[first, last, [host, port, id, …], replicas…]`.
fn ranges(slots: &Reply) -> Vec<(u16, u16, u16)> {
    let Reply::Array(ranges) = slots else { return Vec::new() };
    let parse = |range: &Reply| {
        let Reply::Array(fields) = range else { return None };
        let [Reply::Integer(first), Reply::Integer(last), Reply::Array(master), ..] = fields.as_slice() else {
            return None;
        };
        let [_, Reply::Integer(port), ..] = master.as_slice() else { return None };
        let number = |value: &i64| u16::try_from(*value).ok();
        Some((number(first)?, number(last)?, number(port)?))
    };
    ranges.iter().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_redis_cluster_specification() {
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("a{foo}b"), slot_of("foo"));
        assert_ne!(slot_of("a{}b"), slot_of(""));
    }

    #[test]
    fn the_masters_share_all_slots_without_overlap() {
        assert_eq!(
            (0..3).map(|index| slots_of(index, 3)).collect::<Vec<_>>(),
            [(0, 5460), (5461, 10_921), (10_922, 16_383)]
        );
        assert_eq!(slots_of(0, 1), (0, 16_383));
    }
}
