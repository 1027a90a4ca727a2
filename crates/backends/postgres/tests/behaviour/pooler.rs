//! What if a pooler loses the server between a commit and its answer?

use std::time::Duration;

use syncguard_core::retry::Jitter;
use syncguard_core::{AcquireOutcome, AcquireRequest, LockBackend, LockId, Locker};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{Fault, FaultProxy, PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer, trials};

use crate::support::{Tables, key, sql, ttl};

/// What the server says when, and only when, a commit is done: a message of kind C and 11 bytes with the command's
/// name.
const COMMIT_IS_DONE: Fault = Fault::LoseRepliesThrough(b"C\0\0\0\x0bCOMMIT\0");

/// The backend, a pooler, a proxy, the server: in this order.
struct Chain {
    backend: PostgresBackend,
    tables: Tables,
    proxy: FaultProxy,
    _pooler: PgBouncer,
    server: PostgresServer,
}

impl Chain {
    async fn start() -> Self {
        let server = PostgresServer::start(PostgresOptions::new());
        let proxy = FaultProxy::start(server.port());
        // One connection to the server, without encryption and without questions of the pooler's own on it.
        let options = PgBouncerOptions::new()
            .config("default_pool_size = 1")
            .config("server_tls_sslmode = disable")
            .config("server_check_query =");
        let pooler = PgBouncer::try_start_at(&server, proxy.port(), &options).unwrap();
        let tables = Tables::fresh();
        let patience = Duration::from_secs(60);
        let builder = tables.at(&pooler.url()).pool_size(1).timeout(patience).connect_timeout(patience);
        let backend = builder.connect().await.unwrap();
        Self { backend, tables, proxy, _pooler: pooler, server }
    }

    /// Loses the answer to the next commit. Before that a connection is made, whose own questions must be answered.
    async fn lose_next_commit(&self) {
        assert!(!self.backend.is_locked(&key("nobody's")).await.unwrap());
        self.proxy.set(COMMIT_IS_DONE);
    }

    /// The stored lease of a key in milliseconds from now, by the server itself.
    async fn stored_lease(&self, name: &str) -> Option<i64> {
        let statement = format!(
            "SELECT expires_at_ms - floor(date_part('epoch', clock_timestamp()) * 1000)::bigint FROM {} WHERE key = $1",
            self.tables.locks
        );
        sql(&self.server.url()).await.query_opt(&statement, &[&name]).await.unwrap().map(|row| row.get(0))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_the_pooler_lost_is_ambiguous_and_the_same_id_owns_up() {
    let chain = Chain::start().await;
    let (backend, proxy) = (&chain.backend, &chain.proxy);
    for round in 0..trials(3) {
        let name = format!("k{round}");
        let (key, id) = (key(&name), LockId::random());
        let request = AcquireRequest::new(&key, &id, ttl(600_000));
        let fired = proxy.counts().faults;

        chain.lose_next_commit().await;
        let error = backend.acquire(request).await.unwrap_err();
        assert_eq!(proxy.counts().faults, fired + 1, "{error:?}");
        assert!(chain.stored_lease(&name).await.is_some(), "the lock was committed before the answer was lost");
        assert!(error.is_ambiguous() && error.is_transient(), "{error:?}");
        let AcquireOutcome::Acquired(lease) = backend.acquire(request).await.unwrap() else { panic!("not ours") };
        assert_eq!(lease.fence.get(), 1, "owning up consumes no fence");

        chain.lose_next_commit().await;
        let error = backend.extend(&id, ttl(700_000)).await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_transient(), "{error:?}");
        assert!(chain.stored_lease(&name).await.is_some_and(|left| left > 600_000), "extended all the same");

        chain.lose_next_commit().await;
        let error = backend.release(&id).await.unwrap_err();
        assert!(error.is_ambiguous() && error.is_transient(), "{error:?}");
        assert_eq!(chain.stored_lease(&name).await, None, "released all the same");
        assert_eq!(proxy.counts().faults, fired + 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_believes_no_longer_than_the_lock_whose_answer_the_pooler_lost() {
    let chain = Chain::start().await;
    let locker = Locker::new(chain.backend.clone());
    let trials = trials(2);
    let mut believers = Vec::new();
    for trial in 0..trials {
        let name = format!("k{trial}");
        chain.lose_next_commit().await;

        // The pause before the second attempt is longer than the margin by which a guard stops early.
        let request = locker.lock(name.as_str()).ttl(Duration::from_secs(30)).jitter(Jitter::None);
        let request = request.retry_delay(Duration::from_secs(1)).timeout(Duration::from_secs(25));
        let guard = request.acquire().await.unwrap();

        assert_eq!(chain.proxy.counts().faults, u64::from(trial) + 1, "the first answer was lost");
        // Asked first: however long the question takes, the guard's own count goes on meanwhile.
        let stored = chain.stored_lease(&name).await.unwrap();
        let believed = i64::try_from(guard.remaining().as_millis()).unwrap();
        if believed > stored {
            believers.push((believed, stored));
        }
        assert!(guard.release().await.unwrap().is_released());
    }
    println!("{} of {trials} trials with two believers", believers.len());
    assert!(believers.is_empty(), "believed for longer than stored, in milliseconds: {believers:?}");
}
