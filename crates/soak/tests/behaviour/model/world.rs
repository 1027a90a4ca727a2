//! What is there at one moment: the storage, the network, the clients, and what only the judge knows.
//!
//! Time is counted in ticks. One tick stands for the tolerance, a second; the margin of a guard is one tick as well, so
//! that losing it shows. A message that nobody delivers is a lost one, and a client that takes no step is a paused one:
//! neither needs an action of its own.

/// How long a lease lasts.
pub(crate) const TTL: u8 = 3;
/// How long before the end of its lease a guard stops believing.
pub(crate) const MARGIN: u8 = 1;
/// How long after its expiry a lease still counts as alive.
pub(crate) const TOLERANCE: u8 = 1;

/// Names a lock id: the client that made it, and the how-manyth it is.
pub(crate) type Id = (u8, u8);

/// What the storage keeps for the key, beside the counter.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    pub(crate) id: Id,
    pub(crate) expires: u8,
    pub(crate) fence: u8,
}

/// What travels. `attempt` ties a reply to the request that somebody still waits for.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Message {
    Acquire { id: Id, attempt: u8 },
    Extend { id: Id, attempt: u8 },
    Release { id: Id },
    Granted { id: Id, attempt: u8, left: u8, fence: u8 },
    Contended { id: Id, attempt: u8 },
    Extended { id: Id, attempt: u8 },
    Absent { id: Id, attempt: u8 },
}

impl Message {
    pub(crate) fn id(self) -> Id {
        match self {
            Self::Acquire { id, .. }
            | Self::Extend { id, .. }
            | Self::Release { id }
            | Self::Granted { id, .. }
            | Self::Contended { id, .. }
            | Self::Extended { id, .. }
            | Self::Absent { id, .. } => id,
        }
    }

    pub(crate) fn attempt(self) -> Option<u8> {
        match self {
            Self::Release { .. } => None,
            Self::Acquire { attempt, .. }
            | Self::Extend { attempt, .. }
            | Self::Granted { attempt, .. }
            | Self::Contended { attempt, .. }
            | Self::Extended { attempt, .. }
            | Self::Absent { attempt, .. } => Some(attempt),
        }
    }

    pub(crate) fn is_request(self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::Extend { .. } | Self::Release { .. })
    }
}

/// A request that has read and not yet written: there are such only where the storage is broken on purpose.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Open {
    pub(crate) request: Message,
    /// What it read: the row, and for fences taken too early the number.
    pub(crate) row: Option<Row>,
    pub(crate) fence: u8,
    /// Whether the row was live when it was read.
    pub(crate) live: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    /// Waits for the reply to `attempt`. The lease counts from `sent`, which is the first request under this id whose
    /// outcome is `unknown`, if there is one.
    Asking {
        attempt: u8,
        sent: u8,
        unknown: bool,
    },
    /// Between two attempts under one id, the outcome of an earlier one being unknown since then.
    Between {
        attempt: u8,
        unknown_since: Option<u8>,
    },
    /// Believes until `deadline`. `renewal` is the extend on the wire, and when it left.
    Held {
        deadline: u8,
        fence: u8,
        renewal: Option<(u8, u8)>,
        attempt: u8,
    },
    /// The deadline passed. Its extend may still be on the wire.
    Lost {
        fence: u8,
        renewal: Option<(u8, u8)>,
        attempt: u8,
    },
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    /// How many ids it has made.
    pub(crate) ids: u8,
    /// By how many ticks its clock fell behind real time: a slow rate.
    pub(crate) slow: u8,
    /// By how many ticks its wall clock is ahead, where clients' clocks decide.
    pub(crate) ahead: u8,
}

/// What the judge remembers and nobody in the world knows.
#[allow(clippy::struct_excessive_bools, reason = "one per promise")]
#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub(crate) struct Ghost {
    /// Leases that were granted or renewed and neither released nor dead.
    pub(crate) leases: Vec<(Id, u8)>,
    /// The highest fence that was ever granted.
    pub(crate) highest: u8,
    pub(crate) granted_while_live: bool,
    pub(crate) fence_fell: bool,
    pub(crate) touched_by_a_stranger: bool,
    pub(crate) revived: bool,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) time: u8,
    /// By how many ticks the server's clock has stepped forward.
    pub(crate) stepped: u8,
    pub(crate) row: Option<Row>,
    pub(crate) counter: u8,
    pub(crate) open: Vec<Open>,
    /// Sorted, so that two orders of sending are one state.
    pub(crate) network: Vec<Message>,
    pub(crate) clients: Vec<Client>,
    /// How many more requests to acquire, and to extend, may be sent.
    pub(crate) asks: u8,
    pub(crate) extends: u8,
    /// How many more messages may be delivered twice.
    pub(crate) copies: u8,
    pub(crate) ghost: Ghost,
}

impl World {
    pub(crate) fn send(&mut self, message: Message) {
        let place = self.network.partition_point(|known| *known <= message);
        self.network.insert(place, message);
    }

    /// The id that a client uses now.
    pub(crate) fn id(&self, client: usize) -> Id {
        (u8::try_from(client).expect("few clients"), self.clients[client].ids)
    }

    /// The local clock of a client: it never steps, but may be slow.
    pub(crate) fn boot(&self, client: usize) -> u8 {
        self.time - self.clients[client].slow
    }

    /// The fence under which a client believes to hold the lock.
    pub(crate) fn believes(&self, client: usize) -> Option<u8> {
        match self.clients[client].phase {
            Phase::Held { deadline, fence, .. } if self.boot(client) < deadline => Some(fence),
            _ => None,
        }
    }
}
