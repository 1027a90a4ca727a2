//! Do processes share a file well?

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use super::support::children::{Worker, hear, role, say};
use super::support::{Scene, acquire, holder, key, open, runtime};
use syncguard_core::{Clock, LockBackend, LockId, Locker, SystemClock};

const PROCESSES: usize = 8;
const CYCLES: u64 = 2_000;

/// Takes and frees one lock over and over, and leaves a trace that nobody may leave at the same time.
fn cycle(path: &Path, cycles: u64) {
    let witness = path.with_extension("witness");
    runtime().block_on(async {
        let locker = Locker::new(open(path).unwrap());
        say("ready");
        hear();
        for _ in 0..cycles {
            let before = SystemClock.boot();
            let guard = locker.lock("one").ttl(Duration::from_secs(30)).wait_forever().acquire().await.unwrap();
            // Outside of the store: a file that only one process can create.
            let alone = File::create_new(&witness).is_ok();
            assert!(alone, "somebody else holds the lock too");
            fs::remove_file(&witness).unwrap();
            assert!(guard.release().await.unwrap().is_released());
            say(format_args!("{} {}", guard.fence().get(), SystemClock.boot().since(before).as_micros()));
        }
    });
}

#[test]
fn eight_processes_hold_one_lock_in_turn_with_dense_rising_fences() {
    if let Some((_, path)) = role() {
        return cycle(&path, CYCLES);
    }
    let scene = Scene::new();
    let name = "processes::eight_processes_hold_one_lock_in_turn_with_dense_rising_fences";
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| Worker::start(name, "cycle", &scene.path())).collect();
    for worker in &mut workers {
        assert_eq!(worker.next().as_deref(), Some("ready"));
    }
    let before = SystemClock.boot();
    for worker in &mut workers {
        worker.tell("go");
    }
    let readers: Vec<_> = workers.into_iter().map(|worker| std::thread::spawn(move || read_cycles(worker))).collect();
    let mut fences = Vec::new();
    let mut micros = Vec::new();
    for reader in readers {
        let (own_fences, own_micros) = reader.join().unwrap();
        assert!(own_fences.is_sorted_by(|earlier, later| earlier < later), "a process saw its fences fall");
        fences.extend(own_fences);
        micros.extend(own_micros);
    }
    let elapsed = SystemClock.boot().since(before);

    fences.sort_unstable();
    let all = CYCLES * u64::try_from(PROCESSES).unwrap();
    assert_eq!(fences, (1..=all).collect::<Vec<_>>(), "fences are dense and none came twice");
    micros.sort_unstable();
    let share = |percent: usize| micros[(micros.len() - 1) * percent / 100];
    println!(
        "{PROCESSES} processes x {CYCLES} cycles on one key in {elapsed:.1?}: wait + hold + release p50 {} µs, p99 {} µs",
        share(50),
        share(99),
    );
}

fn read_cycles(mut worker: Worker) -> (Vec<u64>, Vec<u64>) {
    let mut fences = Vec::new();
    let mut micros = Vec::new();
    while let Some(line) = worker.next() {
        let (fence, time) = line.split_once(' ').unwrap();
        fences.push(fence.parse::<u64>().unwrap());
        micros.push(time.parse::<u64>().unwrap());
    }
    assert!(worker.ended_well(), "a process saw two holders, or an error");
    (fences, micros)
}

/// Waits by the hint alone: no timer helps.
fn wait_by_hint(path: &Path, rounds: u64) {
    runtime().block_on(async {
        let backend = open(path).unwrap();
        let (key, id) = (key("handed over"), LockId::random());
        for _ in 0..rounds {
            let hint = backend.subscribe(&key).await;
            let contended = holder(acquire(&backend, &key, &id).await).is_none();
            assert!(contended, "the parent holds it");
            say("waiting");
            let held = loop {
                // Ends the test where a hint never comes; nothing else would.
                tokio::time::timeout(Duration::from_secs(20), hint.woken()).await.expect("a hint within 20 seconds");
                if let Some(held) = holder(acquire(&backend, &key, &id).await) {
                    break held;
                }
            };
            say(SystemClock.boot().since_start().as_nanos());
            hear();
            backend.release(&held.lock_id).await.unwrap();
            say("released");
            hear();
        }
    });
}

