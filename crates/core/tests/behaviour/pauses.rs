//! Is work ever polled after the deadline of its lock?
//!
//! The machine sleeps between two polls of the work: the clock of leases jumps, and timers know nothing of it. So nobody
//! learns of the loss but whoever reads the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use syncguard_core::{ErrorCode, LockError, Locker, MemoryBackend, OnLost};
use tokio::task::yield_now;

use crate::simulation::SleepyClock;

const TTL: Duration = Duration::from_secs(10);

/// A locker on a machine that [`Steps`] sends to sleep.
#[derive(Clone)]
struct World {
    clock: Arc<SleepyClock>,
    locker: Locker,
    steps: Arc<AtomicU32>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(SleepyClock::default());
        let backend = MemoryBackend::with_clock(clock.clone());
        let locker = Locker::builder(backend).clock(clock.clone()).build();
        Self { clock, locker, steps: Arc::default() }
    }

    /// Ten steps of one poll each. The machine sleeps for longer than the lease after the third.
    async fn work(&self) -> &'static str {
        for step in 1..=10 {
            self.steps.fetch_add(1, Ordering::Relaxed);
            if step == 3 {
                self.clock.suspend(30_000);
            }
            yield_now().await;
        }
        "done"
    }

    fn steps(&self) -> u32 {
        self.steps.load(Ordering::Relaxed)
    }

    #[track_caller]
    fn is_stopped_by<T: std::fmt::Debug>(&self, outcome: Result<T, LockError>) {
        assert_eq!(outcome.unwrap_err().code(), ErrorCode::LockLost);
        assert_eq!(self.steps(), 3, "steps after the deadline");
    }
}

#[tokio::test(start_paused = true)]
async fn work_is_not_polled_after_the_deadline() {
    let world = World::new();
    world.is_stopped_by(world.locker.lock("k").ttl(TTL).keep_alive().run(async |_| world.work().await).await);

    let world = World::new();
    world.is_stopped_by(world.locker.lock("k").ttl(TTL).run_and_report(async |_| world.work().await).await);

    let world = World::new();
    world.is_stopped_by(world.locker.lock_all(["k", "l"]).ttl(TTL).run(async |_| world.work().await).await);
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_is_not_polled_and_leads_anew() {
    let world = World::new();
    let (terms, election) = (AtomicU32::new(0), world.locker.elect("k").ttl(TTL));

    let last = election.lead(async |lock| match terms.fetch_add(1, Ordering::Relaxed) {
        0 => u64::try_from(world.work().await.len()).unwrap(),
        _ => lock.fence().get(),
    });

    assert_eq!((last.await.unwrap(), world.steps()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn whoever_selects_a_loss_before_the_work_does_not_poll_it_after_the_deadline_either() {
    let world = World::new();
    let guard = world.locker.lock("k").ttl(TTL).acquire().await.unwrap();
    tokio::select! {
        biased;
        _ = guard.lost() => {}
        _ = world.work() => panic!("the work was not stopped"),
    }
    assert_eq!(world.steps(), 3);
}

#[tokio::test(start_paused = true)]
async fn work_that_goes_on_after_a_loss_is_polled_to_its_end() {
    let world = World::new();
    let request = world.locker.lock("k").ttl(TTL).on_lost(OnLost::Continue);
    assert_eq!(request.run(async |_| world.work().await).await.unwrap(), "done");
}
