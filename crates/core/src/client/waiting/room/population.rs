//! What becomes of many processes that wait, give up, are killed, stall, or hold futures that nobody polls?
//!
//! Each seed is a world: processes with their real [`Room`]s, a modelled server with one lock, and a random nemesis. Three
//! things are asserted. *Conservation*: the lock is not free for longer than a bound while somebody who can ask waits.
//! *Recovery*: after a stall no more give up than before. *No starvation*: whoever has no limit is served.
//! `a_mistake_of_…` plants what would break them, and sees it.
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::time::{Clock, SystemClock};

/// Microseconds since the world began.
type Time = u64;
const MS: Time = 1_000;
const SECOND: Time = 1_000 * MS;
const TTL: Time = 2 * SECOND;
const PROCESSES: usize = 10;
/// How long the lock may be free beside somebody who waits and can ask. The worst is a first whose future is not polled:
/// it is called and passed over after a second, by those whose retries are due in the meantime.
const BOUND: Time = 2 * SECOND;

/// What is wrong with the world, on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// Places of the dead and of those who gave up stay in the line: whose turn it is hears nothing.
    DeadPlaces,
    /// A hint is lost with the waiter that took it, and nobody follows a schedule.
    NoSchedule,
}

#[derive(Clone, Copy)]
struct Nature {
    /// Whether a release is told to a process that waits.
    hints: bool,
    /// How often a task of each process comes: a lock that nobody else wants next leaves a mistake alone with its victim.
    every: Time,
    /// What goes wrong: kills, stalls of processes, futures that are not polled, a storage that fails.
    nemesis: bool,
    mistake: Mistake,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum What {
    Arrive {
        process: usize,
    },
    /// The request of this waiter reaches the server.
    Reach {
        process: usize,
        waiter: u64,
    },
    Answer {
        process: usize,
        waiter: u64,
        got: Option<bool>,
        free_in: Time,
    },
    /// Its timer or its bell; outdated unless the version is the present one.
    Move {
        process: usize,
        waiter: u64,
        version: u64,
    },
    Hint {
        process: usize,
    },
    Release {
        process: usize,
        waiter: u64,
    },
    Leave {
        process: usize,
        waiter: u64,
    },
    Nemesis,
}

struct Task {
    waiter: Waiter,
    bell: Arc<Notify>,
    came: Time,
    has_limit: bool,
    /// Its step. Another one outdates its timer.
    version: u64,
    listens: bool,
    /// Nobody polls its future.
    is_frozen: bool,
}

#[derive(Default)]
struct Process {
    room: Room,
    tasks: BTreeMap<u64, Task>,
    /// A hint that nobody listened to yet.
    hint: bool,
    stalled_until: Time,
    /// When a release was last told to it.
    told: Time,
}

struct World {
    nature: Nature,
    start: Instant,
    now: Time,
    dice: u64,
    events: BinaryHeap<Reverse<(Time, u64, What)>>,
    sequence: u64,
    processes: Vec<Process>,
    holder: Option<(usize, u64)>,
    /// When its lease ends, unless it lives and renews it.
    lease_end: Time,
    free_since: Time,
    fails_until: Time,
    seen: Seen,
}

#[derive(Default, Debug)]
struct Seen {
    served: u32,
    asked: u32,
    /// When somebody with a limit gave up, and how many such came, by tenths of the world.
    gave_up: [u32; 10],
    came: [u32; 10],
    longest_free: Time,
    longest_wait: Time,
}

const END: Time = 40 * SECOND;

impl World {
    fn new(seed: u64, nature: Nature) -> Self {
        let mut world = Self {
            nature,
            start: Instant::now(),
            now: 0,
            dice: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            events: BinaryHeap::new(),
            sequence: 0,
            processes: (0..PROCESSES).map(|_| Process::default()).collect(),
            holder: None,
            lease_end: 0,
            free_since: 0,
            fails_until: 0,
            seen: Seen::default(),
        };
        for process in 0..PROCESSES {
            let at = world.roll(nature.every);
            world.after(at, What::Arrive { process });
        }
        if nature.nemesis {
            world.after(8 * SECOND, What::Nemesis);
        }
        world
    }

