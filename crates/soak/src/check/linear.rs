//! Is there one order of all calls, between their beginnings and ends, that a correct lock could have answered? (P1, P2)
//!
//! The search is the one of Wing, Gong and Lowe, by `todc-utils`. What is ours is the specification: per key, who holds
//! it and the highest fence so far. Two things need care:
//!
//! * a lease that ends is an operation too, one that the clock makes: it may happen at any time from its end on, counted
//!   from the *sending* of the last call that renewed it, and it happens to acquisitions that no release freed;
//! * a call whose outcome is unknown may take effect at any time until the end, or never. One that nothing later
//!   refers to is left out: if the rest has an order, so has the whole. Likewise an answer "contended" may be due to such
//!   a call, so it is held against the storage only where no unknown call of that key is about.

use std::collections::HashMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History as CallHistory};
use todc_utils::specifications::Specification;

use super::releases::repeats_another;
use super::{Operation, Violation};
use crate::history::{Answer, Call};
use crate::time::Nanos;

/// A key with more calls than this is not searched: memory grows with the square. Counted as left out.
const LARGEST: usize = 6_000;

/// How long the search for one key may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the search found.
#[derive(Clone, Debug, Default)]
pub struct Linearizability {
    /// Calls that are part of an order that was found.
    pub checked: u64,
    /// Calls of keys that were too large to search, or took too long.
    pub left_out: u64,
    /// Keys without an order.
    pub violations: Vec<Violation>,
}

/// Searches an order for every key. `lease` is the shortest time after which another may get a lock that is not renewed.
pub fn linearizability(operations: &[Operation], lease: Nanos) -> Linearizability {
    let mut by_key: HashMap<&str, Vec<&Operation>> = HashMap::new();
    for operation in operations {
        by_key.entry(&operation.key).or_default().push(operation);
    }
    let mut found = Linearizability::default();
    for (key, operations) in by_key {
        let steps = steps(&operations, lease);
        let calls = u64::try_from(operations.len()).unwrap_or(0);
        match has_an_order(steps) {
            None => found.left_out += calls,
            Some(true) => found.checked += calls,
            Some(false) => {
                let what = format!("{key}: no order of its {calls} calls is one of a correct lock");
                found.violations.push(Violation::new("linearizable", what));
            }
        }
    }
    found
}

/// Whether there is one; `None` if that is too much to search. Where many outcomes are unknown the search may not end, so
/// it has a thread of its own, which is left behind then.
fn has_an_order(steps: Vec<Interval>) -> Option<bool> {
    if steps.len() > LARGEST {
        return None;
    }
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        // Nobody listens any more when it took too long.
        let found = steps.is_empty() || WGLChecker::<LockSpecification>::is_linearizable(call_history(steps));
        let _ = tell.send(found);
    });
    match told.recv_timeout(PATIENCE) {
        Ok(found) => Some(found),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => panic!("the search ended without an answer"),
    }
}

