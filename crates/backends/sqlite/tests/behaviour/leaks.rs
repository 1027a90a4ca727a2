//! Is anything left when the work is over?
//!
//! Counted in a process of its own, where nothing else opens files or starts threads.

use std::fs;
use std::time::Duration;

use super::support::children::{Worker, role};
use super::support::{Scene, acquire, connect, holder, key, runtime};
use syncguard_core::{LockBackend, LockId};
use syncguard_sqlite::{SqliteBackend, Synchronous};

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).unwrap().count()
}

/// Files that this process has open and threads that it runs.
fn belongings() -> (usize, usize) {
    (entries("/proc/self/fd"), entries("/proc/self/task"))
}

fn resident_kib() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let resident: u64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    resident * u64::try_from(rustix::param::page_size()).unwrap() / 1024
}

async fn use_everything(backend: &SqliteBackend) {
    let key = key("k");
    let hint = backend.subscribe(&key).await;
    let held = holder(acquire(backend, &key, &LockId::random()).await).unwrap();
    assert!(backend.is_locked(&key).await.unwrap());
    assert!(backend.release(&held.lock_id).await.unwrap().is_released());
    hint.woken().await;
}

#[test]
fn backends_leave_no_file_no_thread_and_no_memory_behind() {
    if role().is_some() {
        return runtime().block_on(count_belongings());
    }
    let scene = Scene::new();
    let name = "leaks::backends_leave_no_file_no_thread_and_no_memory_behind";
    let mut alone = Worker::start(name, "alone", &scene.path());
    while alone.next().is_some() {}
    assert!(alone.ended_well());
}

async fn count_belongings() {
    let scene = Scene::new();
    let open = || connect(SqliteBackend::builder(scene.path()).synchronous(Synchronous::Normal)).unwrap();
    use_everything(&open()).await;
    wait_until_gone((usize::MAX, usize::MAX)).await;
    let before = belongings();

    for _ in 0..50 {
        use_everything(&open()).await;
    }
    wait_until_gone(before).await;

    let backend = open();
    for _ in 0..2_000 {
        use_everything(&backend).await;
    }
    let settled = resident_kib();
    for _ in 0..10_000 {
        use_everything(&backend).await;
    }
    let grown = resident_kib().saturating_sub(settled);
    assert!(grown <= 2_048, "10 000 locks left {grown} KiB behind");
}

/// Threads end in their own time after their backend is dropped.
async fn wait_until_gone(before: (usize, usize)) {
    let mut last = belongings();
    for _ in 0..1_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = belongings();
        if now == last && now.0 <= before.0 && now.1 <= before.1 {
            return;
        }
        last = now;
    }
    panic!("left behind: {:?} files and threads, {before:?} before", belongings());
}
