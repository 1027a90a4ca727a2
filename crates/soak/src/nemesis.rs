//! What goes wrong, and when?
//!
//! Two lanes run at once, so that a worker may be stopped while the network is cut: one for processes and their clocks,
//! one for the network, the servers and their disk. Each deals its faults from a shuffled deck, so every kind comes up
//! before any comes twice; the seed decides the order, the lengths and the victims. What did not come about (a proxy that
//! nothing went through, a replica that would not be promoted) is not counted.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use syncguard_testkit::{Fault, FaultProxy};

use crate::fleet::Fleet;
use crate::random::Random;
use crate::time::{Nanos, now};
use crate::world::{DECIDING_CLOCK_STEPS_MS, Storage, World};
use crate::{TOLERANCE_MS, TTL_MS};

/// How often each kind of fault came about.
pub type Tally = BTreeMap<String, u64>;

/// A fault of processes.
#[derive(Clone, Copy, Debug)]
enum ProcessFault {
    Kill,
    StopBeyondTheLease,
    StopShortly,
    ClockStep,
    ClockDrift,
}

/// A fault of the network, the servers or their disk.
#[derive(Clone, Copy, Debug)]
enum ServerFault {
    Proxy(&'static str, Fault),
    CutReply,
    ForgetConnections,
    Kill,
    Pause,
    ScriptFlush,
    EndConnections,
    PoolerKill,
    ClockStep,
    ClockDrift,
    DiskFull,
    Promote,
    MigrateSlot,
}

/// Injects faults of processes until it is time to stop. A stopped process always goes on in the end.
///
/// # Errors
/// When a worker cannot be replaced.
pub fn haunt_processes(fleet: &mut Fleet, storage: Storage, seed: u64, until: Nanos) -> Result<Tally> {
    let mut random = Random::new(seed);
    let mut tally = Tally::new();
    let mut deck = Vec::new();
    // Each worker's clock returns to the truth by the opposite step.
    let mut offsets = vec![0_i64; fleet.len()];
    while now() < until {
        if deck.is_empty() {
            deck = vec![
                ProcessFault::Kill,
                ProcessFault::StopBeyondTheLease,
                ProcessFault::Kill,
                ProcessFault::StopBeyondTheLease,
                ProcessFault::StopShortly,
                ProcessFault::ClockStep,
                ProcessFault::ClockDrift,
            ];
            random.shuffle(&mut deck);
        }
        let Some(fault) = deck.pop() else { continue };
        let name = strike(fleet, storage, fault, &mut offsets, &mut random)?;
        *tally.entry(name.to_owned()).or_default() += 1;
        sleep(Duration::from_millis(random.between(100, 500)));
    }
    Ok(tally)
}

fn strike(
    fleet: &mut Fleet,
    storage: Storage,
    fault: ProcessFault,
    offsets: &mut [i64],
    random: &mut Random,
) -> Result<&'static str> {
    let last = u64::try_from(fleet.len().saturating_sub(1))?;
    let first = usize::try_from(random.between(0, last))?;
    let holder = fleet.find_holder(first, Duration::from_secs(1))?.map(|(number, _)| number);
    let victim = holder.unwrap_or(first);
    let reach = storage.client_clock_steps_ms();
    match fault {
        ProcessFault::Kill => {
            fleet.kill_and_replace(victim)?;
            Ok(if holder.is_some() { "kill -9 of a holder" } else { "kill -9 of another worker" })
        }
        ProcessFault::StopBeyondTheLease => {
            stop(fleet, victim, TTL_MS + TOLERANCE_MS + random.between(300, 1_000))?;
            Ok("SIGSTOP beyond the lease")
        }
        ProcessFault::StopShortly => {
            stop(fleet, victim, random.between(50, TTL_MS))?;
            Ok("SIGSTOP within the lease")
        }
        ProcessFault::ClockStep => {
            let target = random.around_zero(reach);
            fleet.step_clock(victim, target - offsets[victim])?;
            offsets[victim] = target;
            Ok("client clock step")
        }
        ProcessFault::ClockDrift => {
            let target = random.around_zero(reach);
            drift(fleet, victim, offsets, target)?;
            Ok("client clock drift")
        }
    }
}

