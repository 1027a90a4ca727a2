//! Which fences does a file promise to the disk ahead, and do programs of the first version keep to it?

use std::fs;
use std::path::{Path, PathBuf};

use super::inspect::FirstVersion;
use super::support::children::{Worker, hear, role, say};
use super::support::mount::skip;
use super::support::{Scene, acquire, connect, holder, key, open, runtime};
use syncguard_core::{AcquireRequest, Fence, LockBackend, LockId, Ttl};
use syncguard_sqlite::{SqliteBackend, Synchronous};

/// What a program of the first version goes on from: its next fence is the one above.
fn counter(scene: &Scene, name: &str) -> u64 {
    let sql = "SELECT fence FROM syncguard_fence_counters WHERE fence_key = 'fence:' || ?1";
    scene.sql().query_row(sql, [name], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
}

fn set_counter(scene: &Scene, name: &str, fence: u64) {
    let sql = "INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ('fence:' || ?1, ?2)";
    scene.sql().execute(sql, rusqlite::params![name, i64::try_from(fence).unwrap()]).unwrap();
}

fn open_with(scene: &Scene, synchronous: Synchronous) -> SqliteBackend {
    connect(SqliteBackend::builder(scene.path()).synchronous(synchronous)).unwrap()
}

/// Takes and frees the lock, and returns its fence.
async fn count(backend: &SqliteBackend, name: &str) -> u64 {
    let held = holder(acquire(backend, &key(name), &LockId::random()).await).unwrap();
    assert!(backend.release(&held.lock_id).await.unwrap().is_released());
    held.lease.fence.get()
}

fn count_as_the_first_version(old: &FirstVersion, name: &str) -> u64 {
    let lock_id = LockId::random();
    let fence = old.take(name, &lock_id, None);
    assert_eq!(old.free(name, &lock_id), 1);
    u64::try_from(fence).unwrap()
}

#[tokio::test]
async fn fences_are_dense_and_never_pass_what_the_disk_promises() {
    let scene = Scene::new();
    let backend = scene.open();
    let mut promises = Vec::new();
    for expected in 1..=2_600 {
        assert_eq!(count(&backend, "k").await, expected);
        if expected % 100 == 0 {
            let limit = counter(&scene, "k");
            assert!(limit >= expected, "fence {expected} was given, {limit} promised");
            promises.push(limit);
        }
    }
    promises.dedup();
    assert!(promises.len() < 8, "a sync pays for many fences: {promises:?}");
    assert_eq!(count(&backend, "new").await, 1, "keys do not move each other");
}

#[tokio::test]
async fn whoever_syncs_every_acquire_promises_nothing_and_uses_up_what_was_promised() {
    let scene = Scene::new();
    let careful = open_with(&scene, Synchronous::Full);
    assert_eq!((count(&careful, "k").await, counter(&scene, "k")), (1, 1));
    drop(careful);
    assert_eq!(count(&open_with(&scene, Synchronous::Normal), "k").await, 2);
    let promised = counter(&scene, "k");
    assert_eq!(count(&open_with(&scene, Synchronous::Full), "k").await, 3);
    assert!(promised > 3 && counter(&scene, "k") == promised, "{promised}");
}

#[tokio::test]
async fn programs_of_the_first_version_and_this_one_never_give_a_fence_twice() {
    let scene = Scene::new();
    let old = FirstVersion::make(&scene);
    let mut last = 0;
    let mut rises = |fence: u64| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    rises(count_as_the_first_version(&old, "k"));
    let backend = scene.open();
    for turn in 0..30 {
        // Each of them several times in a row, in changing numbers.
        for _ in 0..turn % 4 {
            rises(count(&backend, "k").await);
        }
        for _ in 0..turn % 3 {
            rises(count_as_the_first_version(&old, "k"));
        }
    }
}

#[tokio::test]
async fn a_promise_ends_at_the_limit_of_fences() {
    let scene = Scene::new();
    let backend = scene.open();
    let limit = Fence::MAX.get();
    set_counter(&scene, "k", limit - 2);

    assert_eq!(count(&backend, "k").await, limit - 1);
    assert_eq!(count(&backend, "k").await, limit);

    assert_eq!(counter(&scene, "k"), limit);
    let (key, lock_id) = (key("k"), LockId::random());
    assert!(backend.acquire(AcquireRequest::new(&key, &lock_id, Ttl::DEFAULT)).await.is_err());
    assert_eq!(counter(&scene, "k"), limit);
}

#[tokio::test]
async fn a_fence_that_was_given_is_never_taken_back() {
    let scene = Scene::new();
    let backend = scene.open();
    count(&backend, "k").await;
    count(&backend, "k").await;
    let db = scene.sql();
    for damage in ["given = given - 1", "given = given", "given = 0, promised = promised - 1", "fence = fence - 1"] {
        let sql = format!("UPDATE syncguard_fence_counters SET {damage}");
        assert!(db.execute(&sql, []).is_err(), "{damage}");
    }
    // Whatever else a careless hand writes there, the key goes on above all that was promised.
    let promised = counter(&scene, "k");
    db.execute("UPDATE syncguard_fence_counters SET given = 5000", []).unwrap();
    assert_eq!(count(&backend, "k").await, promised + 1);
}

#[tokio::test]
async fn without_a_promise_on_the_disk_no_higher_fence_is_given() {
    let scene = Scene::new();
    let backend = scene.open();
    count(&backend, "k").await;
    let promised = counter(&scene, "k");
    // A disk that takes no more promises, and a key that has one fence left.
    let refuse = "CREATE TRIGGER refused BEFORE UPDATE OF fence ON syncguard_fence_counters
                  BEGIN SELECT RAISE(ABORT, 'refused'); END";
    scene.sql().execute_batch(refuse).unwrap();
    scene.sql().execute("UPDATE syncguard_fence_counters SET given = fence - 1", []).unwrap();

    assert_eq!(count(&backend, "k").await, promised);
    let (key, lock_id) = (key("k"), LockId::random());
    assert!(backend.acquire(AcquireRequest::new(&key, &lock_id, Ttl::DEFAULT)).await.is_err());

    assert!(!backend.is_locked(&key).await.unwrap());
    assert_eq!(counter(&scene, "k"), promised);
}

/// Counts whenever it is told to, and says the fence.
fn count_on_demand(path: &Path) {
    let backend = open(path).unwrap();
    while hear() == "count" {
        say(runtime().block_on(count(&backend, "k")));
    }
}

fn boot_id(scene: &Scene, text: &str) -> PathBuf {
    let path = scene.directory.path().join(format!("boot-{}", text.len() + usize::from(text.starts_with('a'))));
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn processes_that_see_different_boots_repeat_no_fence() {
    let name = "reserve::processes_that_see_different_boots_repeat_no_fence";
    if let Some((_, path)) = role() {
        return count_on_demand(&path);
    }
    if !rustix::process::geteuid().is_root() {
        return skip(name);
    }
    let scene = Scene::new();
    // Two containers with boot ids of their own, one that hides it, and this machine's.
    let boots = [
        boot_id(&scene, "11111111-1111-4111-8111-111111111111\n"),
        boot_id(&scene, "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa\n"),
        boot_id(&scene, ""),
    ];
    let mut workers: Vec<_> =
        boots.iter().map(|boot| Worker::start_in_boot(boot, name, "count", &scene.path())).collect();
    workers.push(Worker::start(name, "count", &scene.path()));
    let mut last = 0;
    for turn in 0..40 {
        let worker = &mut workers[turn * 7 % 4];
        worker.tell("count");
        let fence: u64 = worker.next().unwrap().parse().unwrap();
        assert!(fence > last, "turn {turn}: {fence} after {last}");
        last = fence;
    }
    for worker in &mut workers {
        assert!(worker.ended_well());
    }
    assert!(last > 10_000, "every change of boots skips what was promised: {last}");
}

#[test]
fn where_boots_cannot_be_told_apart_every_acquire_is_synced() {
    let name = "reserve::where_boots_cannot_be_told_apart_every_acquire_is_synced";
    if let Some((_, path)) = role() {
        let backend = open(path).unwrap();
        let report = runtime().block_on(backend.health());
        let durability = report.checks.iter().find(|check| check.name == "durability").unwrap();
        return say(&durability.detail);
    }
    if !rustix::process::geteuid().is_root() {
        return skip(name);
    }
    let scene = Scene::new();
    let mut worker = Worker::start_in_boot(&boot_id(&scene, ""), name, "health", &scene.path());
    assert_eq!(worker.next().unwrap(), "every acquire is on the disk: a power cut repeats no fence");
    assert!(worker.ended_well());
}
