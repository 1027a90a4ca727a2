//! Is a holder that was paused past its lease refused, and would it do harm without the guard?
//!
//! One program, real processes, a real lock. A takes the lock and is stopped by SIGSTOP before it writes; B gets the
//! lock once A's lease is over, and writes; A goes on and writes. Both write to every ledger twice: with the guard and
//! without. No step waits for a time: each waits for the one before it.

use std::time::Duration;

use crate::support::children::{Worker, hear, role, say};
use crate::support::ledger::{Ledger, Place};
use crate::support::world::{KINDS, World, entries};
use syncguard_core::{Fence, Locker};
use syncguard_sqlite::SqliteBackend;

const TEST: &str = "paused::a_paused_holder_is_refused_by_every_guard_and_corrupts_what_has_none";

#[test]
fn a_paused_holder_is_refused_by_every_guard_and_corrupts_what_has_none() {
    if let Some(role) = role() {
        return runtime().block_on(hold_and_write(&role));
    }
    let world = World::start(&KINDS);
    let places: Vec<Place> = KINDS.into_iter().flat_map(|kind| runtime().block_on(world.places(kind))).collect();
    let words: Vec<String> = places.iter().map(Place::to_word).collect();
    let locks = world.path("locks.db");
    let role = |name| [name, locks.as_str()].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>();

    let mut first = Worker::start(TEST, &role("A"));
    let older: u64 = first.next().unwrap().parse().unwrap();
    first.pause();
    first.tell("write");
    let mut second = Worker::start(TEST, &role("B"));
    let newer: u64 = second.next().unwrap().parse().unwrap();
    second.tell("write");
    let answers_of_second: Vec<_> = places.iter().map(|_| second.next().unwrap()).collect();
    first.resume();
    let answers_of_first: Vec<_> = places.iter().map(|_| first.next().unwrap()).collect();

    assert!(older < newer);
    for (number, place) in places.iter().enumerate() {
        assert_eq!(answers_of_second[number], "accepted", "B, {place:?}");
        let entries = runtime().block_on(entries(place));
        if place.guarded {
            let refusal = format!("stale {} {}", fence(older), fence(newer));
            assert_eq!(answers_of_first[number], refusal, "A, {place:?}");
            assert_eq!(entries, [newer], "{place:?} is not intact");
        } else {
            // The control: the very same write does harm where nothing compares.
            assert_eq!(answers_of_first[number], "accepted", "A, {place:?}");
            assert_eq!(entries, [newer, older], "{place:?} should have been corrupted");
        }
    }
    println!(
        "{} guards refused fence {older} after {newer}, and as many ledgers without one took it",
        places.len() / 2
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

/// What A and B both are: a program that believes in its lock and does not look again.
async fn hold_and_write(role: &[String]) {
    let places: Vec<Place> = role[2..].iter().map(|word| Place::from_word(word)).collect();
    let mut ledgers = Vec::new();
    for place in &places {
        ledgers.push(Ledger::open(place).await);
    }
    let locker = Locker::new(SqliteBackend::connect(&format!("sqlite:{}", role[1])).await.unwrap());
    let guard = locker.lock("ledger").ttl(Duration::from_millis(500)).wait_forever().acquire().await.unwrap();
    say(guard.fence().get());
    hear();
    for ledger in &mut ledgers {
        match ledger.append(guard.fence()).await {
            Ok(()) => say("accepted"),
            Err(error) => match error.stale() {
                Some(stale) => say(format!("stale {} {}", stale.offered, stale.seen)),
                None => say(format!("failed {error} {error:?}")),
            },
        }
    }
}
