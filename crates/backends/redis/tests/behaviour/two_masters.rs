//! What if a failover leaves two masters, and clients on both?
//!
//! Fences that are floored by the clock are unique on one server. Two count the same milliseconds. The documentation says
//! which setting closes that; both halves are shown here.

use crate::support::{attempt, eventually, key, take};
use syncguard_core::{ErrorCode, LockBackend, Ttl};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{RedisOptions as Server, RedisServer};

/// A master and its replica, in step.
async fn pair(setting: Option<&str>) -> (RedisServer, RedisServer) {
    let options = || {
        let options = Server::new().config("repl-diskless-sync-delay 0");
        setting.map_or(options.clone(), |line| options.config(line))
    };
    let (master, replica) = (RedisServer::start(options()), RedisServer::start(options()));
    follow(&replica, &master).await;
    (master, replica)
}

async fn follow(replica: &RedisServer, master: &RedisServer) {
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("the replica in step", async || {
        replica.command(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
}

/// A replica counts from its first word on, which comes a moment after the link is up.
async fn counts_its_replica(master: &RedisServer) {
    eventually("the master to count its replica", async || {
        master.command(&["INFO", "replication"]).contains("min_slaves_good_slaves:1")
    })
    .await;
}

async fn client(server: &RedisServer) -> RedisBackend {
    RedisBackend::connect(&format!("{}?fence_floor=clock", server.url())).await.unwrap()
}

#[tokio::test]
async fn two_masters_may_give_one_fence_twice() {
    let (old, new) = pair(None).await;
    new.command(&["REPLICAOF", "NO", "ONE"]);
    let (on_old, on_new) = (client(&old).await, client(&new).await);

    // Both are asked in the same millisecond, sooner or later.
    for round in 0..20_000 {
        let k = key(&format!("k{round}"));
        let (one, other) = tokio::join!(take(&on_old, &k), take(&on_new, &k));
        if one.fence == other.fence {
            println!("the same fence from both in round {round}");
            return;
        }
    }
    panic!("the documented danger does not exist: the page of Redis can drop its advice");
}

#[tokio::test]
async fn a_master_without_replicas_refuses_where_one_is_required_so_only_one_gives_fences() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/redis.md");
    let setting = "min-replicas-to-write 1";
    assert!(std::fs::read_to_string(docs).unwrap().contains(&format!("`{setting}`")), "the advice is gone");
    let (old, new) = pair(Some(setting)).await;
    counts_its_replica(&old).await;
    let (on_old, on_new) = (client(&old).await, client(&new).await);
    let k = key("k");
    let first = take(&on_old, &k).await;
    assert!(on_old.release(&first.id).await.unwrap().is_released());

    new.command(&["REPLICAOF", "NO", "ONE"]);
    eventually("the old master to notice that it is alone", async || {
        old.command(&["INFO", "replication"]).contains("min_slaves_good_slaves:0")
    })
    .await;

    let refused = attempt(&on_old, &k, Ttl::DEFAULT).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_ambiguous()), (ErrorCode::ServiceUnavailable, false), "{refused:?}");
    // The new one begins when the failover is complete, and goes on where the old one ended.
    assert_eq!(attempt(&on_new, &k, Ttl::DEFAULT).await.unwrap_err().code(), ErrorCode::ServiceUnavailable);
    follow(&old, &new).await;
    counts_its_replica(&new).await;
    assert!(take(&on_new, &k).await.fence > first.fence);
}
