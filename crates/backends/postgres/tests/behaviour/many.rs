//! What if many locks are taken and freed at once?
//!
//! With a small pool they go together in one statement, which may fail, wait or be left for none of them because of another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockId, Result};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::{Fault, FaultProxy, PostgresOptions, PostgresServer, postgres_url};
use tokio::task::{JoinHandle, JoinSet};
use tokio_postgres::Client;

use crate::support::{PATIENCE, Tables, eventually, key, sql, try_acquire, ttl};

const HOUR: i64 = 3_600_000;
const MANY: usize = 40;

fn acquire(backend: &PostgresBackend, name: &str, id: &LockId) -> JoinHandle<Result<AcquireOutcome>> {
    let (backend, key, id) = (backend.clone(), key(name), id.clone());
    tokio::spawn(async move { backend.acquire(AcquireRequest::new(&key, &id, ttl(HOUR))).await })
}

/// Asks for all of them in one breath; the answers in their order.
async fn acquire_all(backend: &PostgresBackend, names: &[String], ids: &[LockId]) -> Vec<Result<AcquireOutcome>> {
    let asking: Vec<_> = names.iter().zip(ids).map(|(name, id)| acquire(backend, name, id)).collect();
    let mut answers = Vec::new();
    for asked in asking {
        answers.push(asked.await.unwrap());
    }
    answers
}

fn names(number: usize) -> Vec<String> {
    (0..number).map(|number| format!("k{number}")).collect()
}

fn ids(number: usize) -> Vec<LockId> {
    (0..number).map(|_| LockId::random()).collect()
}

fn fence(answer: &Result<AcquireOutcome>) -> Option<u64> {
    match answer {
        Ok(AcquireOutcome::Acquired(lease)) => Some(lease.fence.get()),
        Ok(AcquireOutcome::Contended(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// How many of the locks were stored by a transaction that stored others too.
async fn stored_together(watcher: &Client, tables: &Tables) -> i64 {
    let question = format!(
        "SELECT COALESCE(sum(number), 0)::bigint
         FROM (SELECT count(*) AS number FROM {} GROUP BY xmin::text) AS transaction WHERE number > 1",
        tables.locks
    );
    watcher.query_one(&question, &[]).await.unwrap().get(0)
}

async fn age(watcher: &Client, tables: &Tables, name: &str) {
    let age = format!("UPDATE {} SET expires_at_ms = expires_at_ms - 2 * {HOUR} WHERE key = $1", tables.locks);
    assert_eq!(watcher.execute(&age, &[&name]).await.unwrap(), 1);
}

#[tokio::test]
async fn many_go_together_and_each_gets_its_own_answer() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(2).connect().await.unwrap();
    let watcher = sql(&url).await;
    let (names, ids) = (names(MANY), ids(MANY));
    // One is held by somebody else, one by the id that asks again, and one died.
    try_acquire(&backend, "k20", HOUR).await.unwrap();
    assert_eq!(fence(&acquire(&backend, "k21", &ids[21]).await.unwrap()), Some(1));
    try_acquire(&backend, "k22", HOUR).await.unwrap();
    age(&watcher, &tables, "k22").await;

    let answers = acquire_all(&backend, &names, &ids).await;
    for (number, answer) in answers.iter().enumerate() {
        let expected = match number {
            20 => None,
            22 => Some(2),
            _ => Some(1),
        };
        assert_eq!(fence(answer), expected, "k{number}");
    }
    let Ok(AcquireOutcome::Contended(contention)) = &answers[20] else { panic!("k20 is held") };
    assert!(contention.free_in.is_some());
    assert!(stored_together(&watcher, &tables).await > 1, "they went one by one");
    for (name, id) in names.iter().zip(&ids).filter(|(name, _)| *name != "k20") {
        let info = backend.lookup(syncguard_core::Lookup::Key(&key(name))).await.unwrap().unwrap();
        assert_eq!(info.reveal().lock_id, id, "{name}");
    }
}

#[tokio::test]
async fn many_are_freed_together_and_each_once() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).connect().await.unwrap();
    let watcher = sql(&url).await;
    let (names, ids) = (names(MANY), ids(MANY));
    assert!(acquire_all(&backend, &names, &ids).await.iter().all(|answer| fence(answer) == Some(1)));
    age(&watcher, &tables, "k5").await;
    // Who frees together leaves its number in one row for all.
    let count = format!(
        "CREATE TABLE count_{locks} (number bigint);
         CREATE FUNCTION count_{locks}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
             INSERT INTO count_{locks} SELECT count(*) FROM gone; RETURN NULL;
         END $$;
         CREATE TRIGGER count AFTER DELETE ON {locks} REFERENCING OLD TABLE AS gone
             FOR EACH STATEMENT EXECUTE FUNCTION count_{locks}()",
        locks = tables.locks
    );
    watcher.batch_execute(&count).await.unwrap();
    let mut asking = Vec::new();
    // Every id twice, and one that nobody has.
    let unknown = LockId::random();
    for id in ids.iter().chain(&ids).chain([&unknown]) {
        let (backend, id) = (backend.clone(), id.clone());
        asking.push(tokio::spawn(async move { (backend.release(&id).await.unwrap().is_released(), id) }));
    }
    let mut released: HashMap<LockId, usize> = HashMap::new();
    for asked in asking {
        let (was_released, id) = asked.await.unwrap();
        *released.entry(id).or_default() += usize::from(was_released);
    }
    assert_eq!(released[&unknown], 0);
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(released[id], usize::from(number != 5), "k{number}");
    }
    let most = format!("SELECT max(number) FROM count_{}", tables.locks);
    assert!(watcher.query_one(&most, &[]).await.unwrap().get::<_, i64>(0) > 1, "they went one by one");
}