/// A call, or the end of a lease, with the time in which it took effect.
struct Interval {
    from: Nanos,
    until: Nanos,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    Acquired { id: u32, fence: u64 },
    Contended { id: u32 },
    Extended { id: u32 },
    Released { id: u32 },
    Absent { id: u32 },
    MaybeAcquired { id: u32 },
    MaybeReleased { id: u32 },
    Expired { id: u32 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LockState {
    holder: Option<u32>,
    fence: u64,
    /// An acquisition whose grant was not answered has a fence that nobody knows yet.
    fence_is_known: bool,
}

struct LockSpecification;

impl Specification for LockSpecification {
    type State = LockState;
    type Operation = Step;

    fn init() -> LockState {
        LockState::default()
    }

    fn apply(step: &Step, state: &LockState) -> (bool, LockState) {
        let free = || LockState { holder: None, ..state.clone() };
        match *step {
            Step::Acquired { id, fence } => {
                let owned_up = state.holder == Some(id)
                    && if state.fence_is_known { fence == state.fence } else { fence > state.fence };
                let fresh = state.holder.is_none() && fence > state.fence;
                (owned_up || fresh, LockState { holder: Some(id), fence, fence_is_known: true })
            }
            Step::MaybeAcquired { id } if state.holder.is_none() => {
                (true, LockState { holder: Some(id), fence: state.fence, fence_is_known: false })
            }
            Step::Contended { id } => (state.holder.is_some_and(|holder| holder != id), state.clone()),
            Step::Extended { id } => (state.holder == Some(id), state.clone()),
            Step::Released { id } => (state.holder == Some(id), free()),
            Step::Absent { id } => (state.holder != Some(id), state.clone()),
            Step::MaybeReleased { id } | Step::Expired { id } if state.holder == Some(id) => (true, free()),
            Step::MaybeAcquired { .. } | Step::MaybeReleased { .. } | Step::Expired { .. } => (true, state.clone()),
        }
    }
}

/// What is known of one lock id.
#[derive(Default)]
struct Known {
    number: u32,
    /// When the call left that made the present lease.
    last_renewed: Nanos,
    is_seen: bool,
    is_released: bool,
    /// A request that is still on its way may take the lock again, even after a release.
    is_in_doubt: bool,
}

fn steps(operations: &[&Operation], lease: Nanos) -> Vec<Interval> {
    let known = known(operations);
    let in_doubt: Vec<Nanos> = operations
        .iter()
        .filter(|operation| operation.answer == Answer::Unknown && operation.call != Call::Extend)
        .map(|operation| operation.invoked)
        .collect();
    let first_doubt = in_doubt.iter().min().copied().unwrap_or(Nanos::MAX);
    let mut steps: Vec<Interval> = operations
        .iter()
        .filter_map(|operation| {
            let of = known.get(operation.id.as_str())?;
            if operation.answer == Answer::Released && repeats_another(operation, operations.iter().copied()) {
                return None;
            }
            let until = operation.returned.filter(|_| operation.answer != Answer::Unknown).unwrap_or(Nanos::MAX);
            let step = step(operation, of, until < first_doubt)?;
            Some(Interval { from: operation.invoked, until, step })
        })
        .collect();
    let ends = known.values().filter(|of| of.is_seen && (of.is_in_doubt || !of.is_released)).map(|of| Interval {
        from: of.last_renewed + lease,
        until: Nanos::MAX,
        step: Step::Expired { id: of.number },
    });
    steps.extend(ends);
    steps
}

fn known<'a>(operations: &[&'a Operation]) -> HashMap<&'a str, Known> {
    let mut known: HashMap<&str, Known> = HashMap::new();
    let mut numbers = 0_u32..;
    for operation in operations {
        let of = known.entry(&operation.id).or_insert_with(|| Known {
            number: numbers.next().unwrap_or(u32::MAX),
            last_renewed: operation.invoked,
            ..Known::default()
        });
        match operation.answer {
            // A repeated acquire owns up to the first one and does not make the lease longer.
            Answer::Acquired(_) => of.is_seen = true,
            Answer::Extended => {
                of.is_seen = true;
                of.last_renewed = of.last_renewed.max(operation.invoked);
            }
            Answer::Released => {
                of.is_seen = true;
                of.is_released = true;
            }
            Answer::Unknown => of.is_in_doubt |= operation.call == Call::Acquire,
            Answer::Contended | Answer::Absent | Answer::Refused => {}
        }
    }
    known
}

fn step(operation: &Operation, of: &Known, before_any_doubt: bool) -> Option<Step> {
    let id = of.number;
    match (operation.call, operation.answer) {
        (_, Answer::Acquired(fence)) => Some(Step::Acquired { id, fence }),
        (_, Answer::Contended) => before_any_doubt.then_some(Step::Contended { id }),
        (_, Answer::Extended) => Some(Step::Extended { id }),
        (_, Answer::Released) => Some(Step::Released { id }),
        (_, Answer::Absent) => of.is_seen.then_some(Step::Absent { id }),
        (Call::Acquire, Answer::Unknown) => of.is_seen.then_some(Step::MaybeAcquired { id }),
        (Call::Release, Answer::Unknown) => of.is_seen.then_some(Step::MaybeReleased { id }),
        (Call::Extend, Answer::Unknown) | (_, Answer::Refused) => None,
    }
}

fn call_history(steps: Vec<Interval>) -> CallHistory<Step> {
    let mut actions = Vec::with_capacity(steps.len() * 2);
    for (process, interval) in steps.into_iter().enumerate() {
        actions.push((interval.from, 0, process, Action::Call(interval.step.clone())));
        actions.push((interval.until, 1, process, Action::Response(interval.step)));
    }
    // Of two at the same instant the call comes first: what touches may be concurrent.
    actions.sort_by_key(|&(at, kind, process, _)| (at, kind, process));
    CallHistory::from_actions(actions.into_iter().map(|(_, _, process, action)| (process, action)).collect())
}

#[cfg(test)]
mod tests;
