//! What becomes of a crowd that waits for one key?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use syncguard::{ErrorCode, Guard, LockRequest, Locker};
use syncguard_conformance::{Faulty, Operation};
use syncguard_testkit::bench::Figure;
use tokio::task::JoinSet;

/// How long each of them waits at most: so many times what the turns of all take one after the other …
const PATIENCE: u32 = 20;

/// … and no less than this, because other programs may disturb the measure.
const SHORTEST: Duration = Duration::from_secs(600);

/// How many pairs without anybody else show how long a turn takes.
const PAIRS: u32 = 50;

/// Longer than the whole campaign: no lease ends by itself.
const LEASE: Duration = Duration::from_secs(4 * 3600);

/// What one waiting task may take, its stack of futures, its place in the queue and its timer together.
const BYTES: f64 = 8.0 * 1024.0;

/// What was seen.
pub(crate) struct Crowd {
    waiters: usize,
    took: Duration,
    grants: usize,
    /// The grants of the task that got most.
    most: usize,
    /// How long each of them waits at most.
    timeout: Duration,
    longest: Duration,
    mean: Duration,
    /// Requests for the lock that the storage saw from the first release on.
    asked: u64,
    /// The same while all of them waited and nothing was released, and for how long that was.
    asked_before: (u64, Duration),
    bytes: f64,
    timeouts: usize,
    overlaps: usize,
    /// Every other error, by what it says, and how often.
    errors: BTreeMap<String, usize>,
}

/// What the tasks share.
#[derive(Default)]
struct Counts {
    waiting: AtomicUsize,
    /// Those that had the lock, or waited for it in vain. When all are, it is over.
    served: AtomicUsize,
    grants: AtomicUsize,
    inside: AtomicBool,
    overlaps: AtomicUsize,
}

/// What one task saw.
#[derive(Default)]
struct One {
    grants: usize,
    longest: Duration,
    total: Duration,
    timeouts: usize,
    errors: Vec<String>,
}