#[test]
fn a_waiter_in_another_process_is_woken_by_a_release() {
    const ROUNDS: u64 = 50;
    if let Some((_, path)) = role() {
        return wait_by_hint(&path, ROUNDS);
    }
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("handed over");
    let name = "processes::a_waiter_in_another_process_is_woken_by_a_release";
    let runtime = runtime();
    let mut held = runtime.block_on(async { holder(acquire(&backend, &key, &LockId::random()).await).unwrap() });
    let mut waiter = Worker::start(name, "wait", &scene.path());

    let mut micros = Vec::new();
    for _ in 0..ROUNDS {
        assert_eq!(waiter.next().as_deref(), Some("waiting"));
        let freed = SystemClock.boot().since_start().as_nanos();
        runtime.block_on(async { backend.release(&held.lock_id).await.unwrap() });
        let taken: u128 = waiter.next().unwrap().parse().unwrap();
        micros.push((taken - freed) / 1_000);
        waiter.tell("release");
        assert_eq!(waiter.next().as_deref(), Some("released"));
        held = runtime.block_on(async { holder(acquire(&backend, &key, &LockId::random()).await).unwrap() });
        waiter.tell("again");
    }

    assert!(waiter.ended_well());
    micros.sort_unstable();
    // Without a hint the child would wait for ever; the bound only says that a hint is not slower than a poll.
    assert!(micros[micros.len() / 2] < 1_000_000, "{micros:?}");
    println!("release to acquired in another process: p50 {} µs, worst {} µs", micros[25], micros[49]);
}

#[test]
fn a_process_that_is_stopped_while_it_waits_or_idles_holds_nobody_up() {
    if let Some((_, path)) = role() {
        let backend = open(path).unwrap();
        runtime().block_on(async {
            let _hint = backend.subscribe(&key("other")).await;
            let held = holder(acquire(&backend, &key("other"), &LockId::random()).await);
            say(if held.is_some() { "held" } else { "not held" });
        });
        hear();
        return;
    }
    let scene = Scene::new();
    let name = "processes::a_process_that_is_stopped_while_it_waits_or_idles_holds_nobody_up";
    let mut idle = Worker::start(name, "idle", &scene.path());
    assert_eq!(idle.next().as_deref(), Some("held"));
    idle.stop();

    let backend = scene.open();
    runtime().block_on(async {
        for _ in 0..20 {
            let held = holder(acquire(&backend, &key("mine"), &LockId::random()).await).unwrap();
            backend.release(&held.lock_id).await.unwrap();
        }
    });
}

#[test]
fn twenty_processes_that_make_the_file_at_once_agree_on_it() {
    if let Some((_, path)) = role() {
        say("ready");
        hear();
        let backend = open(path).unwrap();
        let held = runtime().block_on(async { holder(acquire(&backend, &key("k"), &LockId::random()).await) });
        say(if held.is_some() { "won" } else { "lost" });
        return;
    }
    let scene = Scene::new();
    let name = "processes::twenty_processes_that_make_the_file_at_once_agree_on_it";
    let mut workers: Vec<_> = (0..20).map(|_| Worker::start(name, "open", &scene.path())).collect();
    for worker in &mut workers {
        assert_eq!(worker.next().as_deref(), Some("ready"));
    }
    for worker in &mut workers {
        worker.tell("go");
    }
    let answers: Vec<_> = workers.iter_mut().map(|worker| worker.next().unwrap_or_default()).collect();
    let count = |word| answers.iter().filter(|answer| *answer == word).count();
    assert_eq!((count("won"), count("lost")), (1, 19), "{answers:?}");
}

#[tokio::test]
async fn who_opens_the_file_to_lock_once_leaves_a_short_log() {
    let scene = Scene::new();
    for _ in 0..100 {
        let locker = Locker::new(scene.open());
        let guard = locker.lock("one").ttl(Duration::from_secs(600)).try_acquire().await.unwrap();
        guard.expect("it is free").release().await.unwrap();
    }

    // Each of them reads all of it first.
    let pages: i64 = scene.sql().query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1)).unwrap();
    assert!((1..200).contains(&pages), "{pages} pages");
}
