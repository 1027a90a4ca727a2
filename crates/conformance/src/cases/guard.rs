//! Does a guard on this backend know whether it still holds its lock?

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use syncguard_core::time::Clock;
use syncguard_core::{BootTime, ErrorCode, LockBackend, Locker, Lookup, LossReason, Timestamp};

use crate::support::{assert_contended, faulty, is_locked, key, ms};
use crate::{Fault, Harness, Operation};

/// What the guard says is what is stored.
pub async fn a_guard_shows_what_is_stored<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").ttl(ms(20_000)).label("me").acquire().await.expect("free");

    let info = other.lookup(Lookup::Key(&key("k"))).await.expect("lookup answers").expect("held");

    assert_eq!((guard.fence(), guard.expires_at()), (info.fence, info.expires_at));
    assert_eq!((guard.key(), guard.lock_id()), (info.reveal().key, info.reveal().lock_id));
    assert!(guard.remaining() <= ms(20_000) && guard.remaining() + ms(200) + h.slack() > ms(20_000));
    assert!(guard.is_held() && guard.check().is_ok() && guard.loss().is_none());
    let text = format!("{guard:?}");
    assert!(!text.contains(guard.lock_id().as_str()), "{text}");
}

/// `Released`, then `Absent` without asking anybody.
pub async fn a_second_release_of_a_guard_asks_nobody<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let guard = Locker::new(backend.clone()).lock("k").acquire().await.expect("free");

    assert!(guard.release().await.expect("release answers").is_released());
    assert!(!guard.release().await.expect("a second release is no error").is_released());
    let handle = guard.handle();
    drop(guard);

    assert_eq!(backend.calls(Operation::Release), 1);
    assert_eq!(handle.loss(), Some(LossReason::Released));
    assert_eq!(handle.check().expect_err("released").code(), ErrorCode::LockLost);
    assert_eq!(handle.remaining(), Duration::ZERO);
}

/// A release that failed is not the end of it.
pub async fn a_failed_release_may_be_tried_again<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let guard = Locker::new(backend.clone()).lock("k").acquire().await.expect("free");
    backend.nth(Operation::Release, 1, Fault::Refuse(ErrorCode::ServiceUnavailable));

    let error = guard.release().await.expect_err("the backend is away");
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!guard.is_held(), "a release was begun");
    assert!(guard.release().await.expect("release answers").is_released());

    assert!(!is_locked(&other, &key("k")).await);
}

/// Going out of scope gives the lock back.
pub async fn dropping_a_guard_releases<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").keep_alive().acquire().await.expect("free");
    assert!(is_locked(&other, &key("k")).await);

    drop(guard);
    locker.drain().await;

    assert!(!is_locked(&other, &key("k")).await);
}

/// The release of a dropped guard meets a short outage and is tried again.
pub async fn a_dropped_guard_releases_through_a_short_outage<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let locker = Locker::new(backend.clone());
    let guard = locker.lock("k").acquire().await.expect("free");
    backend.next(Operation::Release, 2, Fault::Refuse(ErrorCode::ServiceUnavailable));

    drop(guard);
    locker.drain().await;

    assert_eq!(backend.fired(Operation::Release), 2);
    assert!(!is_locked(&other, &key("k")).await);
}

/// A thread that knows no runtime may end the guard's life.
pub async fn dropping_a_guard_on_a_bare_thread_releases<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").acquire().await.expect("free");

    std::thread::spawn(move || drop(guard)).join().expect("dropping does not panic");
    locker.drain().await;

    assert!(!is_locked(&other, &key("k")).await);
}

/// The runtime ended first: nobody is left to release, nothing panics, and the lease ends the lock.
pub async fn dropping_a_guard_without_its_runtime_leaves_it_to_the_lease<H: Harness>(h: &H) {
    let ended = std::thread::scope(|scope| scope.spawn(|| guard_outlives_its_runtime(h)).join());

    ended.expect("dropping does not panic");
    h.pass(ms(300) + ms(1_000) + ms(500)).await;
    assert!(!is_locked(&h.backend().await, &key("k")).await);
}

fn guard_outlives_its_runtime<H: Harness>(h: &H) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = runtime.block_on(async {
        let locker = Locker::new(h.backend().await);
        locker.lock("k").ttl(ms(300)).acquire().await.expect("free")
    });
    drop(runtime);
    drop(guard);
}

/// Unwinding gives the lock back.
pub async fn a_guard_dropped_by_a_panic_releases<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").acquire().await.expect("free");

    let task = tokio::spawn(async move {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(task.await.expect_err("it panics").is_panic());
    locker.drain().await;

    assert!(!is_locked(&other, &key("k")).await);
}

/// Leaking leaves the lock to whoever has the id.
pub async fn a_leaked_lock_stays_with_its_id<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);
    let id = locker.lock("k").keep_alive().acquire().await.expect("free").leak();
    locker.drain().await;

    assert!(locker.owns(&id).await.expect("lookup answers"));
    assert!(locker.extend_id(&id, ms(20_000)).await.expect("extend answers").is_extended());
    let by_id = locker.inspect_id(&id).await.expect("lookup answers").expect("held");
    let by_key = locker.inspect("k").await.expect("lookup answers").expect("held");
    assert_eq!((by_id.fence, by_id.expires_at), (by_key.fence, by_key.expires_at));
    assert!(locker.release_id(&id).await.expect("release answers").is_released());
    assert!(!locker.owns(&id).await.expect("lookup answers"));
}

