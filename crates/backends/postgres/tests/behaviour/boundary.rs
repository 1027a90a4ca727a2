//! Can the old owner and a new one both win at the end of a lease?
//!
//! Each trial aims an extend and an acquire at `expires_at + 1000 ms`, where the lock changes from alive to dead. Pairs
//! with clients that follow the specification to the letter count too, because they may share the tables. The last test
//! runs the same trials against this crate's statement without its row lock, to show that they can fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::literal;
use crate::support::{self, PATIENCE, Tables, eventually, sql, try_acquire, ttl};
use syncguard_core::{Clock, LockBackend, LockId, SystemClock, Timestamp};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{PostgresOptions, PostgresServer, postgres_url};
use tokio::sync::Mutex;
use tokio_postgres::Client;

const KEYS_AT_ONCE: usize = 50;

/// Who extends and who acquires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Ours,
    Literal,
    /// The TypeScript original (acquire only).
    Original,
    /// Ours without the row lock (acquire only).
    Broken,
}

/// How ours are sent.
#[derive(Clone, Copy)]
enum Way {
    /// On connections of the backend's own.
    OneStatement,
    /// On a pool that was brought along, as behind a pooler.
    Transaction,
}

#[derive(Default, Debug)]
struct Tally {
    extended: AtomicU32,
    acquired: AtomicU32,
    both: AtomicU32,
}

struct Arena {
    tables: Tables,
    backend: PostgresBackend,
    literal: Vec<[Mutex<Client>; 2]>,
    tally: Tally,
    _server: PostgresServer,
}

impl Arena {
    async fn new(way: Way) -> Arc<Self> {
        // Many connections, so a server of its own.
        let server = PostgresServer::start(PostgresOptions::new());
        let (url, tables) = (server.url(), Tables::fresh());
        // A busy machine may keep a client that speaks in eight round trips from its turn for long.
        let builder = tables.at(&url).pool_size(32).lock_timeout(PATIENCE);
        let backend = match way {
            Way::OneStatement => builder.connect().await.unwrap(),
            Way::Transaction => {
                let mut config = deadpool_postgres::Config::new();
                config.url = Some(url.clone());
                config.pool = Some(deadpool_postgres::PoolConfig::new(32));
                let runtime = Some(deadpool_postgres::Runtime::Tokio1);
                let pool = config.create_pool(runtime, tokio_postgres::NoTls).unwrap();
                tables.builder().lock_timeout(PATIENCE).connect_with_pool(pool).await.unwrap()
            }
        };
        let mut literal = Vec::new();
        for _ in 0..KEYS_AT_ONCE {
            literal.push([Mutex::new(sql(&url).await), Mutex::new(sql(&url).await)]);
        }
        Arc::new(Self { tables, backend, literal, tally: Tally::default(), _server: server })
    }

    async fn extend(&self, who: Who, lane: usize, owner: &LockId) -> bool {
        match who {
            Who::Ours => self.backend.extend(owner, ttl(90_000)).await.unwrap().is_extended(),
            _ => literal::extend(&mut *self.literal[lane][0].lock().await, &self.tables, owner.as_str(), 10_000).await,
        }
    }

    async fn acquire(&self, who: Who, lane: usize, key: &str) -> bool {
        let id = LockId::random();
        let client = &self.literal[lane][1];
        match who {
            Who::Ours => try_acquire(&self.backend, key, 10_000).await.is_some(),
            Who::Broken => {
                literal::acquire_without_row_lock(&mut *client.lock().await, &self.tables, key, id.as_str(), 10_000)
                    .await
            }
            _ => literal::original_acquire(&mut *client.lock().await, &self.tables, key, id.as_str(), 10_000).await,
        }
    }

    /// One key, one race.
    async fn trial(self: Arc<Self>, extender: Who, acquirer: Who, lane: usize, round: usize) {
        let key = format!("k{lane}:{round}");
        let (owner, lease) = try_acquire(&self.backend, &key, 20).await.unwrap();
        let end = lease.expires_at.as_millis() + 1000;
        // The extend starts in the last two milliseconds, the acquire in the first one after: aimed, not forced.
        let early = i64::try_from((lane + round) % 3).unwrap();
        let (old_won, new_won) = tokio::join!(
            async {
                sleep_until(end - early).await;
                self.extend(extender, lane, &owner).await
            },
            async {
                sleep_until(end).await;
                self.acquire(acquirer, lane, &key).await
            }
        );
        self.tally.extended.fetch_add(u32::from(old_won), Ordering::Relaxed);
        self.tally.acquired.fetch_add(u32::from(new_won), Ordering::Relaxed);
        self.tally.both.fetch_add(u32::from(old_won && new_won), Ordering::Relaxed);
    }
}

