//! The core stays light: people depend on it from libraries.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use syncguard_core::{Guard, LockError, LockId, Locker, MemoryBackend};

fn crates_of(package: &str) -> BTreeSet<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).unwrap();
    lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_core_needs_at_most_twenty_crates_beside_those_of_tokio() {
    let tokios: BTreeSet<_> = crates_of("tokio-util").into_iter().chain(crates_of("tokio")).collect();

    let own: Vec<_> = crates_of("syncguard-core").into_iter().filter(|name| !tokios.contains(name)).collect();

    println!("crates of the core beside tokio's: {} ({})", own.len() - 1, own.join(" "));
    assert!(own.len() - 1 <= 20);
}

#[test]
fn an_idle_guard_and_a_waiter_are_small() {
    let locker = Locker::new(MemoryBackend::new());

    let waiter = locker.lock("k").keep_alive().acquire();

    assert!(size_of_val(&waiter) <= 4096, "a waiting task takes {} bytes", size_of_val(&waiter));
    assert_eq!(size_of::<Guard>(), size_of::<usize>());
    assert_eq!(size_of::<LockError>(), size_of::<usize>());
    assert_eq!(size_of::<LockId>(), LockId::LENGTH);
}

#[tokio::test]
async fn ten_thousand_kept_alive_locks_take_under_three_kibibytes_each() {
    let locker = Locker::new(MemoryBackend::new());
    let before = resident_bytes();
    let mut guards = Vec::new();
    for number in 0..10_000 {
        let request = locker.lock(format!("key-{number}")).ttl(Duration::from_secs(60)).keep_alive();
        guards.push(request.acquire().await.unwrap());
    }

    let each = resident_bytes().saturating_sub(before) / 10_000;

    println!("bytes per kept-alive lock, its stored form included: {each}");
    // Client and storage share the process here: a guard, its renewal task, and the backend's own entry.
    assert!(each < 3 * 1024, "{each} bytes each");
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
