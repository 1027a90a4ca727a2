//! Do tasks and backends of one process share a file well?

use std::collections::HashSet;
use std::time::Duration;

use rusqlite::config::DbConfig;

use super::support::{Scene, acquire, connect, holder, key, runtime, ttl};
use syncguard_core::{
    AbsentReason, AcquireOutcome, ExtendOutcome, LockBackend, LockId, Locker, Lookup, ReleaseOutcome,
};
use syncguard_sqlite::SqliteBackend;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixty_four_tasks_exactly_one_gets_the_lock() {
    let scene = Scene::new();
    let backend = scene.open();

    for round in 0..20 {
        let key = key(&format!("k{}", round % 3));
        let attempts: Vec<_> = (0..64)
            .map(|_| {
                let (backend, key) = (backend.clone(), key.clone());
                tokio::spawn(async move { acquire(&backend, &key, &LockId::random()).await })
            })
            .collect();
        let mut winners = Vec::new();
        for attempt in attempts {
            winners.extend(holder(attempt.await.unwrap()));
        }

        assert_eq!(winners.len(), 1, "round {round}");
        assert!(backend.release(&winners[0].lock_id).await.unwrap().is_released());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_on_their_own_keys_all_get_their_own_fences() {
    let scene = Scene::new();
    let backend = scene.open();

    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let key = key(&format!("own:{task}"));
                for expected in 1..=20 {
                    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
                    assert_eq!(held.lease.fence.get(), expected);
                    assert!(backend.release(&held.lock_id).await.unwrap().is_released());
                }
            })
        })
        .collect();

    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn two_backends_of_one_file_see_the_same_locks() {
    let scene = Scene::new();
    let (first, second) = (scene.open(), scene.open());
    let key = key("k");
    let held = holder(acquire(&first, &key, &LockId::random()).await).unwrap();

    let (_, contended) = acquire(&second, &key, &LockId::random()).await;
    assert!(matches!(contended, AcquireOutcome::Contended(contention) if contention.free_in.is_some()));
    assert!(second.is_locked(&key).await.unwrap());
    let info = second.lookup(Lookup::LockId(&held.lock_id)).await.unwrap().unwrap();
    assert_eq!(info.fence, held.lease.fence);
    assert!(second.release(&held.lock_id).await.unwrap().is_released());
    assert!(!first.is_locked(&key).await.unwrap());
}

#[tokio::test]
async fn an_acquire_whose_caller_left_before_its_turn_takes_nothing() {
    let scene = Scene::new();
    let backend = scene.open();
    let (key, id) = (key("k"), LockId::random());
    let turn = scene.block_writers();

    let left = tokio::time::timeout(Duration::from_millis(50), acquire(&backend, &key, &id)).await;
    assert!(left.is_err(), "nobody can write now");
    drop(turn);

    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    assert_eq!(held.lease.fence.get(), 1, "the one who left consumed no fence");
}

#[tokio::test]
async fn a_release_whose_caller_left_is_done_all_the_same() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    let turn = scene.block_writers();

    let left = tokio::time::timeout(Duration::from_millis(50), backend.release(&held.lock_id)).await;
    assert!(left.is_err());
    drop(turn);

    assert!(holder(acquire(&backend, &key, &LockId::random()).await).is_some());
}

#[tokio::test]
async fn a_queue_that_does_not_move_is_a_timeout_that_certainly_took_nothing() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    let _turn = scene.block_writers();

    let lock_id = LockId::random();
    let request = syncguard_core::AcquireRequest::new(&key, &lock_id, ttl());
    let error = backend.acquire(request).await.unwrap_err();

    assert_eq!(error.code(), syncguard_core::ErrorCode::NetworkTimeout);
    assert!(!error.is_ambiguous());
    assert!(!backend.is_locked(&key).await.unwrap(), "reading does not stand in the queue");
}

