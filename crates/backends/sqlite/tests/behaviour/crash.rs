//! Do fences survive the death of who wrote them?

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::support::children::{Worker, hear, role, say};
use super::support::mount::{Mount, ext4_image, skip};
use super::support::{Scene, acquire, connect, holder, key, open};
use syncguard_core::{LockBackend, LockId, Lookup};
use syncguard_sqlite::{SqliteBackend, Synchronous};

/// What a machine that was started again shows.
const ANOTHER_BOOT: &str = "5d0e4b5c-9f5e-4d43-8b53-6a9d0c6c7f10\n";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Takes and frees locks until it is killed, and says each fence as soon as it has it.
fn write_for_ever(path: &Path, synchronous: Synchronous) {
    let backend = connect(SqliteBackend::builder(path).synchronous(synchronous)).unwrap();
    runtime().block_on(async {
        let key = key("k");
        for _ in 0..1_000_000 {
            if let Some(held) = holder(acquire(&backend, &key, &LockId::random()).await) {
                say(held.lease.fence.get());
                backend.release(&held.lock_id).await.unwrap();
            }
        }
    });
}

/// Takes the lock once, whoever left it, and says the fence.
fn write_once(path: &Path) {
    let backend = open(path).unwrap();
    runtime().block_on(async {
        break_the_lock(&backend).await;
        let held = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
        say(held.lease.fence.get());
        backend.release(&held.lock_id).await.unwrap();
    });
}

/// Frees what a killed holder left, so that the next round does not wait for its lease.
async fn break_the_lock(backend: &SqliteBackend) {
    if let Some(left) = backend.lookup(Lookup::Key(&key("k"))).await.unwrap() {
        backend.release(left.reveal().lock_id).await.unwrap();
    }
}

#[test]
fn no_fence_repeats_when_writers_are_killed_fifty_times_in_the_middle() {
    if let Some((_, path)) = role() {
        return write_for_ever(&path, Synchronous::Normal);
    }
    let scene = Scene::new();
    let name = "crash::no_fence_repeats_when_writers_are_killed_fifty_times_in_the_middle";
    let backend = scene.open();
    let runtime = runtime();
    let mut seen = HashSet::new();
    let mut highest = 0;
    for round in 0..50_u64 {
        let mut workers = [(); 2].map(|()| Worker::start(name, "write", &scene.path()));
        // The first word of each shows that it is at work; then it is killed at a moment that differs by round.
        let first = workers[0].next();
        std::thread::sleep(Duration::from_micros(500 + (round * 7_919) % 20_000));
        for worker in &mut workers {
            worker.kill();
        }
        let mut said: Vec<u64> = first.into_iter().map(|line| line.parse().unwrap()).collect();
        for worker in &mut workers {
            said.extend(std::iter::from_fn(|| worker.next()).map(|line| line.parse::<u64>().unwrap()));
            assert!(!worker.ended_well(), "it was killed, not finished");
        }
        for fence in said {
            assert!(seen.insert(fence), "round {round}: fence {fence} was given twice");
            highest = highest.max(fence);
        }
        runtime.block_on(async {
            break_the_lock(&backend).await;
            let held = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
            let fence = held.lease.fence.get();
            assert!(fence > highest, "round {round}: fence {fence} is not above {highest}");
            assert!(seen.insert(fence));
            highest = fence;
            backend.release(&held.lock_id).await.unwrap();
        });
    }
    assert!(seen.len() >= 100, "the writers hardly wrote: {}", seen.len());
    println!("{} fences over 50 kills of two writers, none twice", seen.len());
    drop(backend);
    let intact: String = scene.sql().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(intact, "ok");
}

