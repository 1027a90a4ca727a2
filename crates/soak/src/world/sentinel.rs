//! What happens to a master that sentinels watch?
//!
//! Either way the replica is promoted without what the master had not passed on yet, and the old master comes back as a
//! replica. An operator sees to that before anybody can reach it, and a master without a replica takes no writes: two
//! masters at once would count the same milliseconds, and a fence would come twice.

use std::time::Duration;

use anyhow::Result;
use syncguard_testkit::{Fault, RedisSentinel};

/// Longer than any fault but those of this file: a failover that nobody ordered leaves two masters for a while.
const DOWN_AFTER: Duration = Duration::from_secs(4);

pub(super) fn start() -> Result<RedisSentinel> {
    let sentinel = RedisSentinel::try_start_behind_proxies(1, DOWN_AFTER)?;
    sentinel.refuse_writes_without_a_replica()?;
    Ok(sentinel)
}

/// Kills the master with SIGKILL; it comes back empty, as a replica.
pub(super) fn lose_the_master(sentinel: &mut RedisSentinel) -> Result<bool> {
    let (index, old) = (sentinel.master_index()?, sentinel.kill_master());
    let new = sentinel.try_wait_for_new_master(old)?;
    // Nobody may find it while it still thinks that it is a master.
    sentinel.proxies()[index].set(Fault::Refuse);
    sentinel.servers_mut()[index].restart();
    sentinel.demote(index, new)?;
    // Its settings were not kept.
    sentinel.refuse_writes_without_a_replica()?;
    sentinel.proxies()[index].set(Fault::Pass);
    sentinel.wait_followed()?;
    Ok(true)
}

/// Cuts the master off from everybody until the replica has its place.
pub(super) fn cut_the_master_off(sentinel: &RedisSentinel) -> Result<bool> {
    let Ok(index) = sentinel.master_index() else { return Ok(false) };
    let proxy = &sentinel.proxies()[index];
    proxy.set(Fault::BlackHole);
    let promoted = sentinel.try_wait_for_new_master(proxy.port());
    let demoted = promoted.and_then(|new| sentinel.demote(index, new));
    proxy.set(Fault::Pass);
    demoted?;
    sentinel.wait_followed()?;
    Ok(true)
}
