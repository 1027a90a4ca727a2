//! How does one run go, from the first process to the verdict?

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use syncguard::Locker;

use crate::check::{self, Operation, Probe, Violation};
use crate::fleet::Fleet;
use crate::history::{Answer, Event, History, What};
use crate::nemesis::{self, Tally};
use crate::resource::{Resources, stale_writes};
use crate::scoreboard::Scoreboard;
use crate::time::{MILLI, Nanos, nanos, now};
use crate::worker::Orders;
use crate::world::{SLACK_MS, Storage, World};
use crate::{TOLERANCE_MS, TTL_MS};

/// How long workers may take to leave: their longest wait, their longest hold, and a very busy machine.
const LEAVE_WITHIN: Duration = Duration::from_mins(4);

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The storage.
    pub storage: Storage,
    /// How long the workers contend.
    pub length: Duration,
    /// What chance begins with.
    pub seed: u64,
    /// The program that has the command `worker`.
    pub program: PathBuf,
    /// Where histories and resources go; must exist.
    pub folder: PathBuf,
    /// How many processes contend.
    pub workers: u64,
}

/// Runs workers and nemesis, waits until everybody has left, and checks what was seen.
///
/// # Errors
/// When a server or a worker cannot be started, or a history cannot be read. Violations are no error: they are in the
/// scoreboard.
pub fn run(options: &Options) -> Result<Scoreboard> {
    let mut world = World::start(options.storage, &options.folder)?;
    let until = now() + nanos(options.length);
    let orders = (0..options.workers).map(|worker| orders(options, &world, worker, until)).collect::<Result<_>>()?;
    let mut fleet = Fleet::start(options.program.clone(), options.folder.clone(), orders)?;
    let faults = haunt(&mut world, &mut fleet, options, until)?;
    let hung = fleet.wait_until_left(LEAVE_WITHIN)?;
    let left = now();
    let histories = History::read_all(&options.folder)?;
    let operations = check::operations(&histories);
    let keys: BTreeSet<String> = operations.iter().map(|operation| operation.key.clone()).collect();
    let probes = probe(&world, keys, left)?;
    let mut scoreboard = judge(options, &histories, &operations)?;
    scoreboard.violations.extend(check::orphans(&probes));
    scoreboard.violations.extend((hung > 0).then(|| Violation::hung(hung)));
    scoreboard.faults.extend(faults);
    scoreboard.replies_lost = world.replies_lost();
    scoreboard.proxy_effects = world.proxy_effects();
    scoreboard.hung = hung;
    Ok(scoreboard)
}

/// Checks the histories of a folder again.
///
/// # Errors
/// When they cannot be read.
pub fn check_folder(storage: Storage, folder: &Path) -> Result<Scoreboard> {
    let options = Options {
        storage,
        length: Duration::ZERO,
        seed: 0,
        program: PathBuf::new(),
        folder: folder.to_owned(),
        workers: 0,
    };
    let histories = History::read_all(folder)?;
    judge(&options, &histories, &check::operations(&histories))
}

fn orders(options: &Options, world: &World, worker: u64, until: Nanos) -> Result<Orders> {
    Ok(Orders {
        url: world.url(usize::try_from(worker)?),
        history: PathBuf::new(),
        resources: options.folder.join("resources"),
        seed: options.seed.wrapping_mul(1_000).wrapping_add(worker * 100),
        keys: 6,
        tasks: 4,
        ttl_ms: TTL_MS,
        until,
        nap_ms: None,
        credulous: false,
    })
}

fn haunt(world: &mut World, fleet: &mut Fleet, options: &Options, until: Nanos) -> Result<Tally> {
    let (storage, seed) = (options.storage, options.seed);
    let (processes, servers) = thread::scope(|scope| {
        let processes = scope.spawn(move || nemesis::haunt_processes(fleet, storage, seed ^ 1, until));
        let servers = scope.spawn(move || nemesis::haunt_servers(world, seed ^ 2, until));
        (processes.join(), servers.join())
    });
    let panicked = "a lane of the nemesis panicked";
    let mut tally = processes.ok().context(panicked)??;
    tally.append(&mut servers.ok().context(panicked)??);
    Ok(tally)
}

