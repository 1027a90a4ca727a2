//! What does one contending process do?
//!
//! It takes a lock, believes in it, writes to what the lock protects and gives it back; in several tasks at once, by
//! chance with and without renewal, by release, by drop, and with calls that are dropped in the middle. It writes down
//! everything and judges nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use syncguard::{Guard, LockRequest, Locker, open};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::fork::drop_in_a_child;
use crate::history::{PAUSE, Recorder, What};
use crate::random::Random;
use crate::recorded::Recorded;
use crate::resource::Resources;
use crate::time::{MILLI, Nanos, nanos, now};

/// Keys change this often, so that the history of one key stays short enough to be searched.
pub const EPOCH: Nanos = 10_000 * MILLI;

/// The pulse of the runtime.
const PULSE: Duration = Duration::from_millis(50);

/// What a worker is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Orders {
    /// The URL of the locks
    #[arg(long)]
    pub url: String,
    /// The file of this process's history
    #[arg(long)]
    pub history: PathBuf,
    /// The folder of what the locks protect
    #[arg(long)]
    pub resources: PathBuf,
    /// What chance begins with
    #[arg(long)]
    pub seed: u64,
    /// How many keys are contended for
    #[arg(long)]
    pub keys: u64,
    /// How many tasks contend
    #[arg(long)]
    pub tasks: u64,
    /// The lease, in milliseconds
    #[arg(long)]
    pub ttl_ms: u64,
    /// When to leave, in nanoseconds of the boot clock
    #[arg(long)]
    pub until: Nanos,
    /// How long a holder rests between asking and writing, in milliseconds; by chance if absent
    #[arg(long)]
    pub nap_ms: Option<u64>,
    /// A mistake to make, to see it caught: believe without asking the guard
    #[arg(long)]
    pub credulous: bool,
}

/// Contends until it is time to leave.
///
/// # Errors
/// When the history cannot be written.
pub async fn work(orders: Orders) -> Result<()> {
    let recorder = Arc::new(Recorder::create(&orders.history)?);
    let resources = Resources::new(&orders.resources)?;
    let Some(backend) = opened(&orders).await else {
        recorder.record(What::Left);
        return Ok(());
    };
    let locker = Locker::new(Recorded::new(backend, recorder.clone()));
    tokio::spawn(pulse(recorder.clone()));
    let mut tasks = Vec::new();
    for task in 0..orders.tasks {
        let worker = Worker {
            locker: locker.clone(),
            recorder: recorder.clone(),
            resources: resources.clone(),
            random: Random::new(orders.seed ^ (task + 1).wrapping_mul(0x5851_f42d_4c95_7f2d)),
            orders: orders.clone(),
        };
        tasks.push(tokio::spawn(worker.run()));
    }
    for task in tasks {
        task.await?;
    }
    locker.shutdown(Duration::from_secs(10)).await;
    recorder.record(What::Left);
    Ok(())
}

