//! Is there an order of a million contended calls that a correct lock could have answered?
//!
//! Tasks of one process take, extend and release a few keys as fast as the storage answers, in rounds with keys of their
//! own, so that the search over each key stays short. No faults: those are for the worker processes, which are slower.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use syncguard::{Guard, Locker, open};
use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};
use tokio::task::yield_now;

use crate::check::{self, Violation};
use crate::history::{Recorder, What};
use crate::random::Random;
use crate::recorded::Recorded;
use crate::time::{nanos, now};

/// Calls of one round, after which they are checked.
const ROUND: u64 = 4_000;

/// How tasks contend.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What chance begins with.
    pub seed: u64,
    /// How many calls to make, at least.
    pub operations: u64,
    /// How many tasks contend.
    pub tasks: u64,
    /// How many keys they contend for.
    pub keys: u64,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Contention {
    /// Calls to the backend.
    pub operations: u64,
    /// Calls that are part of an order that a correct lock could have answered.
    pub linearizable: u64,
    /// Guards that were handed out.
    pub holds: u64,
    /// What must never be, and was.
    pub violations: Vec<Violation>,
}

/// Where to contend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// The backend in memory.
    Memory,
    /// A file.
    Sqlite,
    /// One Redis, without waiting for its disk.
    Redis,
    /// One `PostgreSQL`, without waiting for its disk.
    Postgres,
}

impl Place {
    /// All of them, with their share of a million.
    pub const SHARES: [(Self, u64); 4] =
        [(Self::Memory, 600_000), (Self::Redis, 250_000), (Self::Sqlite, 100_000), (Self::Postgres, 50_000)];
}

/// Contends at a place with a server of its own.
///
/// # Errors
/// When the server does not start or cannot be reached.
pub fn contend_at(place: Place, plan: &Plan, folder: &Path) -> Result<Contention> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (mut redis, mut postgres) = (None, None);
    let url = match place {
        Place::Memory => "memory:".to_owned(),
        Place::Sqlite => format!("sqlite:{}", folder.join("locks.db").display()),
        Place::Redis => redis.insert(RedisServer::try_start(RedisOptions::new())?).url(),
        Place::Postgres => postgres.insert(PostgresServer::try_start(PostgresOptions::new())?).url(),
    };
    let recorder = Arc::new(Recorder::in_memory());
    let backend = runtime.block_on(open(&url)).context("the storage cannot be opened")?;
    let locker = Locker::new(Recorded::new(backend, recorder.clone()));
    Ok(runtime.block_on(contend(&locker, &recorder, plan)))
}

/// Contends with a client that writes its calls to `recorder`.
pub async fn contend(locker: &Locker, recorder: &Arc<Recorder>, plan: &Plan) -> Contention {
    let mut found = Contention::default();
    for round in 0.. {
        let end = (found.operations + ROUND).min(plan.operations);
        let tasks: Vec<_> = (0..plan.tasks)
            .map(|task| {
                let random = Random::new(plan.seed.wrapping_add(round * 1_000 + task));
                let contender = Contender { locker: locker.clone(), recorder: recorder.clone(), random };
                tokio::spawn(contender.run(round, plan.keys, end))
            })
            .collect();
        for task in tasks {
            task.await.expect("a contender does not panic");
        }
        found.add(recorder);
        if found.operations >= plan.operations || !found.violations.is_empty() {
            break;
        }
    }
    found
}

impl Contention {
    fn add(&mut self, recorder: &Recorder) {
        let histories = [recorder.take()];
        let (operations, holds) = (check::operations(&histories), check::holds(&histories));
        let linear = check::linearizability(&operations, nanos(LEASE));
        let count = |length: usize| u64::try_from(length).unwrap_or(u64::MAX);
        self.operations += count(operations.len());
        self.holds += count(holds.len());
        self.linearizable += linear.checked;
        self.violations.extend(linear.violations);
        self.violations.extend(check::no_two_believers(&holds));
        self.violations.extend(check::fences_rise(&operations));
        self.violations.extend(check::at_most_one_release(&operations));
    }
}

/// Long enough that no lease ends within a round.
const LEASE: Duration = Duration::from_mins(10);

struct Contender {
    locker: Locker,
    recorder: Arc<Recorder>,
    random: Random,
}

impl Contender {
    async fn run(mut self, round: u64, keys: u64, end: u64) {
        while self.recorder.numbered() < end {
            let key = format!("contended-{round}-{}", self.random.between(1, keys));
            let Ok(taken) = self.locker.lock(key).ttl(LEASE).try_acquire().await else { continue };
            match taken {
                Some(guard) => self.hold(guard).await,
                None => yield_now().await,
            }
        }
    }

    async fn hold(&mut self, guard: Guard) {
        let (id, key) = (guard.lock_id().hash().to_string(), guard.key().as_str().to_owned());
        self.recorder.record(What::Granted { key, id: id.clone(), fence: guard.fence().get() });
        for _ in 0..self.random.between(0, 2) {
            yield_now().await;
        }
        if self.random.one_in(4) {
            drop(guard.extend(LEASE).await);
        }
        let asked = now();
        let deadline = asked + nanos(guard.remaining());
        if guard.is_held() {
            self.recorder.record_at(asked, What::Believed { id: id.clone(), deadline });
        }
        self.recorder.record(What::Releasing { id });
        let lock_id = guard.lock_id().clone();
        drop(guard.release().await);
        match self.random.between(0, 9) {
            0 => drop(self.locker.release_id(&lock_id).await),
            1 => drop(self.locker.extend_id(&lock_id, LEASE).await),
            _ => {}
        }
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} calls, {} linearizable, {} locks held, {} violations",
            self.operations,
            self.linearizable,
            self.holds,
            self.violations.len()
        )?;
        for violation in &self.violations {
            writeln!(f, "    {}: {}", violation.check, violation.what)?;
        }
        Ok(())
    }
}