    fn roll(&mut self, below: u64) -> u64 {
        self.dice ^= self.dice >> 12;
        self.dice ^= self.dice << 25;
        self.dice ^= self.dice >> 27;
        (self.dice.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    }

    fn chance(&mut self) -> f64 {
        self.roll(1 << 20) as f64 / f64::from(1 << 20)
    }

    fn after(&mut self, pause: Time, what: What) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + pause, self.sequence, what)));
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_micros(self.now)
    }

    fn run(mut self) -> Seen {
        while let Some(Reverse((at, _, what))) = self.events.pop() {
            if at > END {
                break;
            }
            self.now = self.now.max(at);
            // A stopped process does nothing until it is continued; the server does not wait for it.
            if let Some(until) = what.process().map(|number| self.processes[number].stalled_until)
                && until > self.now
            {
                self.after(until - self.now, what);
                continue;
            }
            self.happen(what);
        }
        self.seen
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Arrive { process } => self.arrive(process),
            What::Reach { process, waiter } => self.reach(process, waiter),
            What::Answer { process, waiter, got, free_in } => self.answer(process, waiter, got, free_in),
            What::Move { process, waiter, version } => {
                if self.processes[process].tasks.get(&waiter).is_some_and(|task| task.version == version) {
                    self.on(process, waiter, Event::Moved);
                }
            }
            What::Hint { process } => self.hint(process),
            What::Release { process, waiter } => {
                if self.holder == Some((process, waiter)) {
                    self.free();
                }
            }
            What::Leave { process, waiter } => self.leave(process, waiter),
            What::Nemesis => self.nemesis(),
        }
    }

    /// Tasks hold for 20 ms. Ten processes with one each 600 ms take a third of the lock's time.
    fn arrive(&mut self, process: usize) {
        let pause = self.nature.every * 3 / 4 + self.roll(self.nature.every / 2);
        self.after(pause, What::Arrive { process });
        let tenth = (self.now * 10 / (END + 1)) as usize;
        let has_limit = self.roll(4) > 0;
        self.seen.came[tenth] += u32::from(has_limit);
        let policy = RetryPolicy {
            timeout: has_limit.then_some(Duration::from_secs(1)),
            max_retries: None,
            max_delay: Some(Duration::from_secs(1)),
            ..RetryPolicy::default()
        };
        let (number, now) = (self.sequence, self.instant());
        let is_frozen = self.nature.nemesis && self.now < END / 2 && self.roll(20) == 0;
        let waiter = Waiter::new(number, policy, now, now);
        let bell = self.processes[process].room.enter(&waiter);
        let task = Task { waiter, bell, came: self.now, has_limit, version: 0, listens: false, is_frozen: false };
        self.processes[process].tasks.insert(number, task);
        self.on(process, number, Event::Subscribed { hears: self.nature.hints, look: false });
        if is_frozen && let Some(task) = self.processes[process].tasks.get_mut(&number) {
            // Polled once, and dropped in a while.
            task.is_frozen = true;
            self.after(3 * SECOND, What::Leave { process, waiter: number });
        }
    }

    fn on(&mut self, process: usize, waiter: u64, event: Event) {
        let (now, chance) = (self.instant(), self.chance());
        let Some(task) = self.processes[process].tasks.get_mut(&waiter) else { return };
        if task.is_frozen {
            return;
        }
        task.version += 1;
        let version = task.version;
        let step = {
            let Process { room, tasks, .. } = &mut self.processes[process];
            room.on(&mut tasks.get_mut(&waiter).unwrap().waiter, event, now, chance)
        };
        let task = self.processes[process].tasks.get_mut(&waiter).unwrap();
        task.listens = matches!(step, Step::Listen(_));
        match step {
            Step::Ask => {
                self.seen.asked += 1;
                let pause = 100 + self.roll(400);
                self.after(pause, What::Reach { process, waiter });
            }
            Step::GiveUp => self.leave(process, waiter),
            Step::Sleep(_) | Step::Listen(_) if self.nature.mistake == Mistake::NoSchedule => {}
            Step::Sleep(until) | Step::Listen(until) => {
                let until = (until - self.start).as_micros() as Time + 1;
                self.after(until.saturating_sub(self.now), What::Move { process, waiter, version });
            }
        }
        self.ring(process);
        if self.processes[process].hint {
            self.hint(process);
        }
    }

    /// Lets everybody move whose bell rang.
    fn ring(&mut self, process: usize) {
        let rung: Vec<(u64, u64)> = self.processes[process]
            .tasks
            .iter()
            .filter(|(_, task)| !task.is_frozen && !task.waiter.is_asking)
            .filter(|(_, task)| pin!(task.bell.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready())
            .map(|(number, task)| (*number, task.version))
            .collect();
        for (waiter, version) in rung {
            self.after(20, What::Move { process, waiter, version });
        }
    }

    fn reach(&mut self, process: usize, waiter: u64) {
        if self.holder.is_some() && self.lease_end <= self.now {
            self.free();
        }
        let back = 100 + self.roll(400);
        let got = if self.fails_until > self.now {
            None
        } else if self.holder.is_some() {
            Some(false)
        } else {
            let came = self.processes[process].tasks.get(&waiter).map_or(self.now, |task| task.came);
            let free = self.now.saturating_sub(self.free_since.max(came).max(self.fails_until));
            self.seen.longest_free = self.seen.longest_free.max(free);
            self.holder = Some((process, waiter));
            Some(true)
        };
        if got == Some(true) {
            self.lease_end = self.now + TTL;
        }
        let free_in = self.lease_end.saturating_sub(self.now);
        self.after(back, What::Answer { process, waiter, got, free_in });
    }

    fn answer(&mut self, process: usize, waiter: u64, got: Option<bool>, free_in: Time) {
        let contention = Contention::free_in(Duration::from_micros(free_in));
        let contention = if self.nature.hints { contention.announcing_release() } else { contention };
        match got {
            None => self.on(process, waiter, Event::Failed),
            Some(false) => self.on(process, waiter, Event::Contended(contention)),
            Some(true) => self.hold(process, waiter),
        }
    }

    fn hold(&mut self, process: usize, waiter: u64) {
        let (now, hold) = (self.instant(), self.roll(20 * MS) + 10 * MS);
        // One hold of three seconds, renewed: the stall.
        let stalls = self.now / (16 * SECOND) != (self.now + hold) / (16 * SECOND) && !self.nature.nemesis;
        let hold = if stalls { 3 * SECOND } else { hold };
        let Some(mut task) = self.processes[process].tasks.remove(&waiter) else {
            // It left meanwhile: its request goes on in the background and gives the lock back.
            return self.after(MS, What::Release { process, waiter });
        };
        self.lease_end = self.lease_end.max(self.now + hold + TTL);
        self.processes[process].room.acquired(&mut task.waiter, Ttl::new(Duration::from_micros(TTL)).unwrap(), now);
        self.seen.served += 1;
        if !task.has_limit {
            self.seen.longest_wait = self.seen.longest_wait.max(self.now - task.came);
        }
        self.ring(process);
        self.after(hold, What::Release { process, waiter });
    }

    fn free(&mut self) {
        self.holder = None;
        self.free_since = self.now;
        if !self.nature.hints {
            return;
        }
        // The turn of the process that was told longest ago, of those in which somebody waits.
        let takes_the_dead = self.nature.mistake == Mistake::DeadPlaces;
        let waits = |process: &Process| takes_the_dead || !process.tasks.is_empty();
        let in_line = self.processes.iter().enumerate().filter(|(_, process)| waits(process));
        let Some((process, _)) = in_line.min_by_key(|(_, process)| process.told) else { return };
        self.processes[process].told = self.now;
        let pause = 100 + self.roll(400);
        self.after(pause, What::Hint { process });
    }

    fn hint(&mut self, process: usize) {
        let listening = self.processes[process].tasks.iter().find(|(_, task)| task.listens).map(|(number, _)| *number);
        // A future that nobody polls takes the hint as well, and keeps it.
        self.processes[process].hint = listening.is_none();
        if let Some(waiter) = listening {
            self.on(process, waiter, Event::MayBeFree);
        }
    }

    fn leave(&mut self, process: usize, waiter: u64) {
        let now = self.instant();
        let Some(mut task) = self.processes[process].tasks.remove(&waiter) else { return };
        let tenth = (self.now * 10 / (END + 1)) as usize;
        self.seen.gave_up[tenth] += u32::from(task.has_limit && !task.is_frozen);
        if !task.is_frozen && self.holder.is_none() {
            let free = self.now.saturating_sub(self.free_since.max(task.came).max(self.fails_until));
            self.seen.longest_free = self.seen.longest_free.max(free);
        }
        self.processes[process].room.leave(&mut task.waiter, now);
        self.ring(process);
    }

    fn nemesis(&mut self) {
        if self.now < END / 2 {
            let pause = 200 * MS + self.roll(800 * MS);
            self.after(pause, What::Nemesis);
        }
        let number = self.roll(PROCESSES as u64) as usize;
        match self.roll(3) {
            0 => {
                // Killed: its lock stays until its lease ends. Another process takes its place.
                self.processes[number] = Process::default();
                if self.holder.is_some_and(|(process, _)| process == number) {
                    self.lease_end = self.now + TTL;
                }
            }
            1 => {
                self.processes[number].stalled_until = self.now + self.roll(1_500 * MS);
                if self.holder.is_some_and(|(process, _)| process == number) {
                    self.lease_end = self.now + TTL;
                }
            }
            _ => self.fails_until = self.now + self.roll(500 * MS),
        }
    }
}

