//! Which worker processes are there, and which of them holds a lock?

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::Signal;
use syncguard_testkit::clock::SteppableClock;
use syncguard_testkit::process::ServerProcess;

use crate::history::{Event, What};
use crate::worker::Orders;

/// The worker processes of a run.
#[derive(Debug)]
pub struct Fleet {
    workers: Vec<Worker>,
    program: PathBuf,
    folder: PathBuf,
}

#[derive(Debug)]
struct Worker {
    process: ServerProcess,
    clock: SteppableClock,
    orders: Orders,
    generation: u32,
    follower: Follower,
}

impl Fleet {
    /// Starts one worker per order; the path of each history is set here.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(program: PathBuf, folder: PathBuf, orders: Vec<Orders>) -> Result<Self> {
        let mut fleet = Self { workers: Vec::new(), program, folder };
        for (number, mut orders) in orders.into_iter().enumerate() {
            let home = fleet.folder.join(format!("worker-{number}"));
            fs::create_dir_all(&home)?;
            let clock = SteppableClock::create(&home)?;
            orders.history = fleet.history(number, 0);
            let process = fleet.spawn(number, &orders, &clock)?;
            let follower = Follower::new(orders.history.clone());
            fleet.workers.push(Worker { process, clock, orders, generation: 0, follower });
        }
        Ok(fleet)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Kills a worker with SIGKILL and starts another in its place, with a history of its own.
    ///
    /// # Errors
    /// When that cannot be started.
    pub fn kill_and_replace(&mut self, number: usize) -> Result<()> {
        self.workers[number].process.kill()?;
        let generation = self.workers[number].generation + 1;
        let mut orders = self.workers[number].orders.clone();
        orders.history = self.history(number, generation);
        orders.seed = orders.seed.wrapping_add(1);
        let process = self.spawn(number, &orders, &self.workers[number].clock)?;
        let worker = &mut self.workers[number];
        worker.follower = Follower::new(orders.history.clone());
        worker.process = process;
        worker.orders = orders;
        worker.generation = generation;
        Ok(())
    }

    /// Kills all of them with SIGKILL.
    ///
    /// # Errors
    /// When one cannot be waited for.
    pub fn kill_all(&mut self) -> Result<()> {
        self.workers.iter_mut().try_for_each(|worker| worker.process.kill().map(drop))
    }

    /// Sends a worker a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, number: usize, signal: Signal) -> Result<()> {
        self.workers[number].process.signal(signal)
    }

    /// Moves the wall clock of a worker; steps add up.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn step_clock(&self, number: usize, milliseconds: i64) -> Result<()> {
        self.workers[number].clock.step(milliseconds)
    }

    /// Waits for a worker that holds a lock now, and tells its number and the key; `None` when nobody does for long.
    ///
    /// # Errors
    /// When a history cannot be read.
    pub fn find_holder(&mut self, first: usize, patience: Duration) -> Result<Option<(usize, String)>> {
        let deadline = Instant::now() + patience;
        loop {
            for step in 0..self.len() {
                let number = (first + step) % self.len();
                if let Some(key) = self.workers[number].follower.held_key()? {
                    return Ok(Some((number, key)));
                }
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until every worker has left by itself. Returns how many had to be killed.
    ///
    /// # Errors
    /// When a process cannot be waited for.
    pub fn wait_until_left(&mut self, patience: Duration) -> Result<u32> {
        let deadline = Instant::now() + patience;
        let mut hung = 0;
        for worker in &mut self.workers {
            while worker.process.is_running() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            if worker.process.is_running() {
                worker.process.kill()?;
                hung += 1;
            }
        }
        Ok(hung)
    }

    fn spawn(&self, number: usize, orders: &Orders, clock: &SteppableClock) -> Result<ServerProcess> {
        let mut command = Command::new(&self.program);
        command.arg("worker").arg(format!("--url={}", orders.url));
        command.arg("--history").arg(&orders.history).arg("--resources").arg(&orders.resources);
        for (name, value) in [
            ("--seed", orders.seed),
            ("--keys", orders.keys),
            ("--tasks", orders.tasks),
            ("--ttl-ms", orders.ttl_ms),
            ("--until", orders.until),
        ] {
            command.arg(format!("{name}={value}"));
        }
        command.args(orders.nap_ms.map(|millis| format!("--nap-ms={millis}")));
        command.args(orders.credulous.then_some("--credulous"));
        clock.apply(&mut command);
        let log = self.folder.join(format!("worker-{number}.log"));
        ServerProcess::spawn("a worker", command, &log, Signal::KILL)
    }

    fn history(&self, number: usize, generation: u32) -> PathBuf {
        self.folder.join(format!("worker-{number}-{generation}.jsonl"))
    }
}

/// Reads a history while it grows.
#[derive(Debug)]
struct Follower {
    path: PathBuf,
    read: u64,
    holds: Vec<(String, String)>,
    over: HashSet<String>,
}

impl Follower {
    fn new(path: PathBuf) -> Self {
        Self { path, read: 0, holds: Vec::new(), over: HashSet::new() }
    }

    /// The key of a lock that this process was granted and has not begun to give back.
    fn held_key(&mut self) -> Result<Option<String>> {
        let Ok(mut file) = File::open(&self.path) else { return Ok(None) };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        self.read += u64::try_from(whole)?;
        for line in text[..whole].lines() {
            let Event(_, what) = serde_json::from_str(line).context("a history holds events")?;
            match what {
                What::Granted { key, id, .. } => self.holds.push((id, key)),
                What::Over { id, .. } | What::Releasing { id } => drop(self.over.insert(id)),
                _ => {}
            }
        }
        let over = std::mem::take(&mut self.over);
        self.holds.retain(|(id, _)| !over.contains(id));
        Ok(self.holds.last().map(|(_, key)| key.clone()))
    }
}