#[tokio::test]
async fn who_asks_for_a_held_lock_hears_so_without_standing_in_the_queue() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    let _turn = scene.block_writers();

    let (_, outcome) = acquire(&backend, &key, &LockId::random()).await;

    assert!(matches!(outcome, AcquireOutcome::Contended(_)));
}

#[tokio::test]
async fn a_waiter_of_the_same_process_is_woken_by_a_release() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    let hint = backend.subscribe(&key).await;

    backend.release(&held.lock_id).await.unwrap();

    tokio::time::timeout(Duration::from_secs(5), hint.woken()).await.unwrap();
}

#[tokio::test]
async fn fences_go_on_after_the_file_was_closed_and_opened_again() {
    let scene = Scene::new();
    let key = key("k");
    let mut seen = HashSet::new();
    for _ in 0..5 {
        let backend = scene.open();
        let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
        assert!(seen.insert(held.lease.fence));
        backend.release(&held.lock_id).await.unwrap();
    }
    assert_eq!(seen.iter().max().unwrap().get(), 5);
}

#[tokio::test(start_paused = true)]
async fn locks_can_be_waited_for_while_a_test_has_paused_time() {
    let scene = Scene::new();
    let locker = Locker::new(scene.open());
    for _ in 0..50 {
        let first = locker.lock("k").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let locker = locker.clone();
            async move { locker.lock("k").timeout(Duration::from_secs(60)).acquire().await.unwrap().release().await }
        });
        tokio::task::yield_now().await;
        assert!(first.release().await.unwrap().is_released());
        assert!(waiting.await.unwrap().unwrap().is_released());
    }
}

