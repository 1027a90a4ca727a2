//! Whose time is it?

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::support::{Scene, acquire, connect, holder, key};
use syncguard_core::{
    AcquireRequest, BootTime, Clock, ExtendOutcome, Label, LockBackend, LockId, Lookup, SystemClock, Timestamp, Ttl,
};
use syncguard_sqlite::SqliteBackend;

/// The system's clock with a wall hand that a test can step.
#[derive(Debug, Default)]
struct Stepped(AtomicI64);

impl Stepped {
    fn step(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for Stepped {
    fn boot(&self) -> BootTime {
        SystemClock.boot()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(SystemClock.wall().as_millis() + self.0.load(Ordering::SeqCst))
    }
}

fn stepped(scene: &Scene) -> (SqliteBackend, Arc<Stepped>) {
    let clock = Arc::new(Stepped::default());
    (connect(SqliteBackend::builder(scene.path()).clock(clock.clone())).unwrap(), clock)
}

#[tokio::test]
async fn a_clock_that_jumps_forward_ends_leases_and_fences_still_rise() {
    let scene = Scene::new();
    let (backend, clock) = stepped(&scene);
    let first = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();

    clock.step(60_000);
    let second = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();

    assert!(second.lease.fence > first.lease.fence);
    assert!(matches!(backend.extend(&first.lock_id, super::support::ttl()).await.unwrap(), ExtendOutcome::Absent(_)));
    assert!(!backend.release(&first.lock_id).await.unwrap().is_released());
    assert!(backend.is_locked(&key("k")).await.unwrap(), "the second holder is unharmed");
}

#[tokio::test]
async fn a_clock_that_jumps_back_makes_leases_longer_and_never_shorter() {
    let scene = Scene::new();
    let (backend, clock) = stepped(&scene);
    let first = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();

    clock.step(-3_600_000);

    assert!(holder(acquire(&backend, &key("k"), &LockId::random()).await).is_none());
    assert!(backend.release(&first.lock_id).await.unwrap().is_released());
    let second = holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();
    assert!(second.lease.fence > first.lease.fence);
}

#[tokio::test]
async fn two_clients_with_two_clocks_can_share_a_process() {
    let scene = Scene::new();
    let (late, clock) = stepped(&scene);
    clock.step(31_500);
    let backend = scene.open();
    holder(acquire(&backend, &key("k"), &LockId::random()).await).unwrap();

    assert!(backend.is_locked(&key("k")).await.unwrap());
    assert!(!late.is_locked(&key("k")).await.unwrap());
}

#[tokio::test]
async fn a_lease_counts_from_the_turn_and_not_from_the_request() {
    let scene = Scene::new();
    let backend = scene.open();
    let turn = scene.block_writers();
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move {
            let (key, id) = (key("k"), LockId::random());
            let ttl = Ttl::from_millis(200).unwrap();
            backend.acquire(AcquireRequest::new(&key, &id, ttl)).await.unwrap()
        }
    });
    // Longer than the lease: counted from the request it would be over before it began.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let turn_came = SystemClock.wall();
    drop(turn);

    let lease = holder((LockId::random(), waiting.await.unwrap())).unwrap().lease;

    assert!(lease.expires_at.as_millis() >= turn_came.as_millis() + 200);
}

#[tokio::test]
async fn a_label_is_kept_and_shown() {
    let scene = Scene::new();
    let backend = scene.open();
    let (key, id, label) = (key("k"), LockId::random(), Label::new("ci@runner-7").unwrap());
    let _ =
        backend.acquire(AcquireRequest::new(&key, &id, super::support::ttl()).with_label(Some(&label))).await.unwrap();

    let info = backend.lookup(Lookup::Key(&key)).await.unwrap().unwrap();

    assert_eq!(info.label(), Some(&label));
}
