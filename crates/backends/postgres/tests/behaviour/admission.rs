//! Does an operation ever wait for somebody else's?
//!
//! For callers that do not come back, for keys that somebody keeps on the server, for a slower companion, for another
//! runtime.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockId, Result};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::postgres_url;
use tokio::time::{Instant, timeout};

use crate::support::{PATIENCE, Tables, key, sql, try_acquire, ttl};

const HOUR: i64 = 3_600_000;
/// Far below what a caller waits, far above what an answer takes.
const AT_ONCE: Duration = Duration::from_secs(3);

type Asking = Pin<Box<dyn Future<Output = Result<AcquireOutcome>> + Send>>;

/// An acquire that is polled so often, with a moment in between, and then left where it is.
async fn left_alone(backend: &PostgresBackend, name: &str, polls: usize) -> Asking {
    let (backend, name, id) = (backend.clone(), key(name), LockId::random());
    let mut asking: Asking = Box::pin(async move { backend.acquire(AcquireRequest::new(&name, &id, ttl(HOUR))).await });
    for _ in 0..polls {
        if poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx).is_ready())).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    asking
}

async fn pair(backend: &PostgresBackend, name: &str) {
    let (id, _) = try_acquire(backend, name, HOUR).await.expect("nobody holds it");
    assert!(backend.release(&id).await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_do_not_come_back_keep_nobody_from_any_key() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let connect = || tables.at(&url).pool_size(4).connect();
    let (backend, holder) = (connect().await.unwrap(), connect().await.unwrap());
    let (held, _) = try_acquire(&holder, "hot", HOUR).await.unwrap();
    let mut left = Vec::new();
    for number in 0..12 {
        left.push(left_alone(&backend, &format!("free{number}"), 1 + number % 3).await);
        left.push(left_alone(&backend, "hot", 1 + number % 3).await);
    }
    let asked = timeout(AT_ONCE, try_acquire(&backend, "hot", HOUR)).await;
    assert!(asked.expect("a held key waits for callers that left").is_none());
    assert!(holder.release(&held).await.unwrap().is_released());
    timeout(AT_ONCE, pair(&backend, "another")).await.expect("a free key waits for callers that left");
    timeout(AT_ONCE, pair(&backend, "hot")).await.expect("a released key waits for callers that left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_somebody_keeps_on_the_server_keep_nobody_from_others() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(4).lock_timeout(PATIENCE).connect().await.unwrap();
    let mut other = sql(&url).await;
    // The advisory lock, as acquire_in_tx leaves it; the row of a held lock; a counter.
    let stuck = other.transaction().await.unwrap();
    let keep = |number| format!("SELECT pg_advisory_xact_lock(hashtext('{}:{number}'))", tables.locks);
    for number in 0..40 {
        stuck.batch_execute(&keep(number)).await.unwrap();
    }
    let (held, _) = try_acquire(&backend, "row", HOUR).await.unwrap();
    stuck.batch_execute(&format!("SELECT FROM {} WHERE key = 'row' FOR UPDATE", tables.locks)).await.unwrap();
    let count = format!("INSERT INTO {} (fence_key, fence) VALUES ('fence:counter', 5)", tables.fences);
    sql(&url).await.batch_execute(&count).await.unwrap();
    let lock = format!("SELECT FROM {} WHERE fence_key = 'fence:counter' FOR UPDATE", tables.fences);
    stuck.batch_execute(&lock).await.unwrap();

    let names = (0..40).map(|number| format!("{}:{number}", tables.locks)).chain(["counter".to_owned()]);
    let waiting: Vec<_> = names
        .map(|name| {
            let backend = backend.clone();
            tokio::spawn(async move { try_acquire(&backend, &name, HOUR).await })
        })
        .collect();
    let extending = tokio::spawn({
        let (backend, held) = (backend.clone(), held.clone());
        async move { backend.extend(&held, ttl(HOUR)).await }
    });
    let started = Instant::now();
    for round in 0..30 {
        pair(&backend, &format!("other{round}")).await;
    }
    assert!(started.elapsed() < AT_ONCE, "thirty pairs took {:?}", started.elapsed());
    assert!(!extending.is_finished() && waiting.iter().all(|one| !one.is_finished()));
    stuck.rollback().await.unwrap();
    for one in waiting {
        assert!(one.await.unwrap().is_some());
    }
    assert!(extending.await.unwrap().unwrap().is_extended());
}

/// Whoever takes a lock with such a key takes that long.
async fn slow_down(url: &str, locks: &str, like: &str, seconds: f64) {
    let statements = format!(
        "CREATE FUNCTION slow_{locks}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.key LIKE '{like}' THEN PERFORM pg_sleep({seconds}); END IF; RETURN NULL;
         END $$;
         CREATE TRIGGER slow AFTER INSERT OR UPDATE ON {locks} FOR EACH ROW EXECUTE FUNCTION slow_{locks}()"
    );
    sql(url).await.batch_execute(&statements).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_waits_for_no_acquire() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(4).connect().await.unwrap();
    slow_down(&url, &tables.locks, "slow%", 4.0).await;
    let mut held = Vec::new();
    for number in 0..10 {
        held.push(try_acquire(&backend, &format!("held{number}"), HOUR).await.unwrap().0);
    }
    let slow: Vec<_> = (0..12)
        .map(|number| {
            let backend = backend.clone();
            tokio::spawn(async move { try_acquire(&backend, &format!("slow{number}"), HOUR).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    for id in &held {
        assert!(backend.extend(id, ttl(HOUR)).await.unwrap().is_extended());
        assert!(backend.release(id).await.unwrap().is_released());
    }
    assert!(started.elapsed() < AT_ONCE, "ten releases took {:?}", started.elapsed());
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}

/// On one thread both are in line before the only connection asks, so they go together.
#[tokio::test]
async fn each_leaves_a_batch_by_its_own_time_and_takes_nobody_along() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).pool_size(1).connect().await.unwrap();
    slow_down(&url, &tables.locks, "%", 0.8).await;
    let (short, long, ids) = (key("short"), key("long"), [LockId::random(), LockId::random()]);
    let (short, long) = tokio::join!(
        backend.acquire(AcquireRequest::new(&short, &ids[0], ttl(1000))),
        backend.acquire(AcquireRequest::new(&long, &ids[1], ttl(HOUR))),
    );
    let error = short.expect_err("its second is over");
    assert!(error.is_ambiguous() && error.code() == ErrorCode::NetworkTimeout, "{error:?}");
    assert!(matches!(long.unwrap(), AcquireOutcome::Acquired(_)));
}

#[test]
fn a_runtime_that_stops_keeps_nobody_on_another_waiting() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (stopped, running) = (runtime(), runtime());
    let backend = stopped.block_on(tables.at(&url).pool_size(2).connect()).unwrap();
    // Its operations are under way, and nobody runs it any more.
    let left = stopped.block_on(async {
        let mut left = Vec::new();
        for number in 0..20 {
            left.push(left_alone(&backend, &format!("k{number}"), 1).await);
        }
        left.push(left_alone(&backend, "k20", 1).await);
        left
    });
    running.block_on(async {
        for round in 0..10 {
            timeout(AT_ONCE, pair(&backend, &format!("mine{round}")))
                .await
                .expect("it waits for a runtime that stopped");
        }
    });
    drop((left, stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_changes_fails_nobody() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).lock_timeout(PATIENCE / 4).connect().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let working: Vec<_> = (0..6)
        .map(|task| {
            let (backend, stop) = (backend.clone(), stop.clone());
            tokio::spawn(async move {
                let (name, mut pairs) = (key(&format!("k{task}")), 0);
                while !stop.load(Ordering::Relaxed) {
                    let id = LockId::random();
                    let outcome = backend.acquire(AcquireRequest::new(&name, &id, ttl(HOUR))).await.unwrap();
                    assert!(matches!(outcome, AcquireOutcome::Acquired(_)));
                    assert!(backend.extend(&id, ttl(HOUR)).await.unwrap().is_extended());
                    assert!(backend.is_locked(&name).await.unwrap());
                    assert!(backend.release(&id).await.unwrap().is_released());
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    let owner = sql(&url).await;
    let (locks, fences) = (&tables.locks, &tables.fences);
    for change in [
        format!("ALTER TABLE {locks} ALTER fence TYPE varchar(30)"),
        format!("ALTER TABLE {locks} ALTER fence TYPE text"),
        format!("ALTER TABLE {locks} DROP COLUMN holder"),
        format!("ALTER TABLE {fences} DROP COLUMN key_debug"),
        format!("ALTER TABLE {locks} ADD COLUMN note text DEFAULT 'x'"),
    ] {
        tokio::time::sleep(Duration::from_millis(150)).await;
        owner.batch_execute(&change).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    stop.store(true, Ordering::Relaxed);
    for task in working {
        assert!(pin!(task).await.expect("no operation fails") > 0);
    }
}

/// Comes again with the same id while nobody knows.
async fn freed(backend: &PostgresBackend, id: &LockId) {
    while let Err(error) = backend.release(id).await {
        assert!(error.is_transient(), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_always_fails_and_connections_that_end_harm_no_other_key() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let app = format!("bad_{}", tables.locks);
    let backend = tables.at(&format!("{url}?application_name={app}")).pool_size(4).connect().await.unwrap();
    let watcher = sql(&url).await;
    let fail = format!(
        "CREATE FUNCTION bad_{locks}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.key = 'bad' THEN RAISE EXCEPTION 'no'; END IF; RETURN NULL;
         END $$;
         CREATE TRIGGER bad AFTER INSERT OR UPDATE ON {locks} FOR EACH ROW EXECUTE FUNCTION bad_{locks}()",
        locks = tables.locks
    );
    watcher.batch_execute(&fail).await.unwrap();
    let working: Vec<_> = (0..12)
        .map(|task| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let (name, mut last) = (format!("k{task}"), 0);
                for _ in 0..40 {
                    let (id, lease) = try_acquire(&backend, &name, HOUR).await.expect("nobody else wants it");
                    assert!(lease.fence.get() > last, "{name}: {} after {last}", lease.fence.get());
                    last = lease.fence.get();
                    freed(&backend, &id).await;
                }
            })
        })
        .collect();
    let mut rounds = 0;
    while working.iter().any(|task| !task.is_finished()) {
        let (bad, id) = (key("bad"), LockId::random());
        assert!(backend.acquire(AcquireRequest::new(&bad, &id, ttl(HOUR))).await.is_err());
        rounds += 1;
        if rounds % 20 == 0 && rounds <= 100 {
            let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
            watcher.query(kill, &[&app]).await.unwrap();
        }
    }
    for task in working {
        task.await.unwrap();
    }
    let left = format!("SELECT count(*) FROM {}", tables.locks);
    assert_eq!(watcher.query_one(&left, &[]).await.unwrap().get::<_, i64>(0), 0, "a lock was left to nobody");
}