/// The server is on this machine, so its clock is ours.
async fn sleep_until(millis: i64) {
    loop {
        let left = Timestamp::from_millis(millis).since(SystemClock.wall());
        if left.is_zero() {
            return;
        }
        // tokio's timer counts whole milliseconds; the last one is spent yielding.
        if left > Duration::from_millis(2) {
            tokio::time::sleep(left / 2).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
}

async fn race(way: Way, extender: Who, acquirer: Who, trials: usize) -> Arc<Arena> {
    let arena = Arena::new(way).await;
    for round in 0..trials / KEYS_AT_ONCE {
        let mut running = tokio::task::JoinSet::new();
        for lane in 0..KEYS_AT_ONCE {
            running.spawn(arena.clone().trial(extender, acquirer, lane, round));
        }
        while let Some(done) = running.join_next().await {
            done.unwrap();
        }
    }
    println!("{trials} trials: {:?}", arena.tally);
    arena
}

fn assert_never_both(arena: &Arc<Arena>) {
    let tally = &arena.tally;
    assert_eq!(tally.both.load(Ordering::Relaxed), 0, "{tally:?}");
    // Otherwise the trials did not reach the boundary.
    assert!(tally.extended.load(Ordering::Relaxed) > 0 && tally.acquired.load(Ordering::Relaxed) > 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extend_and_an_acquire_never_both_succeed_in_1000_trials() {
    assert_never_both(&race(Way::OneStatement, Who::Ours, Who::Ours, 1000).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extend_and_an_acquire_in_transactions_never_both_succeed_in_500_trials() {
    assert_never_both(&race(Way::Transaction, Who::Ours, Who::Ours, 500).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_and_a_literal_extend_never_both_succeed_in_1000_trials() {
    assert_never_both(&race(Way::OneStatement, Who::Literal, Who::Ours, 1000).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extend_and_the_originals_acquire_never_both_succeed_in_500_trials() {
    assert_never_both(&race(Way::OneStatement, Who::Ours, Who::Original, 500).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_row_lock_both_succeed_so_the_trials_can_fail() {
    let mut both = 0;
    for _ in 0..4 {
        both += race(Way::OneStatement, Who::Literal, Who::Broken, 500).await.tally.both.load(Ordering::Relaxed);
        if both > 0 {
            break;
        }
    }
    assert!(both > 0, "the broken twin was never caught, so the other tests prove nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_counts_from_the_begin_of_its_transaction_is_caught() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    drop(tables.at(&url).connect().await.unwrap());
    let (own, wrong) = (literal::acquire_statement(&tables), "now()");
    let by_the_begin = own.replace("clock_timestamp()", wrong);
    let mut left = Vec::new();
    for (key, statement) in [("own", own), ("wrong", by_the_begin)] {
        let mut blocker = sql(&url).await;
        let tx = blocker.transaction().await.unwrap();
        tx.execute("SELECT pg_advisory_xact_lock(hashtext($1))", &[&key]).await.unwrap();
        let mut client = sql(&url).await;
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let waiter = tokio::spawn(async move {
            let id = LockId::random();
            literal::acquire_by(&mut client, &statement, key, id.as_str(), 60_000).await.expect("nobody holds it")
        });
        let peek = sql(&url).await;
        let waits = async || {
            let sql = "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted";
            peek.query_one(sql, &[&pid]).await.unwrap().get::<_, i64>(0) > 0
        };
        assert!(eventually(PATIENCE, waits).await, "the acquire does not wait for the advisory lock");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let freed = SystemClock.wall();
        tx.rollback().await.unwrap();
        left.push(Timestamp::from_millis(waiter.await.unwrap()).since(freed));
    }
    let minute = Duration::from_secs(60);
    assert!(left[0] >= minute, "this crate's statement counts from the wait's end: {left:?}");
    assert!(left[1] < minute, "the check of whole leases cannot fail: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_granted_after_a_long_wait_for_the_key_is_whole() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let builder = tables.at(&url).lock_timeout(Duration::from_secs(10)).timeout(Duration::from_secs(20));
    let backend = builder.connect().await.unwrap();
    // Somebody keeps the key's advisory lock for three seconds, and then the row of a dead lock for one more.
    try_acquire(&backend, "k", 1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut blocker = sql(&url).await;
    let tx = blocker.transaction().await.unwrap();
    tx.execute("SELECT pg_advisory_xact_lock(hashtext('k'))", &[]).await.unwrap();

    let waiter = tokio::spawn({
        let backend = backend.clone();
        async move { try_acquire(&backend, "k", 60_000).await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let row = format!("SELECT 1 FROM {} WHERE key = 'k' FOR UPDATE", tables.locks);
    let mut other = sql(&url).await;
    let row_lock = other.transaction().await.unwrap();
    row_lock.execute(&row, &[]).await.unwrap();
    tx.rollback().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiter.is_finished(), "the acquire does not wait for who is at its key");
    row_lock.rollback().await.unwrap();

    let (_, lease) = waiter.await.unwrap().expect("nobody holds it");
    let left = lease.expires_at.since(SystemClock.wall());
    assert!(left > Duration::from_millis(59_500) && left <= Duration::from_secs(60), "{left:?} of a minute are left");
    assert!(backend.is_locked(&support::key("k")).await.unwrap());
}
