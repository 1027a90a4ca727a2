//! What if somebody else is at the key while an acquire is one statement?
//!
//! Its snapshot is older than the key's advisory lock, so what happened in between is found only by the writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use syncguard_core::{AcquireOutcome, AcquireRequest, LockBackend, LockId};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{PostgresOptions, PostgresServer, postgres_url};

use crate::support::{PATIENCE, Tables, eventually, key, sql, try_acquire, ttl};

const CLIENTS: u64 = 8;
const GRANTS_EACH: u64 = 25;

/// Takes and gives back one lock until it has had its share, and writes its fences down.
async fn take_turns(backend: PostgresBackend, held: Arc<AtomicBool>) -> Vec<u64> {
    let mut fences = Vec::new();
    while u64::try_from(fences.len()).unwrap() < GRANTS_EACH {
        let Some((id, lease)) = try_acquire(&backend, "k", 60_000).await else {
            tokio::task::yield_now().await;
            continue;
        };
        assert!(!held.swap(true, Ordering::SeqCst), "two holders at once");
        fences.push(lease.fence.get());
        held.store(false, Ordering::SeqCst);
        assert!(backend.release(&id).await.unwrap().is_released());
    }
    fences
}

/// Keeps whoever takes a lock at its key for a moment, so that the others meet it there.
async fn dawdle(owner: &tokio_postgres::Client, locks: &str) {
    let statements = format!(
        "CREATE FUNCTION dawdle_{locks}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep(0.005);
             RETURN NULL;
         END $$;
         CREATE TRIGGER dawdle AFTER INSERT OR UPDATE ON {locks} FOR EACH ROW EXECUTE FUNCTION dawdle_{locks}()"
    );
    owner.batch_execute(&statements).await.unwrap();
}

/// Each client has its own connections and its own queue for a key, as processes have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_meet_at_one_key_leave_no_gap_and_no_second_holder() {
    let server = PostgresServer::start(PostgresOptions::new());
    let (tables, held) = (Tables::fresh(), Arc::new(AtomicBool::new(false)));
    let connect = || tables.at(&server.url()).pool_size(2).lock_timeout(PATIENCE).connect();
    connect().await.unwrap();
    dawdle(&sql(&server.url()).await, &tables.locks).await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let backend = connect().await.unwrap();
        running.spawn(take_turns(backend, held.clone()));
    }
    let mut fences: Vec<u64> = running.join_all().await.into_iter().flatten().collect();

    fences.sort_unstable();
    let all: Vec<u64> = (1..=CLIENTS * GRANTS_EACH).collect();
    assert_eq!(fences, all, "a fence was given twice, or was lost to a lock that nobody got");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_somebody_overtook_takes_back_its_count() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).lock_timeout(PATIENCE).connect().await.unwrap();
    let (dead, _) = try_acquire(&backend, "k", 1).await.unwrap();
    let watcher = sql(&url).await;
    let age = format!("UPDATE {} SET expires_at_ms = expires_at_ms - 60000", tables.locks);
    watcher.batch_execute(&age).await.unwrap();
    // Somebody who knows nothing of the advisory lock puts a live lock in the place of the dead one, which the acquire
    // has seen and waits for.
    let mut other = sql(&url).await;
    let overtaking = other.transaction().await.unwrap();
    let (locks, fresh) = (&tables.locks, LockId::random());
    overtaking.batch_execute(&format!("DELETE FROM {locks} WHERE key = 'k'")).await.unwrap();
    let waiter = tokio::spawn({
        let backend = backend.clone();
        async move {
            let (key, id) = (key("k"), LockId::random());
            backend.acquire(AcquireRequest::new(&key, &id, ttl(60_000))).await.unwrap()
        }
    });
    let waits = async || {
        let waiting = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE wait_event_type = 'Lock' AND query LIKE '%\"{locks}\"%' AND query LIKE '%pg_try_advisory_xact_lock%'"
        );
        watcher.query_one(&waiting, &[]).await.unwrap().get::<_, i64>(0) > 0
    };
    assert!(eventually(PATIENCE, waits).await, "the acquire does not wait for the row of the dead lock");
    let insert = format!(
        "INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
         SELECT 'k', $1, now_ms + 60000, now_ms, '000000000000001', 'k'
         FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) AS clock"
    );
    overtaking.execute(&insert, &[&fresh.as_str()]).await.unwrap();
    overtaking.commit().await.unwrap();

    let AcquireOutcome::Contended(contention) = waiter.await.unwrap() else { panic!("it is held") };
    assert!(contention.free_in.is_some(), "the second look tells how long it is held");
    let counter = format!("SELECT fence FROM {}", tables.fences);
    assert_eq!(watcher.query_one(&counter, &[]).await.unwrap().get::<_, i64>(0), 1, "nobody got the second fence");
    assert!(!backend.release(&dead).await.unwrap().is_released());
    assert!(backend.release(&fresh).await.unwrap().is_released());
}
