//! What is a lock worth when its master is lost: fences after a failover, and locks that wait for replicas.

use std::time::Duration;

use crate::support::{attempt, eventually, key, take};
use syncguard_core::retry::Jitter;
use syncguard_core::{ErrorCode, LockBackend, Locker, Lookup, Ttl};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{Fault, FaultProxy, RedisOptions as Server, RedisServer, trials};

#[tokio::test]
async fn a_lagging_replica_that_is_promoted_repeats_plain_fences_and_not_floored_ones() {
    let master = RedisServer::start(Server::new().config("repl-diskless-sync-delay 0"));
    let replica = RedisServer::start(Server::new());
    let (link, front) = (FaultProxy::start(master.port()), FaultProxy::start(master.port()));
    replica.command(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
    eventually("the replica in step", async || {
        replica.command(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    let url = front.url(&master.url());
    let plain = RedisBackend::connect(&format!("{url}?prefix=plain")).await.unwrap();
    let floored = RedisBackend::connect(&format!("{url}?prefix=floored&fence_floor=clock")).await.unwrap();
    let k = key("k");
    let cycle = async |backend: &RedisBackend| {
        let held = take(backend, &k).await;
        backend.release(&held.id).await.unwrap();
        held.fence
    };
    cycle(&plain).await;
    cycle(&floored).await;
    // Its last write is the second release: without it, the lock would still be held on the new master.
    eventually("the replica in step", async || {
        replica.command(&["EXISTS", "floored:fence:floored:k"]) == "1"
            && replica.command(&["EXISTS", "floored:k"]) == "0"
    })
    .await;

    // Acknowledged by the master, never seen by the replica.
    link.set(Fault::BlackHole);
    let mut given = (cycle(&plain).await, cycle(&floored).await);
    for _ in 0..10 {
        given = (cycle(&plain).await, cycle(&floored).await);
    }
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    front.set_target(replica.port());
    front.set(Fault::Reset);
    eventually("the reset", async || front.counts().faults >= 2).await;
    front.set(Fault::Pass);
    eventually("the new master", async || plain.is_locked(&k).await.is_ok() && floored.is_locked(&k).await.is_ok())
        .await;

    assert!(cycle(&plain).await <= given.0, "the control lost nothing, so this test proves nothing");
    assert!(cycle(&floored).await > given.1, "a floored fence repeated");
}

#[tokio::test]
async fn enough_replicas_or_the_lock_is_given_back() {
    let master = RedisServer::start(Server::new().config("repl-diskless-sync-delay 0"));
    let url = format!("{}?wait_replicas=1&wait_timeout=300ms", master.url());
    let backend = RedisBackend::connect(&url).await.unwrap();

    let error = attempt(&backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));
    assert!(error.to_string().contains("only 0 of 1"), "{error}");
    assert!(!backend.is_locked(&key("k")).await.unwrap(), "it was not given back");

    let replica = RedisServer::start(Server::new());
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("the replica in step", async || {
        replica.command(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    eventually("an acknowledged lock", async || {
        attempt(&backend, &key("k"), Ttl::DEFAULT).await.is_ok_and(|answer| answer.is_ok())
    })
    .await;
    let on_replica = replica.command(&["EXISTS", "syncguard:k"]);
    assert_eq!(on_replica, "1");

    // A frozen replica is none.
    replica.pause();
    let error = attempt(&backend, &key("frozen"), Ttl::DEFAULT).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!backend.is_locked(&key("frozen")).await.unwrap());
    replica.resume();
}

#[tokio::test]
async fn a_lock_that_could_not_be_given_back_is_told_as_ambiguous() {
    let server = RedisServer::start(Server::new());
    let near = RedisBackend::connect(&server.url()).await.unwrap();
    // Without DEL the lock is taken and cannot be given back; without WAIT nobody can even ask the replicas.
    for (user, rights) in [("cannot-delete", "+@all -del"), ("cannot-wait", "+@all -del -wait")] {
        let mut words = vec!["ACL", "SETUSER", user, "on", ">pw", "~*", "&*"];
        words.extend(rights.split(' '));
        server.command(&words);
        let query = "wait_replicas=1&wait_timeout=100ms";
        let url = format!("redis://{user}:pw@127.0.0.1:{}/?{query}", server.port());
        let backend = RedisBackend::connect(&url).await.unwrap();

        let error = attempt(&backend, &key(user), Ttl::DEFAULT).await.unwrap_err();

        assert!(near.is_locked(&key(user)).await.unwrap(), "it was given back, so this test proves nothing");
        assert!(error.is_ambiguous(), "{user}: {error:?}");
        assert!(!error.to_string().contains("was given back"), "{user}: {error}");
    }
}

/// A master with a replica, and the URL of a user who may take locks and not give them back.
fn master_with_replica() -> (RedisServer, RedisServer, String) {
    let master = RedisServer::start(Server::new().config("repl-diskless-sync-delay 0"));
    let replica = RedisServer::start(Server::new());
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    master.command(&["ACL", "SETUSER", "taker", "on", ">pw", "~*", "&*", "+@all", "-del"]);
    let url = format!("redis://taker:pw@127.0.0.1:{}/?wait_replicas=1&wait_timeout=100ms", master.port());
    (master, replica, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_believes_no_longer_than_the_lock_that_could_not_be_given_back() {
    let (master, replica, url) = master_with_replica();
    let near = RedisBackend::connect(&master.url()).await.unwrap();
    let locker = Locker::new(RedisBackend::connect(&url).await.unwrap());
    let mut tries = 0;
    eventually("an acknowledged lock", async || {
        tries += 1;
        // Left to its lease: its release would be refused, too, and noted by the server at some later time.
        let taken = locker.lock(format!("warm{tries}")).try_acquire().await;
        taken.is_ok_and(|guard| guard.map(syncguard_core::Guard::leak).is_some())
    })
    .await;
    let trials = trials(3);
    let mut believers = Vec::new();
    for trial in 0..trials {
        let name = format!("k{trial}");
        master.command(&["ACL", "LOG", "RESET"]);
        replica.pause();
        // The pause before the second attempt is longer than the margin by which a guard stops early.
        let request = locker.lock(name.as_str()).ttl(Duration::from_secs(20)).jitter(Jitter::None);
        let request = request.retry_delay(Duration::from_millis(600)).timeout(Duration::from_secs(15));
        let acquiring = tokio::spawn(async move { request.acquire().await });
        // The server refuses the DEL of the script: the lock was taken, and its give-back failed.
        eventually("the refused give-back", async || !master.command(&["ACL", "LOG"]).is_empty()).await;
        replica.resume();
        let guard = acquiring.await.unwrap().unwrap();

        // Asked first: however long the question takes, the guard's own count goes on meanwhile.
        let stored = near.lookup(Lookup::Key(&key(&name))).await.unwrap().unwrap();
        let left = stored.free_in().saturating_sub(syncguard_core::time::TOLERANCE);
        let believed = guard.remaining();
        if believed > left {
            believers.push((believed, left));
        }
        guard.leak();
    }
    println!("{} of {trials} trials with two believers", believers.len());
    assert!(believers.is_empty(), "believed for longer than stored: {believers:?}");
}