impl What {
    fn process(self) -> Option<usize> {
        match self {
            Self::Arrive { process }
            | Self::Reach { process, .. }
            | Self::Answer { process, .. }
            | Self::Move { process, .. }
            | Self::Hint { process }
            | Self::Release { process, .. }
            | Self::Leave { process, .. } => Some(process),
            Self::Nemesis => None,
        }
    }
}

fn worlds(nature: Nature) -> impl Iterator<Item = Seen> {
    // A quiet world is over soon, so there are more of them.
    let count = if nature.every > SECOND { 3_000 } else { 300 };
    (1..=count).map(move |seed| World::new(seed, nature).run())
}

/// The share that gives up, in per mille: before the stall, and when it has been over for a while.
fn share_that_gives_up(nature: Nature) -> (u32, u32) {
    let (mut before, mut after, mut came) = (0, 0, [0, 0]);
    for seen in worlds(nature).take(200) {
        before += seen.gave_up[1..4].iter().sum::<u32>();
        came[0] += seen.came[1..4].iter().sum::<u32>();
        after += seen.gave_up[6..8].iter().sum::<u32>();
        came[1] += seen.came[6..8].iter().sum::<u32>();
    }
    (before * 1_000 / came[0], after * 1_000 / came[1])
}

const BUSY: Nature = Nature { hints: true, every: 600 * MS, nemesis: false, mistake: Mistake::None };
const QUIET: Nature = Nature { every: 6 * SECOND, nemesis: true, ..BUSY };

