//! The protocol itself, searched exhaustively: every order of steps, losses, copies, delays, pauses and clocks, within
//! bounds.
//!
//! The rules are those of the core and of a backend, written down without I/O (`client`, `storage`); the checker is
//! stateright. What is proven is the design and not the code: the code is tested against real servers. Each property
//! has the name of its promise in `docs/guarantees.md`, and each rule that matters is broken once on purpose: the
//! search must then find the way to the damage.

mod announce;
mod client;
mod protocol;
mod storage;
mod world;

use std::time::Duration;

use protocol::{Authority, Bounds, Bug, Protocol, SIGHTS, Sight};
use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

/// Two clients and one key: small enough to be searched completely. Many requests with true clocks, and fewer with
/// wrong ones and with copies; all of it at once is for the larger search.
const REQUESTS: Bounds = Bounds { clients: 2, horizon: 5, asks: 3, extends: 1, copies: 0, drift: 0 };
const COPIES: Bounds = Bounds { asks: 2, copies: 1, ..REQUESTS };
const CLOCKS: Bounds = Bounds { asks: 2, drift: 2, ..REQUESTS };

/// Searches the whole world.
fn search(bounds: Bounds, authority: Authority) {
    search_all(Protocol::new(bounds, authority));
}

fn search_all(protocol: Protocol) {
    let checker = builder(protocol).spawn_bfs().join();
    let model = checker.model();
    report(&checker);
    for sight in SIGHTS {
        let possible = !matches!(sight, Sight::DeliveredTwice) || model.bounds.copies > 0;
        assert!(!possible || model.count(sight) > 0, "never met, so nothing is proven: {sight:?}");
    }
}

fn builder(protocol: Protocol) -> CheckerBuilder<Protocol> {
    protocol.checker().threads(2)
}

fn report(checker: &impl Checker<Protocol>) {
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{property} is broken by {:#?}", path.into_actions());
    }
    let (model, states) = (checker.model(), checker.unique_state_count());
    println!("model: {states} states, no promise broken ({:?}, clock of {:?})", model.bounds, model.authority);
}

#[test]
fn two_clients_keep_every_promise_whatever_becomes_of_their_messages() {
    search(REQUESTS, Authority::Server);
}

#[test]
fn two_clients_keep_every_promise_though_messages_come_twice() {
    search(COPIES, Authority::Server);
}

#[test]
fn two_clients_keep_every_promise_though_clocks_are_slow_and_step() {
    search(CLOCKS, Authority::Server);
}

#[test]
fn two_clients_keep_every_promise_by_clocks_of_their_own_that_differ() {
    search(CLOCKS, Authority::Clients);
}

#[test]
fn two_clients_keep_every_promise_though_lost_replies_are_called_refusals() {
    search_all(Protocol::new(REQUESTS, Authority::Server).lying());
}

/// As far as the time reaches: with `SYNCGUARD_MODEL_MINUTES`, which `cargo xtask model` sets.
#[test]
fn three_clients_keep_every_promise_as_far_as_the_search_reaches() {
    let bounds = Bounds { clients: 3, horizon: 9, asks: 6, extends: 3, copies: 2, drift: 2 };
    let minutes: Option<u64> = std::env::var("SYNCGUARD_MODEL_MINUTES").ok().map(|minutes| minutes.parse().unwrap());
    let builder = builder(Protocol::new(bounds, Authority::Server));
    let builder = match minutes {
        Some(minutes) => builder.timeout(Duration::from_secs(minutes * 60)),
        None => builder.target_state_count(100_000),
    };
    let checker = builder.spawn_bfs().join();
    report(&checker);
    println!("model: every order of up to {} steps", checker.max_depth().saturating_sub(1));
}

/// Searches until this promise is broken, and tells how.
fn damage(bug: Bug, property: &'static str, bounds: Bounds, authority: Authority) {
    let this = HasDiscoveries::AnyOf([property].into());
    let checker = builder(Protocol::new(bounds, authority).broken(bug)).finish_when(this).spawn_bfs().join();
    let path = checker.discovery(property).unwrap_or_else(|| panic!("{bug:?} was not caught by {property}"));
    println!(
        "model: {bug:?} breaks {property} among {} states: {:?}",
        checker.unique_state_count(),
        path.into_actions()
    );
}

#[test]
fn a_read_and_a_write_that_are_two_steps_are_caught() {
    let bounds = Bounds { asks: 2, extends: 0, ..REQUESTS };
    damage(Bug::NoRowLock, "one believer", bounds, Authority::Server);
    damage(Bug::NoRowLock, "P1", bounds, Authority::Server);
}

#[test]
fn a_lease_without_tolerance_is_caught_when_the_servers_clock_steps() {
    let bounds = Bounds { extends: 0, ..CLOCKS };
    damage(Bug::NoTolerance, "one believer", bounds, Authority::Server);
}

#[test]
fn a_lease_without_tolerance_is_caught_when_the_clients_clocks_differ() {
    let bounds = Bounds { extends: 0, ..CLOCKS };
    damage(Bug::NoTolerance, "one believer", bounds, Authority::Clients);
}

#[test]
fn a_deadline_that_counts_from_the_reply_is_caught() {
    let bounds = Bounds { asks: 2, extends: 0, ..REQUESTS };
    damage(Bug::DeadlineFromReply, "one believer", bounds, Authority::Server);
}

#[test]
fn a_lease_that_is_owned_up_to_and_counts_as_new_is_caught() {
    let bounds = Bounds { extends: 0, ..CLOCKS };
    damage(Bug::OwnUpIsNew, "P4", bounds, Authority::Server);
}

#[test]
fn a_fence_that_is_taken_before_the_row_is_locked_is_caught() {
    damage(Bug::FenceBeforeLock, "P3", REQUESTS, Authority::Server);
}

#[test]
fn a_counter_that_is_removed_with_its_lock_is_caught() {
    damage(Bug::CounterLeavesWithTheRow, "P3", REQUESTS, Authority::Server);
}

#[test]
fn a_late_reply_that_revives_a_guard_is_caught() {
    let bounds = Bounds { asks: 2, ..REQUESTS };
    damage(Bug::LateReplyRevives, "P5", bounds, Authority::Server);
}

#[test]
fn a_release_that_does_not_look_at_the_owner_is_caught() {
    damage(Bug::ReleaseIgnoresOwner, "P7", REQUESTS, Authority::Server);
    damage(Bug::ReleaseIgnoresOwner, "P4", REQUESTS, Authority::Server);
}

#[test]
fn an_extend_that_makes_a_lock_is_caught() {
    let bounds = Bounds { asks: 2, ..REQUESTS };
    damage(Bug::ExtendRecreates, "P7", bounds, Authority::Server);
}

/// The condition of P4 is not only enough but needed: one tick more, and two may act at once.
#[test]
fn a_clock_that_is_slower_than_margin_and_tolerance_allow_is_caught() {
    let bounds = Bounds { extends: 0, ..CLOCKS };
    damage(Bug::ClockTooSlow, "one believer", bounds, Authority::Server);
}
