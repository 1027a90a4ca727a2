//! Do exclusion and fences hold while servers die, stall, forget and lose replies?

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{attempt, eventually, key, take, ttl};
use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockError, Lookup, Ttl};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::redis::Appendonly;
use syncguard_testkit::{Fault, FaultProxy, RedisOptions as Server, RedisServer};

/// Many clients on few keys, watched from outside. Each hold is far shorter than its lease, so that an overlap is
/// always a fault.
struct Contest {
    stop: AtomicBool,
    holders: Vec<AtomicI64>,
    fences: Vec<Mutex<Vec<u64>>>,
    overlaps: AtomicU64,
    errors: AtomicU64,
}

const KEYS: usize = 3;

impl Contest {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            stop: AtomicBool::new(false),
            holders: (0..KEYS).map(|_| AtomicI64::new(0)).collect(),
            fences: (0..KEYS).map(|_| Mutex::default()).collect(),
            overlaps: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        })
    }

    async fn worker(self: Arc<Self>, backend: RedisBackend, number: usize) {
        let mut turn = number;
        while !self.stop.load(Ordering::Relaxed) {
            turn = (turn + 1) % KEYS;
            let key = key(&format!("contested{turn}"));
            let id = backend.new_lock_id(&key);
            let request = AcquireRequest::new(&key, &id, ttl(20_000));
            // An unknown outcome is asked for again with the same id, as the client does.
            let outcome = loop {
                match backend.acquire(request).await {
                    Ok(outcome) => break outcome,
                    Err(error) => self.pause_after(&error).await,
                }
            };
            match outcome {
                AcquireOutcome::Acquired(lease) => {
                    // Recorded while the lock is held, so the order of the list is the order of the holds.
                    if self.holders[turn].fetch_add(1, Ordering::SeqCst) != 0 {
                        self.overlaps.fetch_add(1, Ordering::SeqCst);
                    }
                    self.fences[turn].lock().unwrap().push(lease.fence.get());
                    tokio::task::yield_now().await;
                    self.holders[turn].fetch_sub(1, Ordering::SeqCst);
                    while let Err(error) = backend.release(&id).await {
                        self.pause_after(&error).await;
                    }
                }
                AcquireOutcome::Contended(_) => tokio::task::yield_now().await,
            }
        }
    }

    /// Only transient errors may come.
    async fn pause_after(&self, error: &LockError) {
        assert!(error.is_transient(), "{error:?}");
        self.errors.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    fn holds(&self) -> usize {
        self.fences.iter().map(|fences| fences.lock().unwrap().len()).sum()
    }

    /// Runs `fault` in the middle of the contest, several times, and judges.
    async fn run(url: &str, rounds: u32, mut fault: impl AsyncFnMut(u32)) -> Arc<Self> {
        let contest = Self::new();
        let options = RedisBuilder::from_url(url).unwrap().timeout(Duration::from_secs(2));
        let mut workers = Vec::new();
        for number in 0..8 {
            let backend = options.clone().connect().await.unwrap();
            workers.push(tokio::spawn(contest.clone().worker(backend, number)));
        }
        for round in 0..rounds {
            let before = contest.holds();
            eventually("the contest", async || contest.holds() > before + 50).await;
            fault(round).await;
        }
        let before = contest.holds();
        eventually("the recovery", async || contest.holds() > before + 20).await;
        contest.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.await.unwrap();
        }
        contest
    }

    fn judge(&self) {
        assert_eq!(self.overlaps.load(Ordering::SeqCst), 0, "two holders at once");
        for fences in &self.fences {
            let fences = fences.lock().unwrap();
            assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "a fence repeated or fell");
            assert_eq!(fences.iter().collect::<HashSet<_>>().len(), fences.len());
        }
        println!(
            "{} holds, {} transient errors, no overlap, no repeated fence",
            self.holds(),
            self.errors.load(Ordering::Relaxed)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_and_restarted_server_repeats_no_fence_and_has_no_two_holders() {
    let mut server = RedisServer::start(Server::new().appendonly(Appendonly::Always));
    let url = server.url();
    let contest = Contest::run(&url, 20, async |_| {
        server.kill_hard();
        server.restart();
    })
    .await;
    contest.judge();
    assert!(contest.errors.load(Ordering::Relaxed) > 0, "the fault was not felt");
}

#[tokio::test]
async fn without_an_append_only_file_a_restart_repeats_fences() {
    // The control of the test above, and what the health report warns of.
    let mut server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let first = take(&backend, &key("k")).await;
    server.kill_hard();
    server.restart();
    let mut again = None;
    eventually("the restarted server", async || {
        again = attempt(&backend, &key("k"), Ttl::DEFAULT).await.ok();
        again.is_some()
    })
    .await;
    assert_eq!(again.unwrap().expect("the lock is gone too").fence, first.fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_not_noticed() {
    let server = RedisServer::start(Server::new());
    let contest = Contest::run(&server.url(), 20, async |_| {
        server.command(&["SCRIPT", "FLUSH"]);
    })
    .await;
    contest.judge();
    assert_eq!(contest.errors.load(Ordering::Relaxed), 0, "a caller noticed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_are_replaced() {
    let server = RedisServer::start(Server::new());
    let contest = Contest::run(&server.url(), 10, async |_| {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    })
    .await;
    contest.judge();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_only_delays() {
    let server = RedisServer::start(Server::new());
    let contest = Contest::run(&server.url(), 3, async |round| {
        if round == 1 {
            // Frozen for longer than the operations wait: their outcomes are unknown.
            server.pause();
            tokio::time::sleep(Duration::from_millis(2500)).await;
            server.resume();
        } else {
            server.command(&["CLIENT", "PAUSE", "300", "ALL"]);
        }
    })
    .await;
    contest.judge();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_replica_goes_on_where_the_master_was_in_step() {
    let master = RedisServer::start(Server::new().config("repl-diskless-sync-delay 0"));
    let replica = RedisServer::start(Server::new());
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("the replica in step", async || {
        replica.command(&["INFO", "replication"]).contains("master_link_status:up")
    })
    .await;
    let proxy = FaultProxy::start(master.port());

    let contest = Contest::run(&proxy.url(&master.url()), 1, async |_| {
        // No writes reach the master any more; the replica catches up and takes over.
        proxy.set(Fault::Refuse);
        master.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let offset = |server: &RedisServer, field: &str| {
            let info = server.command(&["INFO", "replication"]);
            info.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().parse::<u64>().unwrap()
        };
        eventually("the replica in step", async || {
            offset(&replica, "slave_repl_offset:") >= offset(&master, "master_repl_offset:")
        })
        .await;
        replica.command(&["REPLICAOF", "NO", "ONE"]);
        proxy.set_target(replica.port());
        proxy.set(Fault::Pass);
    })
    .await;

    contest.judge();
    assert!(proxy.counts().faults > 0);
}

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
    eventually("the replica in step", async || replica.command(&["GET", "plain:fence:plain:k"]) == "1").await;

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

/// A client behind a proxy, and one that is not.
async fn behind_proxy(server: &RedisServer, query: &str) -> (FaultProxy, RedisBackend, RedisBackend) {
    let proxy = FaultProxy::start(server.port());
    let far = RedisBackend::connect(&format!("{}{query}", proxy.url(&server.url()))).await.unwrap();
    let near = RedisBackend::connect(&server.url()).await.unwrap();
    // The server knows the scripts: the reply that gets lost is the one that counts, not NOSCRIPT.
    let held = take(&near, &key("warm")).await;
    let _ = near.extend(&held.id, Ttl::DEFAULT).await.unwrap();
    near.release(&held.id).await.unwrap();
    (proxy, far, near)
}

#[tokio::test]
async fn a_lost_reply_is_ambiguous_and_the_same_id_learns_the_truth() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, near) = behind_proxy(&server, "?timeout=300ms&connections=1").await;
    let k = key("k");
    let id = far.new_lock_id(&k);
    let request = AcquireRequest::new(&k, &id, ttl(60_000));

    proxy.set(Fault::DropReplies);
    let error = far.acquire(request).await.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
    assert!(proxy.counts().dropped > 0);
    let stored = near.lookup(Lookup::Key(&k)).await.unwrap().expect("the server had acted");

    proxy.set(Fault::Pass);
    let AcquireOutcome::Acquired(lease) = far.acquire(request).await.unwrap() else { panic!("the lock is ours") };
    assert_eq!((lease.fence, lease.expires_at), (stored.fence, stored.expires_at));

    // Extend and release: at most one effect, and the truth afterwards.
    proxy.set(Fault::DropReplies);
    assert!(far.extend(&id, ttl(120_000)).await.unwrap_err().is_ambiguous());
    proxy.set(Fault::Pass);
    assert!(near.lookup(Lookup::Key(&k)).await.unwrap().unwrap().expires_at > stored.expires_at);
    // The silent connection was given up; without a new one the release would not even leave.
    assert!(far.is_locked(&k).await.unwrap());
    proxy.set(Fault::DropReplies);
    assert!(far.release(&id).await.unwrap_err().is_ambiguous());
    proxy.set(Fault::Pass);
    assert!(!near.is_locked(&k).await.unwrap());
    assert!(!far.release(&id).await.unwrap().is_released());
}

#[tokio::test]
async fn a_connection_cut_inside_a_reply_leaves_no_orphan_and_the_next_caller_its_own_reply() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, near) = behind_proxy(&server, "?timeout=1s&connections=1").await;
    // The whole reply is *2, an integer and an integer: about 25 bytes.
    for bytes in [0, 1, 3, 10, 20] {
        let k = key(&format!("cut{bytes}"));
        let id = far.new_lock_id(&k);
        let request = AcquireRequest::new(&k, &id, ttl(60_000));
        proxy.cut_once(bytes);
        let error = far.acquire(request).await.unwrap_err();
        assert!(error.is_transient() && error.is_ambiguous(), "{bytes}: {error:?}");
        let AcquireOutcome::Acquired(lease) = far.acquire(request).await.unwrap() else { panic!("the lock is ours") };
        assert_eq!(lease.fence.get(), 1, "a second lock was made");
        assert!(far.release(&id).await.unwrap().is_released());
        assert!(!near.is_locked(&k).await.unwrap());
    }
    assert!(proxy.counts().faults >= 5);
}

#[tokio::test]
async fn a_server_that_went_away_is_told_at_once_and_found_again() {
    let mut server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    take(&backend, &key("before")).await;

    server.kill_hard();
    eventually("the refusal", async || {
        let error = attempt(&backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();
        // The first calls may still meet the dying connections; then nothing is sent any more.
        error.code() == ErrorCode::ServiceUnavailable && !error.is_ambiguous()
    })
    .await;
    let error = attempt(&backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();
    assert!(error.to_string().contains(&format!("127.0.0.1:{}", server.port())), "{error}");

    server.restart();
    take(&backend, &key("k")).await;
}

#[tokio::test]
async fn a_silent_server_costs_each_caller_one_timeout_and_not_a_queue_of_them() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, _) = behind_proxy(&server, "?timeout=400ms&connect_timeout=400ms").await;
    proxy.set(Fault::BlackHole);

    let k = key("k");
    let calls = (0..50).map(|_| far.is_locked(&k));
    let all = tokio::time::timeout(Duration::from_secs(3), futures_util::future::join_all(calls)).await;

    let all = all.expect("fifty callers wait at the same time");
    assert!(all.iter().all(|result| result.as_ref().is_err_and(LockError::is_transient)));
    // The silent connections were given up: once the network is back, the next call succeeds.
    proxy.set(Fault::Pass);
    eventually("the recovery", async || far.is_locked(&k).await.is_ok()).await;
}

#[tokio::test]
async fn one_silence_gives_up_every_connection_also_when_the_caller_did_not_wait_for_it() {
    let server = RedisServer::start(Server::new());
    let (proxy, far, _) = behind_proxy(&server, "?timeout=5s&connections=4").await;
    let k = key("k");
    for _ in 0..8 {
        far.is_locked(&k).await.unwrap();
    }
    let before = proxy.counts().accepted;
    proxy.silence_existing();

    // As a renewal does: the caller's own bound ends before the backend's.
    let cut = tokio::time::timeout(Duration::from_secs(2), far.is_locked(&k)).await;
    assert!(cut.is_err(), "the connection was not silent, so this test proves nothing");

    for _ in 0..8 {
        far.is_locked(&k).await.expect("every connection after the silence is a new one");
    }
    assert!(proxy.counts().accepted > before);
}

#[tokio::test]
async fn a_dropped_call_leaves_the_connection_in_step() {
    let server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&format!("{}?connections=1", server.url())).await.unwrap();
    let (a, b) = (key("a"), key("b"));
    take(&backend, &a).await;
    for round in 0..200 {
        let dropped = backend.is_locked(&a);
        let _ = tokio::time::timeout(Duration::from_micros(round), dropped).await;
        assert!(!backend.is_locked(&b).await.unwrap(), "the reply of the dropped call was taken");
    }
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