impl Crowd {
    /// `resident_at_first` is what the process took before the first crowd. What an earlier one gave back is used again by this
    /// one, so a look just before it would find hardly anything.
    pub(crate) async fn run(locker: &Locker, waiters: usize, resident_at_first: f64) -> Self {
        let storage = Faulty::new(locker.backend().clone());
        let locker = &Locker::new(storage.clone());
        let timeout = SHORTEST.max(turn(locker).await * u32::try_from(waiters).unwrap() * PATIENCE);
        let first = locker.lock("one").ttl(LEASE).acquire().await.unwrap();
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        for _ in 0..waiters {
            let request = locker.lock("one").ttl(LEASE).timeout(timeout).unlimited_retries();
            tasks.spawn(wait_again_and_again(request, counts.clone(), waiters));
        }
        while counts.waiting.load(Ordering::SeqCst) < waiters {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        settled(locker).await;
        let bytes = (resident() - resident_at_first) / waiters as f64;
        let asked_before = (storage.calls(Operation::Acquire), start.elapsed());
        let start = Instant::now();
        let mut errors = BTreeMap::new();
        if let Err(error) = first.release().await {
            errors.insert(format!("the first release: {error}"), 1);
        }
        let ones = tasks.join_all().await;
        for error in ones.iter().flat_map(|one| &one.errors) {
            *errors.entry(error.clone()).or_default() += 1;
        }
        let turns: usize = ones.iter().map(|one| one.grants + one.timeouts).sum();
        let total: Duration = ones.iter().map(|one| one.total).sum();
        Self {
            waiters,
            timeout,
            took: start.elapsed(),
            mean: total.div_f64(turns.max(1) as f64),
            asked: storage.calls(Operation::Acquire) - asked_before.0,
            asked_before: (asked_before.0 - u64::from(PAIRS) - 1, asked_before.1),
            grants: counts.grants.load(Ordering::SeqCst),
            most: ones.iter().map(|one| one.grants).max().unwrap_or_default(),
            longest: ones.iter().map(|one| one.longest).max().unwrap_or_default(),
            bytes,
            timeouts: ones.iter().map(|one| one.timeouts).sum(),
            overlaps: counts.overlaps.load(Ordering::SeqCst),
            errors,
        }
    }

    /// How often everybody should have got it.
    fn share(&self) -> f64 {
        (self.grants as f64 / self.waiters as f64).max(1.0)
    }

    pub(crate) fn figures(&self, backend: &str) -> Vec<Figure> {
        let seconds = self.took.as_secs_f64();
        let figures = [
            ("turns", "turns/s", self.grants as f64 / seconds),
            ("requests", "requests/turn", self.asked as f64 / self.grants.max(1) as f64),
            ("requests before the first release", "requests", self.asked_before.0 as f64),
            ("longest wait", "s", self.longest.as_secs_f64()),
            ("mean wait", "s", self.mean.as_secs_f64()),
            ("timeouts", "timeouts", self.timeouts as f64),
            ("most turns of one task", "× its share", self.most as f64 / self.share()),
            ("memory", "bytes/waiter", self.bytes),
        ];
        let figures = figures.map(|(measure, unit, value)| Figure::of(measure, unit, backend, &[value]));
        figures.map(|figure| figure.at("waiters", self.waiters)).into()
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures: Vec<String> =
            self.errors.iter().map(|(error, count)| format!("{count} times: {error}")).collect();
        if self.overlaps > 0 {
            failures.push(format!("two tasks were inside at once, {} times", self.overlaps));
        }
        if self.bytes > BYTES {
            failures.push(format!("a waiter takes {:.0} bytes, more than {BYTES:.0}", self.bytes));
        }
        if self.timeouts > 0 && self.most as f64 > 2.0 * self.share() {
            failures.push(format!(
                "{} calls waited {:?} in vain while one task got the lock {} times, where {:.1} were its share",
                self.timeouts,
                self.timeout,
                self.most,
                self.share()
            ));
        }
        failures
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let (before, waited) = self.asked_before;
        write!(
            f,
            "{} turns in {seconds:.1} s ({:.0}/s), {:.2} requests per turn, {before} in {:.1} s before the first; \
             longest wait {:.1} s, mean {:.1} s, {} timeouts of {:.0} s; most turns of one task {}, share {:.1}; \
             {:.0} bytes per waiter",
            self.grants,
            self.grants as f64 / seconds,
            self.asked as f64 / self.grants.max(1) as f64,
            waited.as_secs_f64(),
            self.longest.as_secs_f64(),
            self.mean.as_secs_f64(),
            self.timeouts,
            self.timeout.as_secs_f64(),
            self.most,
            self.share(),
            self.bytes,
        )
    }
}

/// How long a turn takes at least: a pair of one task alone.
async fn turn(locker: &Locker) -> Duration {
    let start = Instant::now();
    for _ in 0..PAIRS {
        let guard: Guard = locker.lock("alone").ttl(LEASE).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().is_released());
    }
    start.elapsed() / PAIRS
}

/// Waits until the rush of first attempts is over: until looks are answered at once, three times in a row.
async fn settled(locker: &Locker) {
    let mut quick = 0;
    while quick < 3 {
        let start = Instant::now();
        let answered = locker.is_locked("another").await.is_ok();
        quick = if answered && start.elapsed() < Duration::from_millis(50) { quick + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

async fn wait_again_and_again(request: LockRequest, counts: Arc<Counts>, waiters: usize) -> One {
    let mut one = One::default();
    counts.waiting.fetch_add(1, Ordering::SeqCst);
    while counts.served.load(Ordering::SeqCst) < waiters {
        let start = Instant::now();
        let acquired = request.clone().acquire().await;
        one.longest = one.longest.max(start.elapsed());
        one.total += start.elapsed();
        match acquired {
            Ok(guard) => {
                one.grants += 1;
                counts.grants.fetch_add(1, Ordering::SeqCst);
                if counts.inside.swap(true, Ordering::SeqCst) {
                    counts.overlaps.fetch_add(1, Ordering::SeqCst);
                }
                tokio::task::yield_now().await;
                counts.inside.store(false, Ordering::SeqCst);
                if let Err(error) = guard.release().await {
                    one.errors.push(format!("release: {error}"));
                }
                // In memory no call of it ever waits: without this a task would take the key again before the runtime
                // lets the one run that was woken.
                tokio::task::yield_now().await;
            }
            Err(error) if error.code() == ErrorCode::AcquisitionTimeout => one.timeouts += 1,
            Err(error) => {
                one.errors.push(format!("acquire: {error}"));
                counts.served.fetch_add(1, Ordering::SeqCst);
                return one;
            }
        }
        if one.grants + one.timeouts == 1 {
            counts.served.fetch_add(1, Ordering::SeqCst);
        }
    }
    one
}

/// The memory of this process that is really there, in bytes.
pub(crate) fn resident() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096.0
}
