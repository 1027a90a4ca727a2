//! What a client does: the rules of the core's `acquisition`, `belief`, `heartbeat` and `clean_up`, without their I/O.

use crate::model::protocol::{Bug, Protocol, Sight};
use crate::model::world::{Id, MARGIN, Message, Phase, TTL, World};

impl Protocol {
    /// Asks under a new id.
    pub(crate) fn ask(&self, world: &mut World, client: usize) {
        world.clients[client].ids += 1;
        self.send_acquire(world, client, 0, None);
    }

    /// Asks again under the same id. If the outcome of an earlier request is unknown, the lease counts from that one.
    pub(crate) fn ask_again(&self, world: &mut World, client: usize) {
        if let Phase::Between { attempt, unknown_since } = world.clients[client].phase {
            self.send_acquire(world, client, attempt + 1, unknown_since);
        }
    }

    fn send_acquire(&self, world: &mut World, client: usize, attempt: u8, unknown_since: Option<u8>) {
        let now = world.boot(client);
        let sent = if self.bug == Some(Bug::OwnUpIsNew) { now } else { unknown_since.unwrap_or(now) };
        world.asks -= 1;
        world.clients[client].phase = Phase::Asking { attempt, sent, unknown: unknown_since.is_some() };
        world.send(Message::Acquire { id: world.id(client), attempt });
    }

    /// The reply does not come in time. A driver that lies calls that a refusal.
    pub(crate) fn time_out(&self, world: &mut World, client: usize) {
        if let Phase::Asking { attempt, sent, unknown } = world.clients[client].phase {
            let unknown_since = (unknown || !self.lies).then_some(sent);
            world.clients[client].phase = Phase::Between { attempt, unknown_since };
        }
    }

    /// Leaves; an id of unknown fate is left to the clean-up.
    pub(crate) fn give_up(&self, world: &mut World, client: usize) {
        if matches!(world.clients[client].phase, Phase::Between { unknown_since: Some(_), .. }) {
            self.reap(world, client);
        }
        world.clients[client].phase = Phase::Idle;
    }

    fn reap(&self, world: &mut World, client: usize) {
        self.saw(Sight::Reaped);
        world.send(Message::Release { id: world.id(client) });
    }

    /// Whoever reads the clock sees that its deadline has passed. It does not matter when it looks.
    pub(crate) fn notice(&self, world: &mut World) {
        for client in 0..world.clients.len() {
            let now = world.boot(client);
            if let Phase::Held { deadline, fence, renewal, attempt } = world.clients[client].phase
                && now >= deadline
            {
                self.saw(Sight::LostByTheClock);
                // Its reply is ignored, so nothing need be remembered of it.
                let renewal = renewal.filter(|_| self.bug == Some(Bug::LateReplyRevives));
                let attempt = if renewal.is_some() { attempt } else { 0 };
                world.clients[client].phase = Phase::Lost { fence, renewal, attempt };
            }
        }
    }

    /// Drops messages that can change nothing any more, so that two histories with one future are one state.
    pub(crate) fn forget(&self, world: &mut World) {
        let network = std::mem::take(&mut world.network);
        let (requests, replies): (Vec<_>, Vec<_>) = network.into_iter().partition(|message| message.is_request());
        let coming: Vec<Id> = requests
            .iter()
            .filter(|message| matches!(message, Message::Acquire { .. }))
            .map(|message| message.id())
            .collect();
        let meets_a_stranger = matches!(self.bug, Some(Bug::ReleaseIgnoresOwner | Bug::ExtendRecreates));
        let matters = |request: &Message| {
            meets_a_stranger || coming.contains(&request.id()) || may_be_stored(world, request.id())
        };
        let kept = requests
            .iter()
            .filter(|request| matters(request))
            .chain(replies.iter().filter(|reply| is_awaited(world, **reply)));
        let mut network: Vec<Message> = kept.copied().collect();
        network.sort_unstable();
        world.network = network;
    }