/// Many small steps: a clock that runs too fast or too slow for a second.
fn drift(fleet: &Fleet, victim: usize, offsets: &mut [i64], target: i64) -> Result<()> {
    let (from, steps) = (offsets[victim], 20);
    for step in 1..=steps {
        let next = from + (target - from) * step / steps;
        fleet.step_clock(victim, next - offsets[victim])?;
        offsets[victim] = next;
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn stop(fleet: &Fleet, victim: usize, millis: u64) -> Result<()> {
    fleet.signal(victim, Signal::STOP)?;
    sleep(Duration::from_millis(millis));
    fleet.signal(victim, Signal::CONT)
}

/// Injects faults of the network and the servers until it is time to stop, and heals everything at the end.
///
/// # Errors
/// When a server does not start again.
pub fn haunt_servers(world: &mut World, seed: u64, until: Nanos) -> Result<Tally> {
    let mut random = Random::new(seed);
    let mut tally = Tally::new();
    let mut deck = Vec::new();
    let mut is_first = true;
    while now() < until {
        if deck.is_empty() {
            deck = server_deck(world);
            random.shuffle(&mut deck);
            if is_first {
                // Also a short run sees what only this storage has.
                deck.extend(special_faults(world.storage()));
                is_first = false;
            }
        }
        // Nothing can be done to a file on a disk that cannot be filled.
        let Some(fault) = deck.pop() else { break };
        if let Some(name) = cut(world, fault, &mut random)? {
            *tally.entry(name).or_default() += 1;
        }
        sleep(Duration::from_millis(random.between(200, 800)));
    }
    world.heal()?;
    Ok(tally)
}

fn server_deck(world: &World) -> Vec<ServerFault> {
    let mut deck = Vec::new();
    if world.storage() != Storage::Sqlite {
        deck.extend(network_faults());
    }
    deck.extend(world.has_a_disk().then_some(ServerFault::DiskFull));
    deck.extend(special_faults(world.storage()));
    deck
}

fn network_faults() -> Vec<ServerFault> {
    vec![
        ServerFault::Proxy("connections reset", Fault::Reset),
        ServerFault::Proxy("connections refused", Fault::Refuse),
        ServerFault::Proxy("partition (black hole)", Fault::BlackHole),
        ServerFault::Proxy("one-way partition (replies lost)", Fault::DropReplies),
        ServerFault::Proxy("one-way partition (requests lost)", Fault::DropRequests),
        ServerFault::Proxy("one-way partition (replies lost)", Fault::DropReplies),
        ServerFault::Proxy("stall", Fault::Stall),
        ServerFault::Proxy("delay", Fault::Delay(Duration::from_millis(40))),
        ServerFault::Proxy("one byte at a time", Fault::Trickle(Duration::from_millis(1))),
        ServerFault::CutReply,
        ServerFault::CutReply,
        ServerFault::ForgetConnections,
        ServerFault::Kill,
    ]
}

/// What not every storage has.
fn special_faults(storage: Storage) -> Vec<ServerFault> {
    match storage {
        Storage::Sqlite | Storage::Firestore => Vec::new(),
        Storage::Redis => vec![
            ServerFault::ScriptFlush,
            ServerFault::EndConnections,
            ServerFault::Pause,
            ServerFault::ClockStep,
            ServerFault::ClockDrift,
        ],
        Storage::Cluster => vec![
            ServerFault::ScriptFlush,
            ServerFault::EndConnections,
            ServerFault::Pause,
            ServerFault::MigrateSlot,
            ServerFault::Promote,
        ],
        Storage::Sentinel => vec![ServerFault::ScriptFlush, ServerFault::EndConnections, ServerFault::Promote],
        Storage::Postgres => vec![
            ServerFault::PoolerKill,
            ServerFault::EndConnections,
            ServerFault::Pause,
            ServerFault::ClockStep,
            ServerFault::ClockDrift,
        ],
    }
}

/// Injects one fault; `None` if it did not come about.
fn cut(world: &mut World, fault: ServerFault, random: &mut Random) -> Result<Option<String>> {
    let length = Duration::from_millis(random.between(200, 1_500));
    let is_sentinel = world.storage() == Storage::Sentinel;
    let (came_about, name) = match fault {
        ServerFault::Proxy(name, fault) => return Ok(disturb(world, name, random, |proxy| proxy.set(fault), length)),
        ServerFault::CutReply => {
            let bytes = random.between(0, 60);
            let name = "connection cut inside a reply";
            return Ok(disturb(world, name, random, |proxy| proxy.cut_once(bytes), length / 4));
        }
        ServerFault::ForgetConnections => {
            return Ok(forget(world, random, length));
        }
        ServerFault::Kill if is_sentinel => (world.kill_server(length, random)?, "master kill -9 and promotion"),
        ServerFault::Kill => (world.kill_server(length / 3, random)?, "server kill -9 and restart"),
        ServerFault::Pause => (world.pause_server(length, random), "server SIGSTOP"),
        // A server that recovers from the fault before takes no orders.
        ServerFault::ScriptFlush => (world.flush_scripts().unwrap_or(false), "SCRIPT FLUSH"),
        ServerFault::EndConnections => (world.end_connections().unwrap_or(false), "connections ended by the server"),
        ServerFault::PoolerKill => (world.replace_pooler()?, "pooler kill -9 and restart"),
        ServerFault::ClockStep => (world.set_server_clock(server_clock(random), 1), "server clock step"),
        ServerFault::ClockDrift => (world.set_server_clock(server_clock(random), 20), "server clock drift"),
        ServerFault::DiskFull => (world.fill_disk(length)?, "disk full"),
        ServerFault::Promote if is_sentinel => (world.promote_replica()?, "master cut off and promotion"),
        ServerFault::Promote => (world.promote_replica()?, "failover in order"),
        ServerFault::MigrateSlot => (world.migrate_slot(random)?, "slot migration"),
    };
    Ok(came_about.then(|| name.to_owned()))
}

/// Makes the connections of clients black holes for good. Not those between nodes: a node that still hears from another
/// on its second connection never gives the first one up.
fn forget(world: &World, random: &mut Random, length: Duration) -> Option<String> {
    let is_between = world.storage() == Storage::Postgres && random.one_in(3);
    let proxy = random.pick(if is_between { world.between() } else { world.front() })?;
    let before = proxy.counts().faults;
    proxy.silence_existing();
    sleep(length);
    let place = if is_between { " between pooler and server" } else { "" };
    (proxy.counts().faults > before).then(|| format!("half-open connections{place}"))
}

fn server_clock(random: &mut Random) -> i64 {
    random.around_zero(DECIDING_CLOCK_STEPS_MS)
}

/// Disturbs one of the proxies for a while, and tells where, if anything went through it.
fn disturb(
    world: &World,
    name: &str,
    random: &mut Random,
    begin: impl Fn(&FaultProxy),
    length: Duration,
) -> Option<String> {
    let is_between = !world.between().is_empty() && random.one_in(3);
    let proxy = random.pick(if is_between { world.between() } else { world.front() })?;
    let before = proxy.counts().faults;
    begin(proxy);
    sleep(length);
    proxy.set(Fault::Pass);
    let place = match (is_between, world.storage()) {
        (true, Storage::Cluster) => " between nodes",
        (true, _) => " between pooler and server",
        (false, _) => "",
    };
    (proxy.counts().faults > before).then(|| format!("{name}{place}"))
}
