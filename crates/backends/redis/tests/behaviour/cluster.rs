//! Do locks survive what happens in a cluster: redirects, a failover, a slot that moves?

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{attempt, eventually, fresh_prefix, key, refusal, take};
use syncguard_core::{
    AcquireRequest, ErrorCode, ExtendOutcome, HealthStatus, Key, LockBackend, LockId, Lookup, ReleaseOutcome, Ttl,
};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::redis::cluster::slot_of;
use syncguard_testkit::{RedisCluster, redis_cluster_url};

async fn client(url: &str, prefix: &str) -> RedisBackend {
    RedisBuilder::from_url(url).unwrap().prefix(prefix).connect().await.unwrap()
}

/// The slot of a key's lock under an untagged prefix.
fn slot(prefix: &str, key: &Key) -> u16 {
    slot_of(&format!("{{{prefix}:{}}}:x", &key.hash().to_string()[..1]))
}

#[tokio::test]
async fn locks_spread_over_all_masters_and_are_released_by_id_alone() {
    let (url, prefix) = (redis_cluster_url(), fresh_prefix());
    let (mine, other) = (client(&url, &prefix).await, client(&url, &prefix).await);
    let mut slots = HashSet::new();
    for number in 0..64 {
        let key = key(&format!("job{number}"));
        slots.insert(slot(&prefix, &key));
        let held = take(&mine, &key).await;
        assert!(other.lookup(Lookup::LockId(&held.id)).await.unwrap().is_some());
        assert!(other.extend(&held.id, Ttl::DEFAULT).await.unwrap().is_extended());
        assert!(other.release(&held.id).await.unwrap().is_released());
        assert!(!mine.is_locked(&key).await.unwrap());
    }
    assert_eq!(slots.len(), 16);
}

#[tokio::test]
async fn a_tagged_prefix_and_keys_with_braces_work() {
    let url = redis_cluster_url();
    let prefix = format!("{{{}}}", fresh_prefix());
    let backend = client(&url, &prefix).await;
    for name in ["plain", "{tag}:k", "a{b}c", "{}", "}{"] {
        let held = take(&backend, &key(name)).await;
        assert!(backend.release(&held.id).await.unwrap().is_released(), "{name}");
    }
}

