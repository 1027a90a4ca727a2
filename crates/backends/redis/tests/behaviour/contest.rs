//! Do exclusion and fences hold while servers die, stall, forget and are replaced?

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{attempt, eventually, key, take, ttl};
use syncguard_core::{AcquireOutcome, AcquireRequest, LockBackend, LockError, Ttl};
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