#[tokio::test]
async fn a_release_of_many_wakes_who_waits_for_one_of_them() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).connect().await.unwrap();
    let waiting = tables.at(&url).connect().await.unwrap();
    let (names, ids) = (names(MANY), ids(MANY));
    assert!(acquire_all(&backend, &names, &ids).await.iter().all(|answer| fence(answer) == Some(1)));
    let hint = waiting.subscribe(&key("k30")).await;
    let releasing: Vec<_> = ids
        .iter()
        .map(|id| {
            let (backend, id) = (backend.clone(), id.clone());
            tokio::spawn(async move { backend.release(&id).await.unwrap().is_released() })
        })
        .collect();
    for released in releasing {
        assert!(released.await.unwrap());
    }
    assert!(tokio::time::timeout(PATIENCE, hint.woken()).await.is_ok(), "nobody told it");
}

#[tokio::test]
async fn who_meets_somebody_at_its_key_keeps_nobody_else_waiting() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(4).lock_timeout(PATIENCE).connect().await.unwrap();
    let watcher = sql(&url).await;
    try_acquire(&backend, "k30", HOUR).await.unwrap();
    age(&watcher, &tables, "k30").await;
    // Somebody has the advisory lock of one key, and the row of another that is dead.
    let mut other = sql(&url).await;
    let stuck = other.transaction().await.unwrap();
    stuck.batch_execute("SELECT pg_advisory_xact_lock(hashtext('k10'))").await.unwrap();
    stuck.batch_execute(&format!("SELECT FROM {} WHERE key = 'k30' FOR UPDATE", tables.locks)).await.unwrap();

    let (names, ids) = (names(MANY), ids(MANY));
    let mut asking: Vec<_> = names.iter().zip(&ids).map(|(name, id)| Some(acquire(&backend, name, id))).collect();
    for number in (0..MANY).filter(|number| ![10, 30].contains(number)) {
        let answer = asking[number].take().unwrap().await.unwrap();
        assert_eq!(fence(&answer), Some(1), "k{number}");
    }
    assert!(!asking[10].as_ref().unwrap().is_finished() && !asking[30].as_ref().unwrap().is_finished());
    stuck.rollback().await.unwrap();
    assert_eq!(fence(&asking[10].take().unwrap().await.unwrap()), Some(1));
    assert_eq!(fence(&asking[30].take().unwrap().await.unwrap()), Some(2));
}

#[tokio::test]
async fn a_counter_at_its_end_fails_its_own_lock_only() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(2).connect().await.unwrap();
    let watcher = sql(&url).await;
    let spoil = format!("INSERT INTO {} (fence_key, fence) VALUES ('fence:k7', 900000000000000)", tables.fences);
    watcher.batch_execute(&spoil).await.unwrap();
    let (names, ids) = (names(MANY), ids(MANY));
    for (number, answer) in acquire_all(&backend, &names, &ids).await.iter().enumerate() {
        match answer {
            Err(error) if number == 7 => assert_eq!(error.code(), ErrorCode::Internal),
            answer => assert_eq!(fence(answer), Some(1), "k{number}"),
        }
    }
    assert!(!backend.is_locked(&key("k7")).await.unwrap());
}

/// Makes whoever takes a lock take a moment for each.
async fn dawdle(watcher: &Client, locks: &str, seconds: f64) {
    let statements = format!(
        "CREATE FUNCTION dawdle_{locks}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_sleep({seconds});
             RETURN NULL;
         END $$;
         CREATE TRIGGER dawdle AFTER INSERT OR UPDATE ON {locks} FOR EACH ROW EXECUTE FUNCTION dawdle_{locks}()"
    );
    watcher.batch_execute(&statements).await.unwrap();
}