#[test]
fn a_free_lock_finds_whoever_waits_for_it_whatever_goes_wrong() {
    for nature in [BUSY, Nature { hints: false, ..BUSY }, QUIET, Nature { hints: false, ..QUIET }] {
        let (mut count, mut longest_free, mut longest_wait, mut served, mut asked) = (0, 0, 0, 0, 0);
        let began = SystemClock.boot();
        for seen in worlds(Nature { nemesis: true, ..nature }) {
            count += 1;
            longest_free = longest_free.max(seen.longest_free);
            longest_wait = longest_wait.max(seen.longest_wait);
            served += seen.served;
            asked += seen.asked;
        }
        println!(
            "hints {}, a task each {} ms: {count} worlds, {:.0} per second; {asked} requests for {served} turns, free \
             at most {} ms, waited at most {} ms",
            nature.hints,
            nature.every / MS,
            f64::from(count) / SystemClock.boot().since(began).as_secs_f64(),
            longest_free / MS,
            longest_wait / MS
        );
        assert!(longest_free <= BOUND, "free for {} ms beside a waiter", longest_free / MS);
        assert!(longest_wait <= 10 * SECOND, "waited {} ms", longest_wait / MS);
    }
}

#[test]
fn what_a_stall_did_is_gone_after_it() {
    for hints in [true, false] {
        let (before, after) = share_that_gives_up(Nature { hints, ..BUSY });
        println!("hints {hints}: {before} per mille give up before the stall, {after} after it");
        assert!(after <= before + 5, "{before} per mille gave up before the stall and {after} after it");
    }
}

#[test]
fn a_mistake_of_the_hints_or_of_the_schedule_is_seen() {
    for mistake in [Mistake::DeadPlaces, Mistake::NoSchedule] {
        let free = worlds(Nature { mistake, ..QUIET }).map(|seen| seen.longest_free).max().unwrap();
        println!("{mistake:?}: free for {} ms", free / MS);
        assert!(free > BOUND, "{mistake:?} is not seen");
    }
}
