//! What if the tasks run in another order?
//!
//! The client and the listener, compiled with the primitives of shuttle, which decides at every step who goes on. Each
//! test is run in thousands of such orders. Built with `--cfg syncguard_shuttle` alone: `cargo xtask schedules`.

pub(crate) mod primitives;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use shuttle::future::{block_on, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

use crate::listener::{Commands, Ended, Heard, Listener, Messages, Source};
use crate::sync::{Mutex, Notify, spawn};
use crate::telemetry::{LockEvent, Reason};
use crate::time::Clock;
use crate::{
    AcquireOutcome, AcquireRequest, Capabilities, ErrorCode, ExtendOutcome, Key, LockBackend, LockError, LockId,
    LockInfo, Locker, Lookup, MemoryBackend, ReleaseOutcome, Result, Ttl, WakeHint, WakeHub,
};
use primitives::{VirtualClock, pass_time, point};

/// Orders per test and scheduler: five tests, two schedulers. `cargo xtask schedules` asks for ten times as many.
const SCHEDULES: usize = 1_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// Runs a test in many orders: chosen at random, and with few but nasty interruptions.
fn explore<F: Future<Output = ()>>(test: impl Fn() -> F + Send + Sync + Copy + 'static) {
    let schedules = std::env::var("SYNCGUARD_SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(SCHEDULES);
    let run = move || {
        primitives::begin();
        block_on(test());
    };
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    // More steps than any order needs: whoever waits for ever while time passes is found by it.
    config.max_steps = MaxSteps::FailAfter(100_000);
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(run);
    Runner::new(PctScheduler::new(3, schedules), config).run(run);
    println!("{} orders", 2 * schedules);
}

/// Lets time pass, at any moment, until it is told to stop.
struct Ticking(Arc<AtomicBool>);

impl Ticking {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                yield_now().await;
                pass_time();
            }
        });
        Self(stop)
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The memory backend with a road to it, and what the tests count.
#[derive(Clone)]
struct Watched {
    storage: MemoryBackend,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Set by a test when a release has returned.
    released: AtomicBool,
    /// Extends that began after that.
    late_extends: AtomicUsize,
    extends: AtomicUsize,
    losses: AtomicUsize,
}

impl Watched {
    fn new() -> Self {
        Self { storage: MemoryBackend::with_clock(Arc::new(VirtualClock)), counts: Arc::default() }
    }
}