/// Extending through the guard moves its own deadline, both ways.
pub async fn extending_a_guard_moves_its_deadline<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);
    let guard = locker.lock("k").ttl(ms(10_000)).acquire().await.expect("free");

    assert!(guard.extend(ms(60_000)).await.expect("extend answers").is_extended());
    assert!(guard.remaining() > ms(50_000));
    let far = guard.expires_at();
    assert!(guard.extend(ms(15_000)).await.expect("extend answers").is_extended());

    assert!(guard.remaining() <= ms(15_000) && guard.is_held());
    assert!(guard.expires_at() < far);
    assert_eq!(guard.ttl().as_millis(), 15_000);
}

/// Without renewal the belief ends before the lease does.
pub async fn a_guard_stops_believing_before_its_lease_ends<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").ttl(ms(600)).acquire().await.expect("free");

    let reason = timeout(ms(600) + h.slack(), guard.lost()).await.expect("the loss is told in time");

    assert_eq!(reason, LossReason::Expired);
    assert!(is_locked(&other, &key("k")).await, "storage freed the lock before its holder knew");
    assert_eq!(guard.check().expect_err("lost").code(), ErrorCode::LockLost);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert!(!guard.extend(ms(600)).await.expect("no error").is_extended(), "loss is for ever");
}

/// The backend says that the lock is gone, and the guard believes it.
pub async fn a_guard_whose_lock_was_taken_away_is_lost<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").ttl(ms(1_500)).keep_alive().acquire().await.expect("free");

    assert!(other.release(guard.lock_id()).await.expect("release answers").is_released());

    let reason = timeout(ms(1_500) + h.slack(), guard.lost()).await.expect("the loss is told in time");
    assert_eq!(reason, LossReason::Absent);
    assert!(guard.check().is_err());
}

/// Renewal keeps a lock for longer than its lease and the tolerance.
pub async fn a_lock_that_is_kept_alive_outlives_its_lease<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let guard = locker.lock("k").ttl(ms(900)).keep_alive().acquire().await.expect("free");

    h.pass(ms(2_300)).await;

    guard.check().expect("still held");
    assert_contended(&other, &key("k")).await;
    assert!(guard.release().await.expect("release answers").is_released());
}

/// Two renewals fail inside the lease; the third saves it.
pub async fn renewal_survives_two_failures_inside_the_lease<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let locker = Locker::new(backend.clone());
    let guard = locker.lock("k").ttl(ms(2_000)).keep_alive().acquire().await.expect("free");
    backend.next(Operation::Extend, 2, Fault::Refuse(ErrorCode::ServiceUnavailable));

    h.pass(ms(2_600)).await;

    assert_eq!(backend.fired(Operation::Extend), 2);
    guard.check().expect("still held after two failures");
    assert_contended(&other, &key("k")).await;
}

/// The reply to a renewal is lost; the next one is answered, and nothing was lost.
pub async fn renewal_survives_a_lost_reply<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let guard = Locker::new(backend.clone()).lock("k").ttl(ms(1_500)).keep_alive().acquire().await.expect("free");
    backend.nth(Operation::Extend, 1, Fault::ReplyLost);

    h.pass(ms(2_000)).await;

    assert_eq!(backend.fired(Operation::Extend), 1);
    guard.check().expect("still held");
}

/// The server is gone: the holder knows by its own clock, while storage still keeps the lock for it.
pub async fn a_guard_knows_that_it_is_lost_when_the_server_is_gone<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let guard = Locker::new(backend.clone()).lock("k").ttl(ms(3_000)).keep_alive().acquire().await.expect("free");
    backend.everything(Fault::Hang);

    let reason = timeout(ms(3_000) + h.slack(), guard.lost()).await.expect("the loss is told in time");

    assert_eq!(reason, LossReason::Expired);
    assert!(is_locked(&other, &key("k")).await, "storage freed the lock before its holder knew");
    assert!(backend.fired(Operation::Extend) > 0);
    // Room for a renewal that was about to leave when the loss was noticed.
    h.pass(ms(100)).await;
    let renewals = backend.calls(Operation::Extend);
    h.pass(ms(1_000)).await;
    assert_eq!(backend.calls(Operation::Extend), renewals, "a lock that was lost is renewed");
}

/// A renewal answered after the deadline revives nothing.
pub async fn a_late_renewal_does_not_revive_a_guard<H: Harness>(h: &H) {
    let backend = faulty(h).await;
    let guard = Locker::new(backend.clone()).lock("k").ttl(ms(500)).acquire().await.expect("free");
    backend.always(Operation::Extend, Fault::LateReply(ms(900)));

    let answer = guard.extend(ms(5_000)).await;

    assert!(!answer.is_ok_and(syncguard_core::ExtendOutcome::is_extended), "a reply after the deadline counted");
    assert_eq!(guard.check().expect_err("lost").code(), ErrorCode::LockLost);
    assert_eq!(backend.fired(Operation::Extend), 1);
}