/// Takes every key once, after the last lease can have ended.
fn probe(world: &World, keys: BTreeSet<String>, left: Nanos) -> Result<Vec<Probe>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Clients' clocks may have been wrong by less than another tolerance.
        let due = left + (TTL_MS + 2 * TOLERANCE_MS + SLACK_MS) * MILLI;
        tokio::time::sleep(Duration::from_nanos(due.saturating_sub(now()))).await;
        let locker = syncguard::connect(&world.direct_url()).await?;
        let mut probes = Vec::new();
        for key in keys {
            let (tried, contended) = try_once(&locker, &key).await?;
            probes.push(Probe { key, left, tried, contended });
        }
        Ok(probes)
    })
}

/// When the try began, and whether somebody else holds the key. A try that failed is repeated when what it may have
/// taken itself has ended: a busy machine is no orphan.
async fn try_once(locker: &Locker, key: &str) -> Result<(Nanos, bool)> {
    let mut failures = 0;
    loop {
        let tried = now();
        match locker.lock(key).ttl(Duration::from_millis(TTL_MS)).try_acquire().await {
            Ok(guard) => {
                // If this one fails, the lease ends it: nobody else wants the key.
                if let Some(guard) = &guard {
                    drop(guard.release().await);
                }
                return Ok((tried, guard.is_none()));
            }
            Err(error) if failures == 5 => return Err(error.into()),
            Err(_) => failures += 1,
        }
        tokio::time::sleep(Duration::from_millis(TTL_MS + 2 * TOLERANCE_MS)).await;
    }
}

fn judge(options: &Options, histories: &[History], operations: &[Operation]) -> Result<Scoreboard> {
    let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
    let holds = check::holds(histories);
    let signals = check::signals(histories, &holds);
    let linear = check::linearizability(operations, options.storage.shortest_lease_ms() * MILLI);
    let resources = Resources::new(&options.folder.join("resources"))?;
    let stale =
        |kind: &str| -> Result<u64> { Ok(resources.accepted(kind)?.iter().map(|list| stale_writes(list)).sum()) };
    let stale_checked = stale("checked")?;
    // What only a storage can keep that keeps what it has acknowledged.
    let mut exclusion = check::no_two_believers(&holds);
    exclusion.extend(check::at_most_one_release(operations));
    exclusion.extend(linear.violations);
    let mut violations = check::fences_rise(operations);
    violations.extend(signals.late);
    let keeps = options.storage.keeps_what_it_acknowledged();
    let not_promised = if keeps { Vec::new() } else { std::mem::take(&mut exclusion) };
    violations.extend(exclusion);
    violations.extend((stale_checked > 0).then(|| Violation::stale(stale_checked)));
    Ok(Scoreboard {
        storage: options.storage,
        seed: options.seed,
        seconds: options.length.as_secs(),
        faults: faults_of_workers(histories),
        replies_lost: 0,
        proxy_effects: 0,
        operations: count(operations.len()),
        unknown: count(operations.iter().filter(|operation| operation.answer == Answer::Unknown).count()),
        linearizable: linear.checked,
        left_out: linear.left_out,
        holds: count(holds.len()),
        losses: signals.told,
        excused: signals.excused,
        stale_checked,
        stale_unchecked: stale("unchecked")?,
        hung: 0,
        not_promised,
        violations,
    })
}

/// What workers did to themselves.
fn faults_of_workers(histories: &[History]) -> Tally {
    let mut tally = Tally::new();
    for Event(_, what) in histories.iter().flat_map(|history| &history.events) {
        let name = match what {
            What::Forked => "fork with a guard alive",
            What::RuntimeEnded => "runtime shut down with a guard alive",
            _ => continue,
        };
        *tally.entry(name.to_owned()).or_default() += 1;
    }
    tally
}

impl Violation {
    fn stale(writes: u64) -> Self {
        let what = format!("the resource that compares fences accepted {writes} stale writes");
        Self { check: "no stale writes", what }
    }

    fn hung(workers: u32) -> Self {
        Self { check: "everybody leaves", what: format!("{workers} workers did not leave by themselves") }
    }
}