#[tokio::test]
async fn a_look_does_not_wait_for_the_removal_of_a_dead_lock() {
    let scene = Scene::new();
    let backend = connect(SqliteBackend::builder(scene.path()).cleanup_in_is_locked(true)).unwrap();
    for name in ["one", "two"] {
        put_dead(&scene, name);
    }
    // While nobody can write, a look that waited for its removal would time out or hang.
    let turn = scene.block_writers();
    for name in ["one", "two", "one"] {
        assert!(!backend.is_locked(&key(name)).await.unwrap());
    }
    drop(turn);

    // The writer does things in order: by the time of this answer, what was asked before it is done.
    holder(acquire(&backend, &key("other"), &LockId::random()).await).unwrap();
    let left: i64 = scene
        .sql()
        .query_row("SELECT count(*) FROM syncguard_locks WHERE key <> 'other'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(left, 1, "one removal at a time");
    assert!(!backend.is_locked(&key("two")).await.unwrap());
    holder(acquire(&backend, &key("another"), &LockId::random()).await).unwrap();
    let sql = "SELECT count(*) FROM syncguard_locks WHERE key IN ('one', 'two')";
    let left: i64 = scene.sql().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

fn put_dead(scene: &Scene, name: &str) {
    scene.put(name, &LockId::random(), 1000);
}

/// Lets one lock be found by another lock's id, as a damaged index does.
fn damage_index(scene: &Scene, stored: &LockId, row: &LockId) {
    const INDEX: &str = "idx_syncguard_locks_lock_id";
    let db = scene.sql();
    let entry: (String, String, String, i64, String) = db
        .query_row("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE name = ?1", [INDEX], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .unwrap();
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false).unwrap();
    db.execute_batch("PRAGMA writable_schema = ON").unwrap();
    db.execute("DELETE FROM sqlite_schema WHERE name = ?1", [INDEX]).unwrap();
    db.execute_batch("PRAGMA writable_schema = RESET").unwrap();
    // Without its index the table forgets to keep it up to date.
    db.execute("UPDATE syncguard_locks SET lock_id = ?1 WHERE lock_id = ?2", [row.as_str(), stored.as_str()]).unwrap();
    db.execute_batch("PRAGMA writable_schema = ON").unwrap();
    db.execute("INSERT INTO sqlite_schema VALUES (?1, ?2, ?3, ?4, ?5)", entry).unwrap();
    db.execute_batch("PRAGMA writable_schema = RESET").unwrap();
}

#[tokio::test]
async fn a_damaged_index_frees_and_extends_nobodys_lock() {
    let scene = Scene::new();
    let (key, stored, row) = (key("k"), LockId::random(), LockId::random());
    let backend = scene.open();
    holder(acquire(&backend, &key, &stored).await).unwrap();
    drop(backend);
    damage_index(&scene, &stored, &row);
    let backend = scene.open();

    let released = backend.release(&stored).await;
    let extended = backend.extend(&stored, ttl()).await;

    assert!(!matches!(released, Ok(outcome) if outcome.is_released()), "{released:?}");
    assert!(!matches!(extended, Ok(outcome) if outcome.is_extended()), "{extended:?}");
    assert!(backend.is_locked(&key).await.unwrap(), "the lock is still there");
}

#[tokio::test]
async fn an_expired_lock_is_told_from_one_that_never_was() {
    let scene = Scene::new();
    let backend = scene.open();
    let dead = LockId::random();
    scene.put("k", &dead, 1000);

    for (lock_id, reason) in [(dead, AbsentReason::Expired), (LockId::random(), AbsentReason::NotFound)] {
        assert_eq!(backend.extend(&lock_id, ttl()).await.unwrap(), ExtendOutcome::Absent(Some(reason)));
        assert_eq!(backend.release(&lock_id).await.unwrap(), ReleaseOutcome::Absent(Some(reason)));
    }
}

#[tokio::test]
async fn locks_are_found_by_their_indexes() {
    let scene = Scene::new();
    drop(scene.open());
    let db = scene.sql();
    for (sql, index) in [
        (include_str!("../../sql/lock_of_key.sql"), "PRIMARY KEY"),
        (include_str!("../../sql/lock_of_id.sql"), "idx_syncguard_locks_lock_id"),
        (include_str!("../../sql/purge.sql"), "idx_syncguard_locks_expires"),
        (include_str!("../../sql/free.sql"), "PRIMARY KEY"),
        (include_str!("../../sql/renew.sql"), "PRIMARY KEY"),
        (include_str!("../../sql/ask.sql"), "PRIMARY KEY"),
        (include_str!("../../sql/list.sql"), "PRIMARY KEY (key>?"),
        (include_str!("../../sql/count.sql"), "idx_syncguard_locks_expires"),
    ] {
        let mut plan = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let nothing = rusqlite::params_from_iter(std::iter::repeat_n(rusqlite::types::Null, plan.parameter_count()));
        let steps: Vec<String> = plan.query_map(nothing, |row| row.get(3)).unwrap().map(Result::unwrap).collect();
        assert!(steps.iter().any(|step| step.contains(index)), "{steps:?}");
        assert!(!steps.iter().any(|step| step.starts_with("SCAN syncguard_locks")), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("B-TREE")), "nothing is sorted: {steps:?}");
    }
}

#[test]
fn a_backend_is_shared_freely_and_shows_no_secret() {
    fn assert_shareable<T: Clone + std::fmt::Debug + Send + Sync + 'static>(_: &T) {}
    let scene = Scene::new();
    let backend = scene.open();
    assert_shareable(&backend);
    assert_eq!(format!("{backend:?}"), format!("SqliteBackend {{ path: {:?}, .. }}", backend.path()));
}

#[test]
fn a_backend_outlives_the_runtime_that_made_it() {
    let scene = Scene::new();
    let first = runtime();
    let backend = first.block_on(SqliteBackend::builder(scene.path()).connect()).unwrap();
    let held = first.block_on(async { holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap() });
    let hint = first.block_on(backend.subscribe(&key("k")));
    drop(first);

    runtime().block_on(async {
        assert!(backend.release(&held.lock_id).await.unwrap().is_released());
        tokio::time::timeout(Duration::from_secs(60), hint.woken()).await.unwrap();
        assert!(holder(acquire(&backend, &key("k"), &LockId::random()).await).is_some());
    });
}
