//! Which steps may the world take, and what must hold in every state?

use std::sync::atomic::{AtomicU64, Ordering};

use stateright::{Model, Property};

use crate::model::client::{extend_lease, give_back};
use crate::model::world::{Client, Ghost, MARGIN, Open, Phase, TOLERANCE, TTL, World};

/// Whose clock decides whether a lease is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The storage's own: Redis, PostgreSQL, SQLite.
    Server,
    /// That of whoever asks: Firestore.
    Clients,
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Reads and writes are two steps: no row lock, no transaction.
    NoRowLock,
    /// A lease is dead at its expiry.
    NoTolerance,
    /// A guard believes from the reply on.
    DeadlineFromReply,
    /// A lease that is owned up to counts as new.
    OwnUpIsNew,
    /// The fence is taken before the row is locked.
    FenceBeforeLock,
    /// Whoever removes the row removes the counter.
    CounterLeavesWithTheRow,
    /// The reply to an extend that comes after the deadline is believed.
    LateReplyRevives,
    ReleaseIgnoresOwner,
    ExtendRecreates,
    /// A guard's clock stands still while the machine sleeps, or is slower than the margin allows.
    ClockTooSlow,
}

/// What the search must have met, or it proves nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sight {
    OwnedUp,
    TakenOver,
    Reaped,
    LostByTheClock,
    Renewed,
    GrantedTooLate,
    DeliveredTwice,
}

pub(crate) const SIGHTS: [Sight; 7] = [
    Sight::OwnedUp,
    Sight::TakenOver,
    Sight::Reaped,
    Sight::LostByTheClock,
    Sight::Renewed,
    Sight::GrantedTooLate,
    Sight::DeliveredTwice,
];

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) clients: u8,
    /// How many ticks pass.
    pub(crate) horizon: u8,
    /// How many requests to acquire, and to extend, are sent in all.
    pub(crate) asks: u8,
    pub(crate) extends: u8,
    /// How many messages are delivered twice.
    pub(crate) copies: u8,
    /// By how many ticks in all clocks go wrong: clients' are slow, the server's steps.
    pub(crate) drift: u8,
}

pub(crate) struct Protocol {
    pub(crate) bounds: Bounds,
    pub(crate) authority: Authority,
    /// The driver calls a lost reply a refusal.
    pub(crate) lies: bool,
    pub(crate) bug: Option<Bug>,
    sights: [AtomicU64; SIGHTS.len()],
}

impl Protocol {
    pub(crate) fn new(bounds: Bounds, authority: Authority) -> Self {
        Self { bounds, authority, lies: false, bug: None, sights: Default::default() }
    }

