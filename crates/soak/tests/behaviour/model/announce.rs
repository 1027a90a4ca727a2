//! When must a holder's fence reach the resource: before it reads what it decides by, or is the write early enough?
//!
//! Two holders find a bill open and charge for it. The first is paused wherever you like, and the second got the lock
//! meanwhile, so their steps come in every order. The resource keeps the rule at every step: a fence below the highest one
//! seen is refused. That is not enough by itself; each order of a holder's steps is searched.

use stateright::{Checker, Model, Property};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// The fence reaches the resource and stays.
    Announce,
    /// Is the bill open?
    Read,
    /// A transaction begins: the fence is compared, and other holders wait until it has ended.
    Begin,
    /// Charges if the bill was open when it was read, and closes it. The fence is compared in the same step.
    Write,
}

/// The steps that each holder takes, one after the other.
struct Bill(&'static [Step]);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct World {
    is_closed: bool,
    charges: u8,
    /// The highest fence seen.
    mark: u8,
    /// The holder whose transaction is open, by its fence.
    inside: Option<u8>,
    holders: [Holder; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Holder {
    /// How many steps it has taken; all of them once it was refused.
    done: usize,
    saw_it_open: bool,
}

impl Model for Bill {
    type State = World;
    /// The holder that takes its next step.
    type Action = usize;

    fn init_states(&self) -> Vec<World> {
        vec![World::default()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<usize>) {
        actions.extend((0..world.holders.len()).filter(|holder| world.holders[*holder].done < self.0.len()));
    }

    fn next_state(&self, world: &World, holder: usize) -> Option<World> {
        let (mut next, step) = (world.clone(), self.0[world.holders[holder].done]);
        let fence = u8::try_from(holder).ok()? + 1;
        let is_others = world.inside.is_some_and(|inside| inside != fence);
        if step != Step::Read && is_others {
            // It waits for the transaction of the other one.
            return None;
        }
        next.holders[holder].done += 1;
        if step != Step::Read && fence < world.mark {
            next.holders[holder].done = self.0.len();
            return Some(next);
        }
        match step {
            Step::Read => next.holders[holder].saw_it_open = !world.is_closed,
            Step::Announce => next.mark = fence,
            Step::Begin => (next.mark, next.inside) = (fence, Some(fence)),
            Step::Write => {
                (next.mark, next.inside) = (fence, None);
                if world.holders[holder].saw_it_open {
                    (next.is_closed, next.charges) = (true, world.charges + 1);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("charged once", |_: &Self, world: &World| world.charges <= 1),
            Property::sometimes("charged", |_: &Self, world: &World| world.charges == 1),
            Property::sometimes("a stale holder stopped", |model: &Self, world: &World| {
                world.mark == 2 && world.holders[0].done == model.0.len() && world.holders[1].saw_it_open
            }),
        ]
    }
}

#[test]
fn who_announces_before_it_reads_charges_once() {
    Bill(&[Step::Announce, Step::Read, Step::Write]).checker().spawn_bfs().join().assert_properties();
}

#[test]
fn who_reads_and_writes_in_one_fenced_transaction_charges_once() {
    Bill(&[Step::Begin, Step::Read, Step::Write]).checker().spawn_bfs().join().assert_properties();
}

#[test]
fn who_reads_before_its_fence_has_arrived_charges_twice() {
    for wrong in [&[Step::Read, Step::Write][..], &[Step::Read, Step::Announce, Step::Write]] {
        let checker = Bill(wrong).checker().spawn_bfs().join();
        let path = checker.discovery("charged once").expect("the wrong order was not found");
        println!("model: {wrong:?} charges twice: {:?}", path.into_actions());
    }
}
