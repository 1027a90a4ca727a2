//! What do many waiters of one process ask of the storage, and in which order are they served?
//!
//! On the memory backend behind [`Faulty`], which counts the requests. Time is paused: it passes only when everybody
//! waits, so that the counts do not depend on the machine.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use syncguard_conformance::{Fault, Faulty, Operation};
use syncguard_core::{ErrorCode, LockRequest, Locker, MemoryBackend};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const CROWD: u64 = 300;
const SECOND: Duration = Duration::from_secs(1);
/// Longer than any of it takes: nothing ends by itself.
const LONG: Duration = Duration::from_secs(3_600);

type Storage = Faulty<MemoryBackend>;

struct Crowd {
    storage: Storage,
    locker: Locker,
    tasks: JoinSet<()>,
    /// Who had the lock, in this order.
    served: Arc<Mutex<Vec<u64>>>,
}

impl Crowd {
    fn of(storage: Storage) -> Self {
        let locker = Locker::new(storage.clone());
        Self { storage, locker, tasks: JoinSet::new(), served: Arc::default() }
    }

    fn request(&self) -> LockRequest {
        self.locker.lock("k").ttl(LONG).timeout(LONG).unlimited_retries()
    }

    /// One after the other they come to wait.
    async fn gather(&mut self, waiters: u64) {
        for number in 0..waiters {
            let (request, served) = (self.request(), self.served.clone());
            self.tasks.spawn(async move {
                let guard = request.acquire().await.unwrap();
                served.lock().unwrap().push(number);
                assert!(guard.release().await.unwrap().is_released());
            });
            tokio::task::yield_now().await;
        }
    }

    fn asked(&self) -> u64 {
        self.storage.calls(Operation::Acquire)
    }

    /// Waits until everybody was served, and returns in which order.
    async fn served(self) -> Vec<u64> {
        self.tasks.join_all().await;
        std::mem::take(&mut *self.served.lock().unwrap())
    }
}

fn in_order(waiters: u64) -> Vec<u64> {
    (0..waiters).collect()
}

#[tokio::test(start_paused = true)]
async fn a_crowd_asks_once_for_each_turn_and_is_served_as_it_came() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()));
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(CROWD).await;
    assert_eq!(crowd.asked(), 1 + 2, "the first of them asks, registers and looks again, for all");
    let (storage, started) = (crowd.storage.clone(), Instant::now());

    held.release().await.unwrap();

    assert_eq!(crowd.served().await, in_order(CROWD));
    assert_eq!(started.elapsed(), Duration::ZERO, "everybody is woken, nobody waits for its schedule");
    assert_eq!(storage.calls(Operation::Acquire), 1 + 2 + CROWD);
}

/// Three hundred turns take longer than every pause of the schedule: still nobody asks out of turn.
#[tokio::test(start_paused = true)]
async fn a_crowd_asks_once_for_each_turn_on_a_slow_storage() {
    let storage = Faulty::new(MemoryBackend::new());
    storage.always(Operation::Release, Fault::Delay(Duration::from_millis(40)));
    storage.always(Operation::Acquire, Fault::Delay(Duration::from_millis(40)));
    let mut crowd = Crowd::of(storage.clone());
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(CROWD).await;
    sleep(Duration::from_millis(30)).await;
    let (before, started) = (crowd.asked(), Instant::now());

    held.release().await.unwrap();

    assert_eq!(crowd.served().await, in_order(CROWD));
    assert!(started.elapsed() > 10 * SECOND, "{:?}", started.elapsed());
    let asked = storage.calls(Operation::Acquire) - before;
    assert!(asked <= CROWD + 2, "{asked} requests for {CROWD} turns");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_waits_for_long_asks_no_more_than_a_few_do() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()));
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(CROWD).await;

    sleep(100 * SECOND).await;

    let asked = crowd.asked();
    assert!(asked <= 100 * 10 + 10, "{asked} requests in 100 s");
    held.release().await.unwrap();
    assert_eq!(crowd.served().await, in_order(CROWD));
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_no_hint_reaches_is_served_as_it_came() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()).without_hints());
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(CROWD).await;
    let started = Instant::now();

    held.release().await.unwrap();

    assert_eq!(crowd.served().await, in_order(CROWD));
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5) * 32, "{took:?}: one of them asks every tenth of a second");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_does_not_storm_a_storage_that_fails() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()));
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(CROWD).await;
    let before = crowd.asked();
    crowd.storage.always(Operation::Acquire, Fault::Refuse(ErrorCode::ServiceUnavailable));

    held.release().await.unwrap();
    sleep(100 * SECOND).await;

    let asked = crowd.asked() - before;
    assert!(asked <= 100 * 10 * 2, "{asked} requests in 100 s");
    crowd.storage.heal();
    let mut served = crowd.served().await;
    served.sort_unstable();
    assert_eq!(served, in_order(CROWD));
}

/// A future that is kept and not polled stands first. Those behind it go on without it.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_polls_does_not_keep_the_others() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()));
    let held = crowd.request().acquire().await.unwrap();
    let mut stuck = pin!(crowd.request().acquire());
    assert!(stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    crowd.gather(20).await;
    let started = Instant::now();

    held.release().await.unwrap();

    while crowd.served.lock().unwrap().len() < 20 {
        sleep(SECOND).await;
    }
    assert!(started.elapsed() < 10 * SECOND, "{:?}: it is passed over once, not at every turn", started.elapsed());
    stuck.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_waited_behind_others_is_told_so_when_its_time_is_over() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()));
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(10).await;

    let error = crowd.locker.lock("k").timeout(Duration::from_millis(80)).acquire().await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(error.to_string().contains("behind other waiters of this process"), "{error}");
    assert!(error.free_in().is_some_and(|free_in| free_in + SECOND > LONG), "{:?}", error.free_in());
    held.release().await.unwrap();
    assert_eq!(crowd.served().await, in_order(10));
}

/// Whoever does not wait asks, whoever else is there.
#[tokio::test(start_paused = true)]
async fn who_does_not_wait_asks_at_once() {
    let mut crowd = Crowd::of(Faulty::new(MemoryBackend::new()));
    let held = crowd.request().acquire().await.unwrap();
    crowd.gather(10).await;
    let before = crowd.asked();

    assert!(crowd.locker.lock("k").try_acquire().await.unwrap().is_none());
    assert!(crowd.locker.lock("k").timeout(Duration::ZERO).acquire().await.is_err());
    assert!(crowd.locker.lock("k").max_retries(0).acquire().await.is_err());

    assert_eq!(crowd.asked() - before, 3);
    held.release().await.unwrap();
    assert_eq!(crowd.served().await, in_order(10));
}