impl LockBackend for Watched {
    fn capabilities(&self) -> Capabilities {
        self.storage.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        yield_now().await;
        let answer = self.storage.acquire(request).await;
        yield_now().await;
        answer
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        yield_now().await;
        self.storage.release(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.counts.extends.fetch_add(1, Ordering::SeqCst);
        if self.counts.released.load(Ordering::SeqCst) {
            self.counts.late_extends.fetch_add(1, Ordering::SeqCst);
            // As if the network failed: a renewal that does not know of the release would try again and again.
            return Err(LockError::new(ErrorCode::ServiceUnavailable, "the network is gone"));
        }
        yield_now().await;
        self.storage.extend(lock_id, ttl).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.storage.is_locked(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.storage.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.storage.purge_expired().await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        self.storage.subscribe(key).await
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.storage.clock()
    }

    fn observe(&self, event: &LockEvent) {
        if matches!(event.reason, Some(Reason::Lost(_))) {
            self.counts.losses.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Time stands still, so a waiter whose wake-up is lost waits for ever, and shuttle calls that a deadlock.
#[test]
fn no_waiter_misses_a_release_and_nobody_is_inside_twice() {
    explore(|| async {
        let locker = Locker::new(Watched::new());
        let inside = Arc::new(AtomicBool::new(false));
        let waiters: Vec<_> = (0..3)
            .map(|number| {
                let (locker, inside) = (locker.clone(), inside.clone());
                spawn(async move {
                    let guard = locker.lock("k").timeout(HOUR).acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                    yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    if number == 0 {
                        guard.release().await.unwrap();
                    }
                })
            })
            .collect();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        locker.drain().await;
        assert!(!locker.is_locked("k").await.unwrap());
    });
}

/// At most the one extend that was on its way when the release began; the renewal ends, however long time passes.
#[test]
fn nothing_is_renewed_after_a_release() {
    explore(|| async {
        let backend = Watched::new();
        let locker = Locker::new(backend.clone());
        let guard = locker.lock("k").ttl(Duration::from_secs(3)).keep_alive().acquire().await.unwrap();
        let ticking = Ticking::start();
        while guard.is_held() && backend.counts.extends.load(Ordering::SeqCst) < 2 {
            yield_now().await;
        }
        let _ = guard.release().await;
        backend.counts.released.store(true, Ordering::SeqCst);
        for _ in 0..30 {
            yield_now().await;
        }
        assert!(!guard.is_held());
        assert!(backend.counts.late_extends.load(Ordering::SeqCst) <= 1, "renewed after the release");
        drop(ticking);
    });
}

/// Time stands still: nothing that is given back here needs a second try.
#[test]
fn a_drain_waits_for_dropped_guards_and_abandoned_attempts() {
    explore(|| async {
        let locker = Locker::new(Watched::new());
        let droppers: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|key| {
                let locker = locker.clone();
                spawn(async move {
                    drop(locker.lock(key).acquire().await.unwrap());
                    locker.drain().await;
                    assert!(!locker.is_locked(key).await.unwrap(), "the drain did not wait for the release");
                })
            })
            .collect();
        tokio::select! {
            biased;
            _ = locker.lock("c").acquire() => {}
            () = yield_now() => {}
        }
        locker.drain().await;
        assert!(!locker.is_locked("c").await.unwrap(), "the drain did not wait for the abandoned attempt");
        for dropper in droppers {
            dropper.await.unwrap();
        }
    });
}

#[test]
fn a_loss_is_told_once_and_everybody_who_waits_for_it_hears_of_it() {
    explore(|| async {
        let backend = Watched::new();
        let locker = Locker::new(backend.clone());
        let guard = locker.lock("k").ttl(Duration::from_secs(3)).keep_alive().acquire().await.unwrap();
        let ticking = Ticking::start();
        let watchers: Vec<_> = (0..2)
            .map(|_| {
                let lock = guard.handle();
                spawn(async move {
                    let reason = lock.lost().await;
                    assert_eq!(lock.loss(), Some(reason), "a reason is final");
                    assert!(lock.remaining().is_zero());
                })
            })
            .collect();
        let lock = guard.handle();
        let extending = spawn(async move { lock.extend(Duration::from_millis(20)).await });
        yield_now().await;
        drop(guard);
        for watcher in watchers {
            watcher.await.unwrap();
        }
        let _ = extending.await;
        assert!(backend.counts.losses.load(Ordering::SeqCst) <= 1, "told twice");
        locker.drain().await;
        drop(ticking);
    });
}

/// A server that pushes, on a connection that may break.
#[derive(Clone, Default)]
struct Server(Arc<Wire>);

#[derive(Default)]
struct Wire {
    state: Mutex<Connection>,
    changed: Notify,
    free: AtomicBool,
}

#[derive(Default)]
struct Connection {
    number: usize,
    known: HashSet<Arc<str>>,
    messages: VecDeque<Heard>,
}

struct End(Server, usize);

impl Server {
    fn with<T>(&self, change: impl FnOnce(&mut Connection) -> T) -> T {
        let result = change(&mut self.0.state.lock().unwrap());
        self.0.changed.notify_one();
        result
    }

    fn release(&self) {
        self.0.free.store(true, Ordering::SeqCst);
        self.with(|connection| {
            if let Some(topic) = connection.known.get("k").cloned() {
                connection.messages.push_back(Heard::Released { topic, hold_back: Duration::ZERO });
            }
        });
    }

    fn cut(&self) {
        self.with(|connection| *connection = Connection { number: connection.number + 1, ..Connection::default() });
    }

    fn is_free(&self) -> bool {
        point();
        self.0.free.load(Ordering::SeqCst)
    }
}

impl Source for Server {
    type Commands = End;
    type Messages = End;

    async fn connect(&self) -> Result<(End, End), Ended> {
        yield_now().await;
        let number = self.with(|connection| connection.number);
        Ok((End(self.clone(), number), End(self.clone(), number)))
    }
}

impl End {
    fn with<T>(&self, change: impl FnOnce(&mut Connection) -> T) -> Result<T, Ended> {
        self.0.with(|connection| if connection.number == self.1 { Ok(change(connection)) } else { Err(Ended::Lost) })
    }
}

impl Commands for End {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        yield_now().await;
        self.with(|connection| {
            connection.known.extend(topics.iter().cloned());
            connection.messages.push_back(Heard::Confirmed(topics.to_vec()));
        })?;
        Ok(Vec::new())
    }

    async fn unsubscribe(&mut self, topics: &[Arc<str>]) -> Result<(), Ended> {
        yield_now().await;
        self.with(|connection| connection.known.retain(|topic| !topics.contains(topic)))
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        self.with(|connection| connection.messages.push_back(Heard::Nothing))
    }
}

impl Messages for End {
    async fn next(&mut self) -> Result<Heard, Ended> {
        loop {
            let changed = self.0.0.changed.notified();
            let message = {
                let mut connection = self.0.0.state.lock().unwrap();
                if connection.number == self.1 { Ok(connection.messages.pop_front()) } else { Err(Ended::Lost) }
            }?;
            match message {
                Some(message) => return Ok(message),
                None => changed.await,
            }
        }
    }
}

/// Lets the others make some progress.
async fn pause() {
    for _ in 0..thread_rng().gen_range(0..40) {
        yield_now().await;
    }
}

/// Waits as an acquisition does: looks, registers, looks again if it is the first of its process, then trusts hints.
async fn wait_until_free(server: &Server, listener: &Listener<Server>) {
    if server.is_free() {
        return;
    }
    let hint = listener.subscribe("k").await;
    if hint.is_first() && server.is_free() {
        return;
    }
    loop {
        hint.woken().await;
        if server.is_free() {
            return;
        }
    }
}

/// Whoever misses the release waits for ever while time passes, and runs out of steps.
#[test]
fn no_waiter_misses_a_release_though_the_connection_breaks() {
    explore(|| async {
        let server = Server::default();
        let listener = Arc::new(Listener::new(server.clone()));
        let ticking = Ticking::start();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (server, listener) = (server.clone(), listener.clone());
                spawn(async move {
                    wait_until_free(&server, &listener).await;
                    // Had it, and gives it back: the next one hears of it.
                    server.release();
                })
            })
            .collect();
        let nemesis = spawn({
            let server = server.clone();
            async move {
                pause().await;
                server.cut();
            }
        });
        pause().await;
        server.release();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        nemesis.await.unwrap();
        drop((listener, ticking));
    });
}

/// The proof that a lost wake-up would be seen: this waiter does not look again after it has registered.
#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_that_trusts_its_first_look_is_caught() {
    explore(|| async {
        let (hub, free) = (WakeHub::default(), Arc::new(AtomicBool::new(false)));
        let waiter = spawn({
            let (hub, free) = (hub.clone(), free.clone());
            async move {
                if !free.load(Ordering::SeqCst) {
                    hub.subscribe("k").woken().await;
                }
            }
        });
        yield_now().await;
        free.store(true, Ordering::SeqCst);
        hub.wake("k");
        waiter.await.unwrap();
    });
}
