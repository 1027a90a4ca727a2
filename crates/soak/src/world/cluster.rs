//! What happens to a Redis Cluster without losing what it acknowledged?

use std::time::Duration;

use anyhow::Result;
use syncguard_testkit::process::wait_for;
use syncguard_testkit::redis::cluster::slot_of;
use syncguard_testkit::redis::{Appendonly, ClusterOptions};
use syncguard_testkit::{RedisCluster, RedisOptions};

use crate::random::Random;

const MASTERS: usize = 3;

/// Three masters with a replica each, behind proxies. No node calls another dead within the faults of a run: an election
/// that nobody ordered may lose writes, and those who do that are in the world of the sentinels.
pub(super) fn start() -> Result<RedisCluster> {
    let node = RedisOptions::new()
        .appendonly(Appendonly::Always)
        .config("cluster-node-timeout 5000")
        .config("cluster-replica-no-failover yes")
        .config("auto-aof-rewrite-min-size 4mb");
    RedisCluster::try_start_with(MASTERS, 1, &ClusterOptions::new().nodes(node).behind_proxies())
}

/// Promotes the replica of one of the pairs, in order: the master waits until the replica has everything. `number` is that
/// of the failover: the nodes do not vote for the same pair again within seconds.
pub(super) fn fail_over(cluster: &RedisCluster, number: usize) -> Result<bool> {
    cluster.wait_whole()?;
    let first = number % MASTERS;
    let replica = if cluster.is_master(first)? { first + MASTERS } else { first };
    // Refused while the replica is not in step: then it came to nothing.
    Ok(cluster.fail_over_to(replica).is_ok())
}

/// Moves one of the sixteen slots in which the locks are to another master.
pub(super) fn migrate(cluster: &RedisCluster, random: &mut Random) -> Result<bool> {
    // No node is lost in this world, so one that does not answer only needs time.
    cluster.wait_whole()?;
    let slot = slot_of(&format!("{{syncguard:{:x}}}", random.between(0, 15)));
    let from = cluster.owner_of(slot)?;
    let mut others = Vec::new();
    for index in 0..cluster.nodes().len() {
        if index != from && cluster.is_master(index)? {
            others.push(index);
        }
    }
    let Some(&to) = random.pick(&others) else { return Ok(false) };
    // Half-way a slot belongs to nobody, so it is tried until it is done.
    let mut begun = false;
    wait_for("a slot to move", Duration::from_mins(2), || {
        if !begun {
            cluster.begin_migration(slot, from, to)?;
            begun = true;
        }
        while cluster.migrate_keys(slot, from, to, 100)? > 0 {}
        cluster.finish_migration(slot, from, to).map(Some)
    })?;
    Ok(true)
}