async fn many_are_under_way(watcher: &Client, locks: &str) -> bool {
    let question = format!(
        "SELECT count(*) FROM pg_stat_activity
         WHERE state = 'active' AND query LIKE '%\"{locks}\"%' AND query LIKE '%WITH ORDINALITY%' AND pid <> pg_backend_pid()"
    );
    watcher.query_one(&question, &[]).await.unwrap().get::<_, i64>(0) > 0
}

#[tokio::test]
async fn callers_that_leave_take_nobody_along() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).connect().await.unwrap();
    let watcher = sql(&url).await;
    dawdle(&watcher, &tables.locks, 0.02).await;
    let (names, ids) = (names(MANY), ids(MANY));
    let mut asking: Vec<_> = names.iter().zip(&ids).map(|(name, id)| acquire(&backend, name, id)).collect();
    let together = async || many_are_under_way(&watcher, &tables.locks).await;
    assert!(eventually(PATIENCE, together).await, "they do not go together");
    // Everybody but the last leaves, whoever asks for all of them too.
    let last = asking.pop().unwrap();
    asking.iter().for_each(JoinHandle::abort);
    assert_eq!(fence(&last.await.unwrap()), Some(1));
}

/// Who left may have given its lock id back, so a lock that is taken for it later would be nobody's.
#[tokio::test]
async fn nothing_is_taken_for_callers_that_left_before_it_was_asked() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).lock_timeout(PATIENCE).connect().await.unwrap();
    let watcher = sql(&url).await;
    // The only connection waits for the table, so nothing else can be asked.
    let mut other = sql(&url).await;
    let stuck = other.transaction().await.unwrap();
    stuck.batch_execute(&format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", tables.locks)).await.unwrap();
    let (names, ids) = (names(MANY), ids(MANY));
    let first = acquire(&backend, &names[0], &ids[0]);
    let waits = async || {
        let question = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1";
        watcher.query_one(question, &[&format!("%\"{}\"%", tables.locks)]).await.unwrap().get::<_, i64>(0) > 0
    };
    assert!(eventually(PATIENCE, waits).await, "nothing waits for the table");
    let asking: Vec<_> = names.iter().zip(&ids).skip(1).map(|(name, id)| acquire(&backend, name, id)).collect();
    // Long enough for the others to go on without it, up to the connection that they lack.
    tokio::time::sleep(Duration::from_millis(300)).await;
    asking.iter().for_each(JoinHandle::abort);
    stuck.rollback().await.unwrap();
    assert_eq!(fence(&first.await.unwrap()), Some(1));
    for asked in asking {
        assert!(asked.await.is_err_and(|error| error.is_cancelled()));
    }
    // Whatever was on its way has passed the only connection when this is answered.
    try_acquire(&backend, "last", HOUR).await.unwrap();
    let stored = format!("SELECT count(*) FROM {} WHERE key LIKE 'k%'", tables.locks);
    assert_eq!(watcher.query_one(&stored, &[]).await.unwrap().get::<_, i64>(0), 1, "a lock was taken for nobody");
}

#[tokio::test]
async fn a_reply_lost_to_many_is_ambiguous_for_each_and_their_ids_own_up() {
    let server = PostgresServer::start(PostgresOptions::new());
    let (proxy, tables) = (FaultProxy::start(server.port()), Tables::fresh());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", proxy.port());
    let backend = tables.at(&url).pool_size(1).connect().await.unwrap();
    let watcher = sql(&server.url()).await;
    let (names, ids) = (names(MANY), ids(MANY));
    // The statements are prepared, so that what is lost was asked.
    for _ in 0..2 {
        acquire_all(&backend, &names, &ids).await;
        for id in &ids {
            assert!(backend.release(id).await.unwrap().is_released());
        }
    }
    dawdle(&watcher, &tables.locks, 0.02).await;
    let asking: Vec<_> = names.iter().zip(&ids).map(|(name, id)| acquire(&backend, name, id)).collect();
    let together = async || many_are_under_way(&watcher, &tables.locks).await;
    assert!(eventually(PATIENCE, together).await, "they do not go together");
    proxy.set(Fault::CutAfter(0));
    let mut lost = 0;
    for asked in asking {
        match asked.await.unwrap() {
            Err(error) if error.is_ambiguous() => lost += 1,
            Err(error) => assert!(error.is_transient(), "{error}"),
            Ok(_) => {}
        }
    }
    assert!(lost > 1, "the reply was lost to one alone");
    proxy.set(Fault::Pass);
    for (name, id) in names.iter().zip(&ids) {
        let again = async || matches!(acquire(&backend, name, id).await.unwrap(), Ok(AcquireOutcome::Acquired(lease)) if lease.fence.get() == 3);
        assert!(eventually(PATIENCE, again).await, "{name} is not owned up to with its fence");
    }
}