/// The server may be down when a worker starts.
async fn opened(orders: &Orders) -> Option<syncguard::AnyBackend> {
    while now() < orders.until {
        match open(&orders.url).await {
            Ok(backend) => return Some(backend),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
    None
}

/// Notices that the runtime was not polled.
async fn pulse(recorder: Arc<Recorder>) {
    let mut last = now();
    loop {
        sleep(PULSE).await;
        if now() > last + PAUSE {
            recorder.record(What::Gap { from: last });
        }
        last = now();
    }
}

struct Worker {
    locker: Locker,
    recorder: Arc<Recorder>,
    resources: Resources,
    random: Random,
    orders: Orders,
}

impl Worker {
    async fn run(mut self) {
        while now() < self.orders.until {
            if self.random.one_in(400) {
                self.outlive_a_runtime().await;
            }
            let request = self.request();
            if let Some(guard) = self.acquire(request).await {
                self.hold(guard).await;
            }
            sleep(Duration::from_millis(self.random.between(0, 3))).await;
        }
    }

    fn request(&mut self) -> LockRequest {
        let locker = self.locker.clone();
        self.request_of(&locker)
    }

    fn request_of(&mut self, locker: &Locker) -> LockRequest {
        let key = format!("soak-{}-{}", now() / EPOCH, self.random.between(1, self.orders.keys));
        let request = locker
            .lock(key)
            .ttl(Duration::from_millis(self.orders.ttl_ms))
            .timeout(Duration::from_millis(self.orders.ttl_ms))
            .retry_delay(Duration::from_millis(20))
            .max_delay(Duration::from_millis(200));
        if self.random.one_in(2) { request.keep_alive() } else { request }
    }

    /// Waits, tries once, or gives up in the middle.
    async fn acquire(&mut self, request: LockRequest) -> Option<Guard> {
        match self.random.between(0, 9) {
            0 => {
                let patience = Duration::from_millis(self.random.between(0, 20));
                timeout(patience, request.acquire()).await.ok()?.ok()
            }
            1..4 => request.try_acquire().await.ok()?,
            _ => request.acquire().await.ok(),
        }
    }

    async fn hold(&mut self, mut guard: Guard) {
        let (id, key) = (guard.lock_id().hash().to_string(), guard.key().as_str().to_owned());
        let fence = guard.fence().get();
        self.recorder.record(What::Granted { key: key.clone(), id: id.clone(), fence });
        let watcher = tokio::spawn(watch(guard.handle(), id.clone(), self.recorder.clone()));
        for _ in 0..self.random.between(1, 6) {
            if !self.believes(&guard, &id) {
                break;
            }
            if self.random.one_in(400) {
                guard = self.fork_with(guard).await;
            }
            // Whoever is stopped here acts on a belief that may be over: what fences are for.
            sleep(self.nap()).await;
            match self.resources.write(&key, fence) {
                Ok(true) => {}
                Ok(false) => self.recorder.record(What::Refused { key: key.clone(), fence }),
                Err(_) => return,
            }
        }
        self.give_back(guard, id).await;
        watcher.abort();
    }

    /// Forks this process; the child drops its copy of the guard.
    async fn fork_with(&self, guard: Guard) -> Guard {
        let forked = spawn_blocking(move || drop_in_a_child(guard)).await;
        let guard = forked.expect("forking does not panic").expect("a process can be forked");
        self.recorder.record(What::Forked);
        guard
    }

    /// Takes a lock on a runtime of its own, which is shut down while the guard is alive: nobody renews it any more,
    /// nobody can release it, and belief must end in time all the same.
    async fn outlive_a_runtime(&mut self) {
        let (orders, recorder) = (self.orders.clone(), self.recorder.clone());
        let mut other = Self {
            locker: self.locker.clone(),
            recorder: recorder.clone(),
            resources: self.resources.clone(),
            random: Random::new(self.random.bits()),
            orders: orders.clone(),
        };
        let ended = spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let guard = runtime.block_on(async {
                let backend = open(&orders.url).await.ok()?;
                let locker = Locker::new(Recorded::new(backend, recorder.clone()));
                other.request_of(&locker).keep_alive().try_acquire().await.ok()?
            });
            let Some(guard) = guard else { return Ok(()) };
            let (id, key) = (guard.lock_id().hash().to_string(), guard.key().as_str().to_owned());
            recorder.record(What::Granted { key, id: id.clone(), fence: guard.fence().get() });
            runtime.shutdown_background();
            recorder.record(What::RuntimeEnded);
            while other.believes(&guard, &id) && !other.random.one_in(40) {
                std::thread::sleep(Duration::from_millis(50));
            }
            recorder.record(What::Releasing { id });
            drop(guard);
            std::io::Result::Ok(())
        });
        ended.await.expect("the guard outlives its runtime without a panic").expect("a runtime can be started");
    }

    fn believes(&self, guard: &Guard, id: &str) -> bool {
        let asked = now();
        let remaining = guard.remaining();
        if remaining.is_zero() && !self.orders.credulous {
            let reason = guard.loss().map_or("unknown", syncguard::LossReason::as_str).to_owned();
            self.recorder.record(What::Over { id: id.to_owned(), reason });
            return false;
        }
        let deadline = asked + nanos(remaining);
        self.recorder.record_at(asked, What::Believed { id: id.to_owned(), deadline });
        true
    }

    async fn give_back(&mut self, guard: Guard, id: String) {
        self.recorder.record(What::Releasing { id });
        if self.random.one_in(4) {
            drop(guard);
            return;
        }
        let lock_id = guard.lock_id().clone();
        // A failed release leaves the lock to its lease; dropping the guard tries again in the background.
        drop(guard.release().await);
        drop(guard);
        if self.random.one_in(3) {
            drop(self.locker.release_id(&lock_id).await);
        }
    }

    fn nap(&mut self) -> Duration {
        let millis = match self.orders.nap_ms {
            Some(millis) => millis,
            None if self.random.one_in(600) => self.orders.ttl_ms * 13 / 10,
            None if self.random.one_in(80) => self.random.between(50, 300),
            None => self.random.between(0, 4),
        };
        Duration::from_millis(millis)
    }
}

async fn watch(handle: syncguard::LockHandle, id: String, recorder: Arc<Recorder>) {
    let reason = handle.lost().await.as_str().to_owned();
    recorder.record(What::Signalled { id, reason });
}
