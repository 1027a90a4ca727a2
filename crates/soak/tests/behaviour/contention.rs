//! The short form of the million calls, and what the same checks say of backends that are wrong on purpose.

use std::sync::Arc;

use syncguard::Locker;
use syncguard_conformance::Harness;
use syncguard_conformance::impostors::{Flaw, ImpostorHarness};
use syncguard_soak::contention::{Contention, Place, Plan, contend, contend_at};
use syncguard_soak::history::Recorder;
use syncguard_soak::recorded::Recorded;

fn plan(operations: u64) -> Plan {
    Plan { seed: 13, operations, tasks: 16, keys: 16 }
}

fn has_an_order(place: Place, operations: u64) {
    let folder = tempfile::tempdir().unwrap();

    let found = contend_at(place, &plan(operations), folder.path()).unwrap();

    println!("{place:?}: {found}");
    assert!(found.violations.is_empty(), "{found}");
    assert!(found.linearizable >= operations, "{found}");
    assert!(found.holds > 0, "{found}");
}

#[test]
fn contended_calls_have_an_order_in_memory() {
    has_an_order(Place::Memory, 16_000);
}

#[test]
fn contended_calls_have_an_order_on_sqlite() {
    has_an_order(Place::Sqlite, 4_000);
}

#[test]
fn contended_calls_have_an_order_on_redis() {
    has_an_order(Place::Redis, 8_000);
}

#[test]
fn contended_calls_have_an_order_on_postgres() {
    has_an_order(Place::Postgres, 3_000);
}

/// Contends on a backend in memory that is wrong in one way. Not for long: to show that there is no order takes a search
/// through all of them.
fn contend_on(impostor: &ImpostorHarness) -> Contention {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let recorder = Arc::new(Recorder::in_memory());
        let backend = Recorded::new(impostor.backend().await, recorder.clone());
        contend(&Locker::new(backend), &recorder, &plan(2_000)).await
    })
}

#[test]
fn every_check_of_histories_catches_the_backends_that_are_wrong_in_its_way() {
    let seeded = [
        (Flaw::ChecksThenActs, "linearizable"),
        (Flaw::ReleasesAStrangersLock, "linearizable"),
        (Flaw::ExtendsForAStranger, "linearizable"),
        (Flaw::ExtendCreates, "linearizable"),
        (Flaw::ChecksThenActs, "no two believers"),
        (Flaw::ReleasesAStrangersLock, "no two believers"),
        (Flaw::ReusesAFence, "fences rise"),
        (Flaw::ResetsTheFenceOnRelease, "fences rise"),
        (Flaw::ReleasesTwice, "one release"),
    ];
    for (flaw, check) in seeded {
        let found = contend_on(&ImpostorHarness::with(flaw));
        let caught = found.violations.iter().any(|violation| violation.check == check);
        let others: Vec<&str> = found.violations.iter().map(|violation| violation.check).collect();
        assert!(caught, "{flaw:?} is not caught by `{check}`, only by {others:?}");
    }
    let honest = contend_on(&ImpostorHarness::honest());
    assert!(honest.violations.is_empty(), "{honest}");
}