    /// A reply arrives. One that nobody waits for is ignored.
    pub(crate) fn hear(&self, world: &mut World, reply: Message) {
        let client = usize::from(reply.id().0);
        if reply.id() != world.id(client) {
            return;
        }
        match (world.clients[client].phase, reply) {
            (Phase::Asking { attempt, sent, .. }, Message::Granted { attempt: answered, left, fence, .. })
                if attempt == answered =>
            {
                self.granted(world, client, sent, left, fence);
            }
            (Phase::Asking { attempt, unknown, .. }, Message::Contended { attempt: answered, .. })
                if attempt == answered =>
            {
                self.contended(world, client, attempt, unknown);
            }
            (
                Phase::Held { renewal: Some((attempt, sent)), fence, attempt: last, .. },
                Message::Extended { attempt: answered, .. },
            ) if attempt == answered => {
                self.saw(Sight::Renewed);
                let deadline = self.deadline(world, client, sent, TTL);
                world.clients[client].phase = Phase::Held { deadline, fence, renewal: None, attempt: last };
            }
            (Phase::Held { renewal: Some((attempt, _)), fence, .. }, Message::Absent { attempt: answered, .. })
                if attempt == answered =>
            {
                world.clients[client].phase = Phase::Lost { fence, renewal: None, attempt: 0 };
            }
            (
                Phase::Lost { renewal: Some((attempt, sent)), fence, .. },
                Message::Extended { attempt: answered, .. },
            ) if attempt == answered => {
                world.ghost.revived = true;
                let deadline = self.deadline(world, client, sent, TTL);
                world.clients[client].phase = Phase::Held { deadline, fence, renewal: None, attempt };
            }
            _ => {}
        }
    }

    fn contended(&self, world: &mut World, client: usize, attempt: u8, unknown: bool) {
        if unknown {
            // Certain now, but an earlier request under this id may still be on its way: the id is left.
            self.reap(world, client);
            world.clients[client].phase = Phase::Idle;
        } else {
            world.clients[client].phase = Phase::Between { attempt, unknown_since: None };
        }
    }

    fn granted(&self, world: &mut World, client: usize, sent: u8, left: u8, fence: u8) {
        let deadline = self.deadline(world, client, sent, left);
        if world.boot(client) >= deadline {
            self.saw(Sight::GrantedTooLate);
            self.reap(world, client);
            world.clients[client].phase = Phase::Idle;
            return;
        }
        world.clients[client].phase = Phase::Held { deadline, fence, renewal: None, attempt: 0 };
    }

    /// The end of belief: from the send, by the ttl and by what the backend says is left of the lease.
    fn deadline(&self, world: &World, client: usize, sent: u8, left: u8) -> u8 {
        let from = if self.bug == Some(Bug::DeadlineFromReply) { world.boot(client) } else { sent };
        let left = if self.bug == Some(Bug::OwnUpIsNew) { TTL } else { left.min(TTL) };
        from + left.saturating_sub(MARGIN)
    }
}

pub(crate) fn extend_lease(world: &mut World, client: usize) {
    let (id, now) = (world.id(client), world.boot(client));
    let Phase::Held { attempt, renewal, .. } = &mut world.clients[client].phase else { return };
    *attempt += 1;
    *renewal = Some((*attempt, now));
    let attempt = *attempt;
    world.extends -= 1;
    world.send(Message::Extend { id, attempt });
}

/// Gives the lock back: belief ends before the request leaves. A dropped guard does the same, and one whose process
/// is killed is one whose request gets lost.
pub(crate) fn give_back(world: &mut World, client: usize) {
    let id = world.id(client);
    world.clients[client].phase = Phase::Idle;
    world.send(Message::Release { id });
}

/// Whether the storage has this id, or its client may still ask for it.
fn may_be_stored(world: &World, id: Id) -> bool {
    let client = usize::from(id.0);
    world.row.is_some_and(|row| row.id == id)
        || world.open.iter().any(|open| open.request.id() == id)
        || (id == world.id(client) && world.clients[client].phase != Phase::Idle)
}

fn is_awaited(world: &World, reply: Message) -> bool {
    let client = usize::from(reply.id().0);
    let attempt = match world.clients[client].phase {
        Phase::Asking { attempt, .. } => Some(attempt),
        Phase::Held { renewal, .. } | Phase::Lost { renewal, .. } => renewal.map(|(attempt, _)| attempt),
        Phase::Idle | Phase::Between { .. } => None,
    };
    reply.id() == world.id(client) && reply.attempt() == attempt
}