const CLIENTS: usize = 5;
const KEYS: usize = 6;
const GRANTS: usize = 150;

/// Takes and gives back the locks of all keys at once, and writes down the fences of each.
async fn take_all(backend: PostgresBackend, held: Arc<Vec<AtomicBool>>) -> Vec<(usize, u64)> {
    let mut running = JoinSet::new();
    for number in 0..KEYS {
        let (backend, held) = (backend.clone(), held.clone());
        running.spawn(async move {
            let mut fences = Vec::new();
            while fences.len() < GRANTS / CLIENTS {
                let Some((id, lease)) = try_acquire(&backend, &format!("k{number}"), HOUR).await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                assert!(!held[number].swap(true, Ordering::SeqCst), "two holders at once");
                fences.push((number, lease.fence.get()));
                held[number].store(false, Ordering::SeqCst);
                assert!(backend.release(&id).await.unwrap().is_released());
            }
            fences
        });
    }
    running.join_all().await.into_iter().flatten().collect()
}

/// Each client has its own connections and its own queues, as processes have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_meet_at_many_keys_leave_no_gap_and_no_second_holder() {
    let server = PostgresServer::start(PostgresOptions::new());
    let tables = Tables::fresh();
    let held: Arc<Vec<AtomicBool>> = Arc::new((0..KEYS).map(|_| AtomicBool::new(false)).collect());
    let mut running = JoinSet::new();
    for _ in 0..CLIENTS {
        let backend = tables.at(&server.url()).pool_size(2).lock_timeout(PATIENCE).connect().await.unwrap();
        running.spawn(take_all(backend, held.clone()));
    }
    let mut fences: Vec<(usize, u64)> = running.join_all().await.into_iter().flatten().collect();
    fences.sort_unstable();
    let all = |number| (1..=u64::try_from(GRANTS).unwrap()).map(move |fence| (number, fence));
    let expected: Vec<(usize, u64)> = (0..KEYS).flat_map(all).collect();
    assert_eq!(fences, expected, "a fence was given twice, or was lost to a lock that nobody got");
}

/// What somebody stored after the snapshot is not seen by it, and must not be overwritten.
#[tokio::test]
async fn many_that_somebody_overtook_take_back_their_counts_and_come_again() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).lock_timeout(PATIENCE).connect().await.unwrap();
    let (watcher, mut other) = (sql(&url).await, sql(&url).await);
    let (names, ids) = (names(MANY), ids(MANY));
    // Whoever counts for one of the locks waits until somebody who knows nothing of its advisory lock has stored another.
    let overtaking = other.transaction().await.unwrap();
    let overtake = format!(
        "CREATE FUNCTION wait_{locks}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.fence_key = 'fence:k9' THEN PERFORM pg_advisory_xact_lock(77, hashtext('{locks}')); END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER wait BEFORE INSERT ON {fences} FOR EACH ROW EXECUTE FUNCTION wait_{locks}()",
        locks = tables.locks,
        fences = tables.fences
    );
    watcher.batch_execute(&overtake).await.unwrap();
    let hold = format!("SELECT pg_advisory_xact_lock(77, hashtext('{}'))", tables.locks);
    overtaking.batch_execute(&hold).await.unwrap();
    let asking: Vec<_> = names.iter().zip(&ids).map(|(name, id)| acquire(&backend, name, id)).collect();
    let waits = async || {
        let question = "SELECT count(*) FROM pg_stat_activity
                        WHERE wait_event_type = 'Lock' AND query LIKE $1 AND query LIKE '%WITH ORDINALITY%'";
        let like = format!("%\"{}\"%", tables.locks);
        watcher.query_one(question, &[&like]).await.unwrap().get::<_, i64>(0) > 0
    };
    assert!(eventually(PATIENCE, waits).await, "nobody counts for k9 together with others");
    let insert = format!(
        "INSERT INTO {} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
         SELECT 'k9', $1, now_ms + {HOUR}, now_ms, '000000000000001', 'k9'
         FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms) AS clock",
        tables.locks
    );
    let stranger = LockId::random();
    overtaking.execute(&insert, &[&stranger.as_str()]).await.unwrap();
    overtaking.commit().await.unwrap();
    for (number, asked) in asking.into_iter().enumerate() {
        let expected = (number != 9).then_some(1);
        assert_eq!(fence(&asked.await.unwrap()), expected, "k{number}");
    }
    let counters = format!("SELECT fence_key, fence FROM {}", tables.fences);
    let counters = watcher.query(&counters, &[]).await.unwrap();
    assert_eq!(counters.len(), MANY - 1, "a count was made for a lock that nobody got");
    assert!(counters.iter().all(|row| row.get::<_, i64>(1) == 1), "a count was made twice");
    assert!(backend.release(&stranger).await.unwrap().is_released());
}
