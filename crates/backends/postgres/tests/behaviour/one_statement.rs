//! What if somebody else is at the key while an acquire is one statement?
//!
//! Its snapshot is older than the key's advisory lock, so what happened in between is found only by the writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use syncguard_core::LockBackend;
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{PostgresOptions, PostgresServer};

use crate::support::{PATIENCE, Tables, sql, try_acquire};

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