    pub(crate) fn broken(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    pub(crate) fn lying(self) -> Self {
        Self { lies: true, ..self }
    }

    #[allow(clippy::as_conversions, reason = "an index by variant")]
    pub(crate) fn saw(&self, sight: Sight) {
        self.sights[sight as usize].fetch_add(1, Ordering::Relaxed);
    }

    #[allow(clippy::as_conversions, reason = "an index by variant")]
    pub(crate) fn count(&self, sight: Sight) -> u64 {
        self.sights[sight as usize].load(Ordering::Relaxed)
    }

    /// Whether a clock may go wrong by one tick more. P4 allows as much as the margin and the tolerance together; where
    /// clients' clocks decide, the tolerance is used up by their difference.
    fn may_drift(&self, world: &World) -> bool {
        let so_far = world.stepped + world.clients.iter().map(|client| client.slow).sum::<u8>();
        let promised = match self.authority {
            Authority::Server => MARGIN + TOLERANCE,
            Authority::Clients => MARGIN,
        };
        let allowed = if self.bug == Some(Bug::ClockTooSlow) { promised + 1 } else { promised.min(self.bounds.drift) };
        so_far < allowed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time passes; the clock of one client may miss it.
    Tick {
        slow: Option<usize>,
    },
    /// The server's clock jumps ahead.
    Step,
    Ask(usize),
    AskAgain(usize),
    TimeOut(usize),
    GiveUp(usize),
    Extend(usize),
    GiveBack(usize),
    /// The message with this number arrives, and a copy of it stays on the way.
    Deliver {
        message: usize,
        copy: bool,
    },
    Commit(usize),
    Purge,
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let client = Client { phase: Phase::Idle, ids: 0, slow: 0, ahead: 0 };
        let world = World {
            time: 0,
            stepped: 0,
            row: None,
            counter: 0,
            open: Vec::new(),
            network: Vec::new(),
            clients: vec![client; usize::from(self.bounds.clients)],
            asks: self.bounds.asks,
            extends: self.bounds.extends,
            copies: self.bounds.copies,
            ghost: Ghost::default(),
        };
        if self.authority == Authority::Server {
            return vec![world];
        }
        // Each client's clock in turn runs ahead of the others by as much as is allowed.
        let ahead = |client: usize| {
            let mut world = world.clone();
            world.clients[client].ahead = TOLERANCE;
            world
        };
        (0..world.clients.len()).map(ahead).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for client in 0..world.clients.len() {
            client_actions(world, client, actions);
        }
        for message in 0..world.network.len() {
            actions.push(Action::Deliver { message, copy: false });
            // A reply that comes twice is ignored the second time.
            if world.copies > 0 && world.network[message].is_request() {
                actions.push(Action::Deliver { message, copy: true });
            }
        }
        actions.extend((0..world.open.len()).map(Action::Commit));
        if world.row.is_some_and(|row| !self.is_live(row.expires, self.latest_now(world))) {
            actions.push(Action::Purge);
        }
        if world.time == self.bounds.horizon {
            return;
        }
        actions.push(Action::Tick { slow: None });
        let slowable = (0..world.clients.len()).filter(|client| {
            // A clock that nobody reads cannot be wrong.
            matches!(world.clients[*client].phase, Phase::Held { .. } | Phase::Asking { .. } | Phase::Between { .. })
                && self.may_drift(world)
        });
        actions.extend(slowable.map(|client| Action::Tick { slow: Some(client) }));
        if self.authority == Authority::Server && world.row.is_some() && self.may_drift(world) {
            actions.push(Action::Step);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Tick { slow } => {
                world.time += 1;
                if let Some(client) = slow {
                    world.clients[client].slow += 1;
                }
            }
            Action::Step => world.stepped += 1,
            Action::Ask(client) => self.ask(&mut world, client),
            Action::AskAgain(client) => self.ask_again(&mut world, client),
            Action::TimeOut(client) => self.time_out(&mut world, client),
            Action::GiveUp(client) => self.give_up(&mut world, client),
            Action::Extend(client) => extend_lease(&mut world, client),
            Action::GiveBack(client) => give_back(&mut world, client),
            Action::Deliver { message, copy } => {
                let arrived = world.network.remove(message);
                if copy {
                    self.saw(Sight::DeliveredTwice);
                    world.copies -= 1;
                    world.send(arrived);
                }
                if arrived.is_request() {
                    self.serve(&mut world, arrived);
                } else {
                    self.hear(&mut world, arrived);
                }
            }
            Action::Commit(index) => {
                let open: Open = world.open.remove(index);
                self.commit(&mut world, open);
            }
            Action::Purge => self.purge(&mut world),
        }
        self.bury(&mut world);
        self.notice(&mut world);
        self.forget(&mut world);
        Some(world)
    }

    /// Named as in `docs/guarantees.md`.
    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("P1", |model: &Self, world: &World| {
                model.authority == Authority::Clients || world.ghost.leases.len() <= 1
            }),
            Property::always("P2", |_, world: &World| !world.ghost.granted_while_live),
            Property::always("P3", |_, world: &World| {
                let newest = |fence: u8| fence == world.ghost.highest;
                !world.ghost.fence_fell && believers(world).all(|(_, fence)| newest(fence))
            }),
            Property::always("P4", |model: &Self, world: &World| {
                let now = model.latest_now(world);
                believers(world).all(|(client, _)| {
                    world.row.is_some_and(|row| row.id == world.id(client) && row.expires + TOLERANCE > now)
                })
            }),
            Property::always("one believer", |_, world: &World| believers(world).count() <= 1),
            Property::always("P5", |_, world: &World| !world.ghost.revived),
            Property::always("P7", |_, world: &World| !world.ghost.touched_by_a_stranger),
            Property::always("P8", |model: &Self, world: &World| {
                world.row.is_none_or(|row| row.expires <= model.latest_now(world) + TTL)
            }),
        ]
    }
}

fn believers(world: &World) -> impl Iterator<Item = (usize, u8)> {
    (0..world.clients.len()).filter_map(|client| Some((client, world.believes(client)?)))
}

fn client_actions(world: &World, client: usize, actions: &mut Vec<Action>) {
    let state = world.clients[client];
    match state.phase {
        Phase::Idle if world.asks > 0 => actions.push(Action::Ask(client)),
        Phase::Idle => {}
        Phase::Asking { .. } => actions.push(Action::TimeOut(client)),
        Phase::Between { unknown_since, .. } => {
            // An unknown outcome can be owned up to only while its lease could still be alive.
            let hopeless = unknown_since.is_some_and(|sent| world.boot(client) >= sent + TTL);
            if world.asks > 0 && !hopeless {
                actions.push(Action::AskAgain(client));
            }
            actions.push(Action::GiveUp(client));
        }
        Phase::Held { .. } => {
            if world.extends > 0 {
                actions.push(Action::Extend(client));
            }
            actions.push(Action::GiveBack(client));
        }
        Phase::Lost { .. } => actions.push(Action::GiveBack(client)),
    }
}
