//! What a backend does with a request, in one step; and, broken on purpose, in two.

use crate::model::protocol::{Authority, Bug, Protocol, Sight};
use crate::model::world::{Client, Ghost, Id, Message, Open, Row, TOLERANCE, TTL, World};

impl Protocol {
    /// The clock by which a request of this client is judged.
    pub(crate) fn now(&self, world: &World, client: u8) -> u8 {
        match self.authority {
            Authority::Server => world.time + world.stepped,
            Authority::Clients => world.time + world.clients[usize::from(client)].ahead,
        }
    }

    /// The fastest clock that may judge: if a lease lives by this one, nobody can take it.
    pub(crate) fn latest_now(&self, world: &World) -> u8 {
        match self.authority {
            Authority::Server => world.time + world.stepped,
            Authority::Clients => world.time + world.clients.iter().map(|client| client.ahead).max().unwrap_or(0),
        }
    }

    /// The one liveness predicate: `expires_at > now − tolerance`.
    pub(crate) fn is_live(&self, expires: u8, now: u8) -> bool {
        let tolerance = if self.bug == Some(Bug::NoTolerance) { 0 } else { TOLERANCE };
        expires + tolerance > now
    }

    /// A request arrives.
    pub(crate) fn serve(&self, world: &mut World, request: Message) {
        let splits = match self.bug {
            Some(Bug::NoRowLock) => !matches!(request, Message::Release { .. }),
            Some(Bug::FenceBeforeLock) => matches!(request, Message::Acquire { .. }),
            _ => false,
        };
        if splits {
            self.read(world, request);
        } else {
            let live = self.sees_live(world, request.id());
            let row = world.row;
            self.write(world, Open { request, row, fence: 0, live });
        }
    }

    /// The first half of a request that is not atomic.
    fn read(&self, world: &mut World, request: Message) {
        let live = self.sees_live(world, request.id());
        let fence = if self.bug == Some(Bug::FenceBeforeLock) {
            world.counter += 1;
            world.counter
        } else {
            0
        };
        let open = Open { request, row: world.row, fence, live };
        let place = world.open.partition_point(|known| *known <= open);
        world.open.insert(place, open);
    }

    /// The second half: decides by what was read, or, if only the fence was taken too early, by what is there now.
    pub(crate) fn commit(&self, world: &mut World, open: Open) {
        let current = if self.bug == Some(Bug::FenceBeforeLock) {
            Open { row: world.row, live: self.sees_live(world, open.request.id()), ..open }
        } else {
            open
        };
        self.write(world, current);
    }

    fn sees_live(&self, world: &World, id: Id) -> bool {
        world.row.is_some_and(|row| self.is_live(row.expires, self.now(world, id.0)))
    }

    fn write(&self, world: &mut World, read: Open) {
        match read.request {
            Message::Acquire { id, attempt } => self.acquire(world, read, id, attempt),
            Message::Extend { id, attempt } => self.extend(world, read, id, attempt),
            Message::Release { id } => self.release(world, id),
            reply => unreachable!("{reply:?} is no request"),
        }
    }

    fn acquire(&self, world: &mut World, read: Open, id: Id, attempt: u8) {
        let now = self.now(world, id.0);
        match read.row.filter(|_| read.live) {
            Some(row) if row.id == id => {
                self.saw(Sight::OwnedUp);
                let left = row.expires.saturating_sub(now);
                world.send(Message::Granted { id, attempt, left, fence: row.fence });
            }
            Some(_) => world.send(Message::Contended { id, attempt }),
            None => {
                if read.row.is_some() {
                    self.saw(Sight::TakenOver);
                }
                let fence = if read.fence > 0 {
                    read.fence
                } else {
                    world.counter += 1;
                    world.counter
                };
                self.judge_grant(world, id, fence);
                let row = Row { id, expires: now + TTL, fence };
                world.row = Some(row);
                lease(&mut world.ghost, id, row.expires);
                world.send(Message::Granted { id, attempt, left: TTL, fence });
            }
        }
    }

    fn extend(&self, world: &mut World, read: Open, id: Id, attempt: u8) {
        let now = self.now(world, id.0);
        let owned = read.row.filter(|row| row.id == id);
        let recreates = self.bug == Some(Bug::ExtendRecreates);
        if !recreates && (owned.is_none() || !read.live) {
            world.send(Message::Absent { id, attempt });
            return;
        }
        let is_owner = world.row.is_some_and(|row| row.id == id);
        world.ghost.touched_by_a_stranger |= !is_owner;
        let fence = read.row.map_or(world.counter, |row| row.fence);
        world.row = Some(Row { id, expires: now + TTL, fence });
        lease(&mut world.ghost, id, now + TTL);
        world.send(Message::Extended { id, attempt });
    }

    fn release(&self, world: &mut World, id: Id) {
        let Some(row) = world.row else { return };
        if row.id != id && self.bug != Some(Bug::ReleaseIgnoresOwner) {
            return;
        }
        world.ghost.touched_by_a_stranger |= row.id != id;
        self.remove(world, row.id);
    }

    /// Clean-up of a dead row. The counter stays.
    pub(crate) fn purge(&self, world: &mut World) {
        if let Some(row) = world.row {
            self.remove(world, row.id);
        }
    }

    fn remove(&self, world: &mut World, id: Id) {
        world.row = None;
        world.ghost.leases.retain(|(lease, _)| *lease != id);
        if self.bug == Some(Bug::CounterLeavesWithTheRow) {
            world.counter = 0;
        }
    }

    fn judge_grant(&self, world: &mut World, id: Id, fence: u8) {
        let now = self.now(world, id.0);
        let taken = |lease: &(Id, u8)| lease.0 != id && lease.1 + TOLERANCE > now;
        let ghost = &mut world.ghost;
        ghost.granted_while_live |= ghost.leases.iter().any(taken);
        ghost.fence_fell |= fence <= ghost.highest;
        ghost.highest = ghost.highest.max(fence);
    }

    /// Forgets leases that are dead by every clock, so that two histories with one future are one state.
    pub(crate) fn bury(&self, world: &mut World) {
        let earliest = match self.authority {
            Authority::Server => world.time + world.stepped,
            Authority::Clients => {
                world.time + world.clients.iter().map(|client: &Client| client.ahead).min().unwrap_or(0)
            }
        };
        world.ghost.leases.retain(|(_, expires)| expires + TOLERANCE > earliest);
    }
}

fn lease(ghost: &mut Ghost, id: Id, expires: u8) {
    ghost.leases.retain(|(known, _)| *known != id);
    let place = ghost.leases.partition_point(|known| *known <= (id, expires));
    ghost.leases.insert(place, (id, expires));
}
