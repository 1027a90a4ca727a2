//! Are the mistakes that can be planted in the core caught, each by the check that is named for it?
//!
//! Built by `cargo xtask prove` with `--cfg syncguard_seeded_bugs`; otherwise there is nothing here. The mistakes of
//! backends are in `impostors.rs`.
#![cfg(syncguard_seeded_bugs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use syncguard_conformance::{CASES, MemoryHarness, run_named};
use syncguard_core::retry::RetryPolicy;
use syncguard_core::seeded::{SeededBug, plant};
use syncguard_core::{Locker, MemoryBackend};

/// Who must notice.
enum Check {
    /// A case of the suite, on the reference backend.
    Case(&'static str),
    /// A check of its own, where no case asks about it.
    Own(fn()),
}

use Check::{Case, Own};

const SEEDED: [(SeededBug, Check); 15] = [
    (SeededBug::DeadlineFromReply, Case("a_grant_that_arrives_too_late_is_no_guard")),
    (SeededBug::DeadlineByTheWall, Case("a_wrong_wall_clock_changes_nothing")),
    (SeededBug::ClockStopsInSleep, Case("a_guard_notices_that_the_machine_slept")),
    (SeededBug::RenewsTheLost, Case("a_guard_knows_that_it_is_lost_when_the_server_is_gone")),
    (SeededBug::RenewsTheReleased, Case("renewal_ends_with_the_guard")),
    (SeededBug::OneFailureEndsRenewal, Case("renewal_survives_two_failures_inside_the_lease")),
    (SeededBug::LossOnlyByTheTask, Case("a_guard_notices_that_the_machine_slept")),
    (SeededBug::NewIdOnRetry, Case("a_waiter_owns_up_to_a_lost_reply")),
    (SeededBug::ReleaseUnderTheCallersToken, Case("a_cancel_during_the_work_still_releases")),
    (SeededBug::DropSpawnsWithoutAHandle, Case("dropping_a_guard_on_a_bare_thread_releases")),
    (SeededBug::UnpaddedFence, Case("the_text_order_of_fences_is_their_order")),
    (SeededBug::LimitComparedAsText, Case("a_counter_past_its_limit_refuses_and_leaves_no_lock")),
    (SeededBug::NoNormalisation, Case("the_composed_and_decomposed_forms_of_a_key_are_one_lock")),
    (SeededBug::RawKeyInErrors, Own(an_error_of_the_client_shows_no_key)),
    (SeededBug::NoJitter, Own(half_of_a_delay_is_left_to_chance)),
];

fn an_error_of_the_client_shows_no_key() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let locker = Locker::new(MemoryBackend::new());
        let _held = locker.lock("canary").acquire().await.unwrap();
        let error = locker.lock("canary").timeout(Duration::ZERO).acquire().await.unwrap_err();
        assert!(!error.to_string().contains("canary"), "{error}");
    });
}

fn half_of_a_delay_is_left_to_chance() {
    let policy = RetryPolicy::default();
    assert_eq!(policy.delay(1, 0.0), Duration::from_millis(50));
    assert_eq!(policy.delay(3, 0.5), Duration::from_millis(300));
}

fn passes(check: &Check) -> bool {
    catch_unwind(AssertUnwindSafe(|| match check {
        Case(case) => run_named!(*case, MemoryHarness::start(), paused),
        Own(check) => check(),
    }))
    .is_ok()
}

#[test]
fn every_mistake_that_is_planted_in_the_core_is_caught() {
    let mut escaped = Vec::new();
    for (bug, check) in &SEEDED {
        if let Case(case) = check {
            assert!(CASES.contains(case), "{bug:?} names {case}, which does not exist");
        }
        assert!(passes(check), "the check for {bug:?} fails without it");
        let planted = plant(*bug);
        if passes(check) {
            escaped.push(bug);
        }
        drop(planted);
    }
    assert!(escaped.is_empty(), "not caught: {escaped:?}");
    println!("{} mistakes planted in the core, all caught", SEEDED.len());
}