/// After release nothing is renewed any more.
pub async fn renewal_ends_with_the_guard<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    let locker = Locker::new(backend.clone());
    let released = locker.lock("released").ttl(ms(300)).keep_alive().acquire().await.expect("free");
    let dropped = locker.lock("dropped").ttl(ms(300)).keep_alive().acquire().await.expect("free");
    released.release().await.expect("release answers");
    drop(dropped);
    locker.drain().await;
    let renewals = backend.calls(Operation::Extend);

    h.pass(ms(600)).await;

    assert_eq!(backend.calls(Operation::Extend), renewals, "a lock that was given back is renewed");
    assert!(!is_locked(&other, &key("released")).await && !is_locked(&other, &key("dropped")).await);
}

/// A release overtakes a renewal on the wire, or the other way round: the lock is gone.
pub async fn a_release_during_a_renewal_leaves_no_lock<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, faulty(h).await);
    backend.always(Operation::Extend, Fault::Delay(ms(9)));
    let locker = Locker::new(backend.clone());
    for round in 0..25 {
        let name = format!("round {round}");
        let guard = locker.lock(&name).ttl(ms(5_000)).renew_every(ms(4)).acquire().await.expect("free");
        sleep(ms(1 + round)).await;
        assert!(guard.release().await.expect("release answers").is_released());
        drop(guard);
    }
    sleep(ms(50)).await;

    assert!(backend.fired(Operation::Extend) > 0, "no renewal was on the wire");
    for round in 0..25 {
        assert!(!is_locked(&other, &key(&format!("round {round}"))).await, "a renewal brought round {round} back");
    }
}

/// The longest hold ends renewal and the belief.
pub async fn the_longest_hold_ends_a_lock<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);
    let started = Instant::now();
    // Long enough that a renewal which is late once does not end it before.
    let guard = locker.lock("k").ttl(ms(2_000)).keep_alive().max_hold(ms(3_000)).acquire().await.expect("free");

    let reason = timeout(ms(3_000) + h.slack(), guard.lost()).await.expect("the loss is told in time");

    assert_eq!(reason, LossReason::MaxHold);
    assert!(started.elapsed() >= ms(2_000), "it was lost before its longest hold");
}

/// The warning before the end comes before the end.
pub async fn a_guard_warns_before_its_end<H: Harness>(h: &H) {
    let guard = Locker::new(h.backend().await).lock("k").ttl(ms(1_500)).acquire().await.expect("free");

    timeout(ms(1_500) + h.slack(), guard.remaining_below(ms(900))).await.expect("the warning comes");

    assert!(guard.remaining() <= ms(900));
}

/// A client whose wall clock is an hour wrong holds the same lease.
pub async fn a_wrong_wall_clock_changes_nothing<H: Harness>(h: &H) {
    let (other, backend) = (h.backend().await, h.backend().await);
    let clock = Arc::new(HourAhead(backend.clock()));
    let locker = Locker::builder(backend).clock(clock).build();
    let guard = locker.lock("k").ttl(ms(20_000)).keep_alive().acquire().await.expect("free");

    let info = other.lookup(Lookup::Key(&key("k"))).await.expect("lookup answers").expect("held");

    assert_eq!(guard.expires_at(), info.expires_at);
    assert!(guard.is_held() && guard.remaining() > ms(15_000));
    assert!(guard.extend(ms(20_000)).await.expect("extend answers").is_extended());
    assert!(guard.release().await.expect("release answers").is_released());
}

#[derive(Debug)]
struct HourAhead(Arc<dyn Clock>);

impl Clock for HourAhead {
    fn boot(&self) -> BootTime {
        self.0.boot()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0.wall().as_millis() + 3_600_000)
    }
}

/// The machine sleeps: its timers stand still, and the guard still knows.
pub async fn a_guard_notices_that_the_machine_slept<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = Arc::new(Sleeper { inner: backend.clock(), slept: std::sync::Mutex::default() });
    let locker = Locker::builder(backend).clock(clock.clone()).build();
    let guard = locker.lock("k").ttl(ms(30_000)).keep_alive().acquire().await.expect("free");
    guard.check().expect("held");

    *clock.slept.lock().expect("not poisoned") = ms(31_000);

    assert_eq!(guard.check().expect_err("it slept through its lease").code(), ErrorCode::LockLost);
    timeout(ms(1_000) + h.slack(), guard.lost()).await.expect("the loss is told within a second");
    sleep(ms(1)).await;
    assert!(guard.check().is_err(), "loss is for ever");
}

#[derive(Debug)]
struct Sleeper {
    inner: Arc<dyn Clock>,
    slept: std::sync::Mutex<Duration>,
}

impl Clock for Sleeper {
    fn boot(&self) -> BootTime {
        self.inner.boot() + *self.slept.lock().expect("not poisoned")
    }

    fn wall(&self) -> Timestamp {
        self.inner.wall()
    }
}