#[tokio::test]
async fn an_id_made_for_another_slot_is_refused_before_anything_is_sent() {
    let backend = client(&redis_cluster_url(), &fresh_prefix()).await;
    let k = key("k");
    let right = backend.new_lock_id(&k);
    let wrong = LockId::random_with_tag(right.tag() ^ 1);
    let request = AcquireRequest::new(&k, &wrong, Ttl::DEFAULT);
    assert_eq!(backend.acquire(request).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    assert!(!backend.is_locked(&k).await.unwrap());
}

#[tokio::test]
async fn a_url_for_a_single_server_is_told_that_this_is_a_cluster() {
    let url = redis_cluster_url().replace("redis+cluster", "redis");
    let first = url.split(',').next().unwrap();
    let backend = RedisBackend::connect(first).await.unwrap();
    let mut codes = HashSet::new();
    for number in 0..20 {
        codes.insert(refusal(&backend, &key(&format!("k{number}"))).await);
    }
    assert_eq!(codes, HashSet::from([ErrorCode::InvalidArgument]));
}

#[tokio::test]
async fn health_and_purge_reach_every_master() {
    let prefix = fresh_prefix();
    let backend = client(&redis_cluster_url(), &prefix).await;
    let report = backend.health().await;
    let reachable = report.checks.iter().filter(|check| check.name.starts_with("reachable"));
    assert_eq!(reachable.filter(|check| check.status == HealthStatus::Pass).count(), 3, "{report:?}");
    take(&backend, &key("k")).await;
    assert_eq!(backend.purge_expired().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moving_slot_delays_its_locks_and_loses_none() {
    let cluster = RedisCluster::start(3, 0);
    let backend = client(&cluster.url(), "app").await;
    let moving = key("moving");
    let number = slot("app", &moving);
    // A lock that is held over the whole move, and one that comes and goes.
    let other = (0..1000).map(|n| key(&format!("k{n}"))).find(|other| slot("app", other) == number).unwrap();
    let held = take(&backend, &moving).await;
    let first = take(&backend, &other).await;
    backend.release(&first.id).await.unwrap();
    let from = cluster.owner_of(number).unwrap();
    let to = (from + 1) % 3;

    cluster.begin_migration(number, from, to).unwrap();
    // Before any of its names has moved: found where it was.
    assert!(backend.extend(&held.id, Ttl::DEFAULT).await.unwrap().is_extended());
    // Some names are here and some there: whatever needs both is refused, and nothing is done.
    assert_eq!(cluster.migrate_keys(number, from, to, 1).unwrap(), 1);
    match attempt(&backend, &other, Ttl::DEFAULT).await {
        Err(error) => assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false)),
        Ok(answer) => drop(answer.map(|held| held.id)),
    }
    while cluster.migrate_keys(number, from, to, 100).unwrap() > 0 {}
    // All have moved, the slot has not: reached by ASK.
    assert!(backend.is_locked(&moving).await.unwrap());
    assert!(backend.extend(&held.id, Ttl::DEFAULT).await.unwrap().is_extended());
    cluster.finish_migration(number, from, to).unwrap();

    assert!(backend.is_locked(&moving).await.unwrap());
    assert!(backend.release(&held.id).await.unwrap().is_released());
    let again = take(&backend, &moving).await;
    assert!(again.fence > held.fence);
    assert_eq!(cluster.owner_of(number).unwrap(), to);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_keeps_locks_and_fences_and_is_found_without_help() {
    let mut cluster = RedisCluster::start(3, 1);
    let backend = client(&cluster.url(), "app").await;
    let k = key("k");
    let owner = cluster.owner_of(slot("app", &k)).unwrap();
    let held = take(&backend, &k).await;
    let hint = backend.subscribe(&k).await;
    assert!(hint.is_live());

    // By force: the master dies, its replica has the lock and takes over.
    let replica = 3 + owner;
    let name = format!("{{app:{}}}:k", &k.hash().to_string()[..1]);
    eventually("the lock on the replica", async || {
        let mut reader = cluster.node(replica).client().unwrap();
        reader.command(&["READONLY"]).unwrap();
        reader.command(&["EXISTS", &name]).unwrap().to_string() == "1"
    })
    .await;
    cluster.node_mut(owner).kill_hard();
    cluster.wait_promoted(replica).unwrap();
    let extended = async || backend.extend(&held.id, Ttl::DEFAULT).await.is_ok_and(ExtendOutcome::is_extended);
    eventually("the lock on the new master", extended).await;
    assert!(attempt(&backend, &k, Ttl::DEFAULT).await.unwrap().is_err(), "a second holder");

    // And back, in order: the demoted master answers with a redirect.
    cluster.node_mut(owner).restart();
    eventually("the old master in step", async || {
        cluster.node(owner).command(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    // Masters do not vote twice for one shard within twice the node timeout: asked until they do.
    eventually("the way back", async || {
        let _ = cluster.node(owner).try_command(&["CLUSTER", "FAILOVER"]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.node(owner).command(&["INFO", "replication"]).contains("role:master")
    })
    .await;
    let released = async || backend.release(&held.id).await.is_ok_and(ReleaseOutcome::is_released);
    eventually("the release on the old master", released).await;
    let mut next = None;
    eventually("the next holder", async || {
        next = attempt(&backend, &k, Ttl::DEFAULT).await.ok().and_then(Result::ok);
        next.is_some()
    })
    .await;
    assert!(next.unwrap().fence > held.fence);
    tokio::time::timeout(Duration::from_secs(20), hint.woken())
        .await
        .expect("the release or the reconnection was heard");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_master_whose_replica_took_over_is_left_although_every_caller_gave_up_early() {
    let cluster = RedisCluster::start(3, 1);
    let backend = client(&cluster.url(), "app").await;
    let k = key("k");
    let owner = cluster.owner_of(slot("app", &k)).unwrap();
    let held = take(&backend, &k).await;
    let name = format!("{{app:{}}}:k", &k.hash().to_string()[..1]);
    eventually("the lock on the replica", async || {
        let mut reader = cluster.node(3 + owner).client().unwrap();
        reader.command(&["READONLY"]).unwrap();
        reader.command(&["EXISTS", &name]).unwrap().to_string() == "1"
    })
    .await;

    // It accepts connections and answers nothing: no error ever tells that it is gone.
    cluster.node(owner).pause();
    cluster.wait_promoted(3 + owner).unwrap();
    let renewal = async || {
        let extended = tokio::time::timeout(Duration::from_millis(1200), backend.extend(&held.id, Ttl::DEFAULT)).await;
        matches!(extended, Ok(Ok(outcome)) if outcome.is_extended())
    };
    eventually("the renewal on the new master", renewal).await;
    cluster.node(owner).resume();
}
