//! What goes wrong, and when?
//!
//! Two lanes run at once, so that a worker may be stopped while the network is cut: one for processes and their clocks,
//! one for the network and the server. Each deals its faults from a shuffled deck, so every kind comes up before any
//! comes twice; the seed decides the order, the lengths and the victims.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use syncguard_testkit::{Fault, FaultProxy};

use crate::fleet::Fleet;
use crate::random::Random;
use crate::time::{Nanos, now};
use crate::world::{Storage, World};
use crate::{TOLERANCE_MS, TTL_MS};

/// How often each kind of fault was injected.
pub type Tally = BTreeMap<&'static str, u64>;

/// A fault of processes.
#[derive(Clone, Copy, Debug)]
enum ProcessFault {
    Kill,
    StopBeyondTheLease,
    StopShortly,
    ClockStep,
}

/// A fault of the network or the server.
#[derive(Clone, Copy, Debug)]
enum NetworkFault {
    Proxy(&'static str, Fault),
    CutReply,
    ForgetConnections,
    ServerKill,
    ServerPause,
    ScriptFlush,
    EndConnections,
    PoolerKill,
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
                ProcessFault::StopShortly,
                ProcessFault::ClockStep,
            ];
            random.shuffle(&mut deck);
        }
        let Some(fault) = deck.pop() else { continue };
        let name = strike(fleet, storage, fault, &mut offsets, &mut random)?;
        *tally.entry(name).or_default() += 1;
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
    let victim = fleet.find_holder(first, Duration::from_secs(1))?.map_or(first, |(number, _)| number);
    match fault {
        ProcessFault::Kill => {
            fleet.kill_and_replace(victim)?;
            Ok("kill -9 of a holder")
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
            let reach = i64::try_from(storage.clock_steps_ms())?;
            let target = i64::try_from(random.between(0, 2 * storage.clock_steps_ms()))? - reach;
            fleet.step_clock(victim, target - offsets[victim])?;
            offsets[victim] = target;
            Ok("client clock step")
        }
    }
}

fn stop(fleet: &Fleet, victim: usize, millis: u64) -> Result<()> {
    fleet.signal(victim, Signal::STOP)?;
    sleep(Duration::from_millis(millis));
    fleet.signal(victim, Signal::CONT)
}

/// Injects faults of the network and the server until it is time to stop, and heals everything at the end.
///
/// # Errors
/// When the server does not start again.
pub fn haunt_network(world: &mut World, seed: u64, until: Nanos) -> Result<Tally> {
    let mut random = Random::new(seed);
    let mut tally = Tally::new();
    let mut deck = Vec::new();
    while now() < until && world.storage() != Storage::Sqlite {
        if deck.is_empty() {
            deck = network_deck(world.storage());
            random.shuffle(&mut deck);
        }
        let Some(fault) = deck.pop() else { continue };
        let name = cut(world, fault, &mut random)?;
        *tally.entry(name).or_default() += 1;
        sleep(Duration::from_millis(random.between(200, 800)));
    }
    world.heal();
    Ok(tally)
}

fn network_deck(storage: Storage) -> Vec<NetworkFault> {
    let mut deck = vec![
        NetworkFault::Proxy("connections reset", Fault::Reset),
        NetworkFault::Proxy("connections refused", Fault::Refuse),
        NetworkFault::Proxy("black hole", Fault::BlackHole),
        NetworkFault::Proxy("replies lost after the server acted", Fault::DropReplies),
        NetworkFault::Proxy("requests lost", Fault::DropRequests),
        NetworkFault::Proxy("stall", Fault::Stall),
        NetworkFault::Proxy("delay", Fault::Delay(Duration::from_millis(40))),
        NetworkFault::Proxy("one byte at a time", Fault::Trickle(Duration::from_millis(1))),
        NetworkFault::CutReply,
        NetworkFault::CutReply,
        NetworkFault::ForgetConnections,
        NetworkFault::ServerKill,
    ];
    match storage {
        Storage::Redis => {
            deck.extend([NetworkFault::ScriptFlush, NetworkFault::EndConnections, NetworkFault::ServerPause]);
        }
        Storage::Postgres => {
            deck.extend([NetworkFault::PoolerKill, NetworkFault::EndConnections, NetworkFault::ServerPause]);
        }
        Storage::Sqlite | Storage::Firestore => {}
    }
    deck
}

fn cut(world: &mut World, fault: NetworkFault, random: &mut Random) -> Result<&'static str> {
    let length = Duration::from_millis(random.between(200, 1_500));
    match fault {
        NetworkFault::Proxy(name, fault) => {
            if let Some(proxy) = random.pick(world.proxies()) {
                proxy.set(fault);
                sleep(length);
                proxy.set(Fault::Pass);
            }
            Ok(name)
        }
        NetworkFault::CutReply => {
            if let Some(proxy) = random.pick(world.proxies()) {
                proxy.cut_once(random.between(0, 60));
                sleep(length / 4);
                proxy.set(Fault::Pass);
            }
            Ok("connection cut inside a reply")
        }
        NetworkFault::ForgetConnections => {
            random.pick(world.proxies()).inspect(|proxy| FaultProxy::silence_existing(proxy));
            Ok("half-open connections")
        }
        NetworkFault::ServerKill => world.kill_server(length / 3).map(|()| "server kill -9 and restart"),
        NetworkFault::ServerPause => {
            world.pause_server(length);
            Ok("server SIGSTOP")
        }
        NetworkFault::ScriptFlush => world.flush_scripts().map(|()| "SCRIPT FLUSH"),
        NetworkFault::EndConnections => world.end_connections().map(|()| "connections ended by the server"),
        NetworkFault::PoolerKill => world.replace_pooler().map(|()| "pooler kill -9 and restart"),
    }
}
