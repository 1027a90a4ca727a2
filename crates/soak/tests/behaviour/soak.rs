//! The short form of the soak: one test per storage, and two that show that its checks can fail.

#![allow(clippy::disallowed_methods, reason = "a test; no lease is measured by its clock")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use syncguard_soak::fleet::Fleet;
use syncguard_soak::resource::{Resources, stale_writes};
use syncguard_soak::time::{MILLI, now};
use syncguard_soak::worker::Orders;
use syncguard_soak::{Options, Storage, TTL_MS, check_folder, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_syncguard-soak");

/// Anything that takes longer is broken and not slow.
const PATIENCE: Duration = Duration::from_mins(2);

fn survives(storage: Storage) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        storage,
        length: Duration::from_secs(12),
        seed: 13,
        program: PathBuf::from(PROGRAM),
        folder: folder.path().to_owned(),
        workers: 3,
    };

    let scoreboard = run(&options).unwrap();

    println!("{scoreboard}");
    if !scoreboard.is_clean() {
        println!("the histories are in {}", folder.keep().display());
    }
    assert!(scoreboard.is_clean(), "{scoreboard}");
    // How much was done depends on the machine; that anything was, and that something went wrong, does not.
    assert!(scoreboard.holds >= 3, "{scoreboard}");
    assert!(scoreboard.faults.values().sum::<u64>() >= 2, "{scoreboard}");
}

#[test]
fn sqlite_keeps_its_promises_while_holders_die() {
    survives(Storage::Sqlite);
}

#[test]
fn redis_keeps_its_promises_while_everything_breaks() {
    survives(Storage::Redis);
}

#[test]
fn a_cluster_keeps_its_promises_while_replicas_are_promoted_and_slots_move() {
    survives(Storage::Cluster);
}

#[test]
fn fences_rise_while_sentinels_promote_replicas_that_lack_writes() {
    survives(Storage::Sentinel);
}

#[test]
fn postgres_keeps_its_promises_while_everything_breaks() {
    survives(Storage::Postgres);
}

#[test]
fn firestore_keeps_its_promises_while_everything_breaks() {
    survives(Storage::Firestore);
}

/// Two workers on one key, and the holder is stopped between asking and writing until the other has written; again and
/// again until `seen` is. Returns the folder with what they saw.
fn holders_are_stopped(credulous: bool, seen: impl Fn(&Path, &Resources) -> bool) -> (tempfile::TempDir, Resources) {
    let folder = tempfile::tempdir().unwrap();
    let resources = Resources::new(&folder.path().join("resources")).unwrap();
    let orders = |seed| Orders {
        url: format!("sqlite:{}", folder.path().join("locks.db").display()),
        history: PathBuf::new(),
        resources: folder.path().join("resources"),
        seed,
        keys: 1,
        tasks: 1,
        ttl_ms: TTL_MS,
        until: now() + 600_000 * MILLI,
        // Long enough that a holder is always found between asking and writing.
        nap_ms: Some(200),
        credulous,
    };
    let mut fleet = Fleet::start(PathBuf::from(PROGRAM), folder.path().to_owned(), vec![orders(1), orders(2)]).unwrap();
    let started = Instant::now();
    while started.elapsed() < PATIENCE && !seen(folder.path(), &resources) {
        let (holder, key) = fleet.find_holder(0, PATIENCE).unwrap().expect("somebody holds the lock");
        fleet.signal(holder, Signal::STOP).unwrap();
        let newest = |key: &str| resources.unchecked(key).iter().max().copied().unwrap_or(0);
        let before = newest(&key);
        while newest(&key) < before + 2 && started.elapsed() < PATIENCE && is_current(&key) {
            std::thread::sleep(Duration::from_millis(20));
        }
        fleet.signal(holder, Signal::CONT).unwrap();
        // The writes of the one that goes on, whichever it was.
        std::thread::sleep(Duration::from_millis(600));
    }
    drop(fleet);
    (folder, resources)
}

/// Keys change with time; on one that has passed nobody will write any more.
fn is_current(key: &str) -> bool {
    key.split('-').nth(1).is_some_and(|epoch| epoch == (now() / syncguard_soak::worker::EPOCH).to_string())
}

fn has_stale_write(resources: &Resources) -> bool {
    resources.accepted("unchecked").unwrap().iter().any(|list| stale_writes(list) > 0)
}

fn believers(folder: &Path) -> usize {
    check_folder(Storage::Sqlite, folder).unwrap().count("no two believers")
}

#[test]
fn a_stopped_holder_corrupts_what_does_not_compare_fences_and_nothing_else() {
    let (folder, resources) = holders_are_stopped(false, |_, resources| has_stale_write(resources));

    assert!(has_stale_write(&resources), "the fault is real: without fences the resource is corrupted");
    let checked = resources.accepted("checked").unwrap();
    assert_eq!(checked.iter().map(|list| stale_writes(list)).sum::<u64>(), 0);
    assert_eq!(believers(folder.path()), 0, "the guard knew, also in the process that was stopped");
}

#[test]
fn a_worker_that_believes_without_asking_is_caught() {
    let (folder, _resources) = holders_are_stopped(true, |folder, _| believers(folder) > 0);

    assert!(believers(folder.path()) > 0);
}