/// Cuts the power under a writer: returns the last fence that it was given and the next one after the cut, given in the
/// boot that the writer saw or in another one.
fn cut_the_power(test: &str, how: &str, after: Duration, reboot: bool) -> Option<(u64, u64)> {
    let directory = tempfile::tempdir().unwrap();
    let image = ext4_image(directory.path(), 32)?;
    let disk = Mount::image(&image)?;
    let mut writer = Worker::start(test, how, &disk.path().join("locks.db"));
    let first = writer.next().unwrap();
    std::thread::sleep(after);
    // Stopped, the writer gives no more fences, and what the disk has at this moment is what a power cut leaves.
    writer.stop();
    let copy = directory.path().join("after.img");
    fs::copy(&image, &copy).unwrap();
    writer.kill();
    let last = std::iter::from_fn(|| writer.next()).last().unwrap_or(first);
    writer.ended_well();
    drop((writer, disk));

    let disk = Mount::image(&copy)?;
    let path = disk.path().join("locks.db");
    let boot_id = directory.path().join("boot_id");
    fs::write(&boot_id, ANOTHER_BOOT).unwrap();
    let mut next =
        if reboot { Worker::start_in_boot(&boot_id, test, "next", &path) } else { Worker::start(test, "next", &path) };
    let fence = next.next().expect("the file is usable after the cut");
    assert!(next.ended_well());
    Some((last.parse().unwrap(), fence.parse().unwrap()))
}

/// Plays a part of the tests with power cuts.
fn play(how: &str, path: &Path) {
    match how {
        "full" => write_for_ever(path, Synchronous::Full),
        "normal" => write_for_ever(path, Synchronous::Normal),
        _ => write_once(path),
    }
}

#[test]
fn a_power_cut_repeats_no_fence_where_every_acquire_is_on_the_disk() {
    let name = "crash::a_power_cut_repeats_no_fence_where_every_acquire_is_on_the_disk";
    if let Some((how, path)) = role() {
        return play(&how, &path);
    }
    for cut in 0..5_u64 {
        let after = Duration::from_millis(100 + (cut * 37) % 600);
        let Some((given, next)) = cut_the_power(name, "full", after, false) else { return skip(name) };
        println!("full: last fence given {given}, the next after the cut {next}");
        assert!(next > given, "fence {given} was given, and {next} after it");
    }
}

#[test]
fn a_power_cut_repeats_no_fence_that_was_promised_and_without_the_boot_it_would() {
    let name = "crash::a_power_cut_repeats_no_fence_that_was_promised_and_without_the_boot_it_would";
    if let Some((how, path)) = role() {
        return play(&how, &path);
    }
    for cut in 0..8_u64 {
        let after = Duration::from_millis(20 + (cut * 137) % 700);
        let Some((given, next)) = cut_the_power(name, "normal", after, true) else { return skip(name) };
        println!("normal: last fence given {given}, the next after the cut {next}");
        assert!(next > given, "fence {given} was given, and {next} after it");
    }
    // The control: the same cut, and nobody notices that the machine has booted. Not every cut loses something: the
    // system writes back in its own time too, and every promise syncs what was before it.
    let lost = (0..10_u64).any(|cut| {
        let (given, next) = cut_the_power(name, "normal", Duration::from_millis(20 + cut * 90), false).unwrap();
        println!("normal, no boot noticed: last fence given {given}, the next after the cut {next}");
        next <= given
    });
    assert!(lost, "the control repeated nothing in ten cuts: the test proves nothing");
}

#[test]
fn a_holder_that_was_killed_is_followed_after_its_lease_and_not_before() {
    if let Some((_, path)) = role() {
        let backend = open(path).unwrap();
        runtime().block_on(async {
            let (key, id) = (key("k"), LockId::random());
            let ttl = syncguard_core::Ttl::from_millis(500).unwrap();
            let request = syncguard_core::AcquireRequest::new(&key, &id, ttl);
            let held = holder((id.clone(), backend.acquire(request).await.unwrap())).unwrap();
            say(held.lease.expires_at.as_millis());
        });
        hear();
        return;
    }
    let scene = Scene::new();
    let name = "crash::a_holder_that_was_killed_is_followed_after_its_lease_and_not_before";
    let mut first = Worker::start(name, "hold", &scene.path());
    let expires_at: i64 = first.next().unwrap().parse().unwrap();
    first.kill();

    let backend = scene.open();
    let taken_at = runtime().block_on(async {
        loop {
            if let Some(held) = holder(acquire(&backend, &key("k"), &LockId::random()).await) {
                break held.lease.expires_at.as_millis() - super::support::ttl().as_millis();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });

    assert!(taken_at >= expires_at + 1_000, "taken {} ms before its time", expires_at + 1_000 - taken_at);
    assert!(taken_at < expires_at + 1_000 + 5_000, "taken only {} ms later", taken_at - expires_at);
}
