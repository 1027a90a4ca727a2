use super::super::operations::sample::operation;
use super::*;
use crate::history::Call::{Acquire, Extend, Release};

const LEASE: Nanos = 1_000;

fn is_legal(history: &[Operation]) -> bool {
    let found = linearizability(history, LEASE);
    assert_eq!(found.left_out, 0);
    found.violations.is_empty()
}

fn unanswered(call: Call, id: &str, invoked: Nanos) -> Operation {
    Operation { returned: None, ..operation(call, id, invoked, invoked, Answer::Unknown) }
}

#[test]
fn holders_in_turn_have_an_order_and_two_at_once_have_none() {
    let turn = [
        operation(Acquire, "a", 0, 10, Answer::Acquired(1)),
        operation(Acquire, "b", 5, 20, Answer::Contended),
        operation(Extend, "a", 25, 30, Answer::Extended),
        operation(Release, "a", 40, 50, Answer::Released),
        operation(Acquire, "b", 45, 60, Answer::Acquired(2)),
    ];
    assert!(is_legal(&turn));
    let at_once = [
        operation(Acquire, "a", 0, 10, Answer::Acquired(1)),
        operation(Acquire, "b", 20, 30, Answer::Acquired(2)),
        operation(Release, "a", 40, 50, Answer::Released),
    ];
    assert!(!is_legal(&at_once));
}

#[test]
fn a_lease_ends_after_its_length_and_not_before() {
    let takeover = |at| {
        [
            operation(Acquire, "a", 0, 10, Answer::Acquired(1)),
            operation(Extend, "a", 500, 510, Answer::Extended),
            operation(Acquire, "b", at, at + 10, Answer::Acquired(2)),
        ]
    };
    assert!(is_legal(&takeover(1_500)));
    assert!(!is_legal(&takeover(1_400)), "it was renewed at 500");
}

#[test]
fn an_extend_and_a_takeover_that_both_succeed_have_no_order() {
    let both = [
        operation(Acquire, "a", 0, 10, Answer::Acquired(1)),
        operation(Acquire, "b", 1_200, 1_210, Answer::Acquired(2)),
        operation(Extend, "a", 1_220, 1_230, Answer::Extended),
    ];
    assert!(!is_legal(&both));
}

#[test]
fn swapped_fences_have_no_order() {
    let swapped = [
        operation(Acquire, "a", 0, 10, Answer::Acquired(2)),
        operation(Release, "a", 20, 30, Answer::Released),
        operation(Acquire, "b", 40, 50, Answer::Acquired(1)),
    ];
    assert!(!is_legal(&swapped));
}

#[test]
fn a_lost_reply_may_or_may_not_have_taken_effect() {
    let owned_up = [
        unanswered(Acquire, "a", 0),
        operation(Acquire, "a", 100, 110, Answer::Acquired(1)),
        operation(Release, "a", 120, 130, Answer::Released),
    ];
    assert!(is_legal(&owned_up));
    let never_came = [unanswered(Acquire, "a", 0), operation(Acquire, "b", 10, 20, Answer::Acquired(1))];
    assert!(is_legal(&never_came));
    let released_unseen = [
        operation(Acquire, "a", 0, 10, Answer::Acquired(1)),
        unanswered(Release, "a", 20),
        operation(Acquire, "b", 30, 40, Answer::Acquired(2)),
    ];
    assert!(is_legal(&released_unseen));
}

#[test]
fn an_error_that_claims_to_be_certain_is_held_to_it() {
    let wrongly_certain =
        [operation(Acquire, "a", 0, 10, Answer::Refused), operation(Release, "a", 20, 30, Answer::Released)];
    assert!(!is_legal(&wrongly_certain));
}

#[test]
fn contention_without_a_holder_has_no_order_unless_something_is_in_doubt() {
    let nobody = [
        operation(Acquire, "a", 0, 10, Answer::Acquired(1)),
        operation(Release, "a", 20, 30, Answer::Released),
        operation(Acquire, "b", 40, 50, Answer::Contended),
    ];
    assert!(!is_legal(&nobody));
    let in_doubt = [&[unanswered(Acquire, "c", 5)], &nobody[..]].concat();
    assert!(is_legal(&in_doubt));
}
