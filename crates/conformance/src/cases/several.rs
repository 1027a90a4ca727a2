//! Do several keys, and one leader among several, work on this backend?

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::sleep;

use syncguard_core::{ErrorCode, Locker};

use crate::Harness;
use crate::history::Witness;
use crate::support::{LONG, give_back, is_locked, key, ms, take};

/// All of them at once, and all given back.
pub async fn several_keys_are_taken_together<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));

    let all = locker.lock_all(["b", "a", "c", "a"]).acquire().await.expect("all are free");

    assert_eq!(all.guards().len(), 3, "the same key twice is one lock");
    all.check().expect("all are held");
    for name in ["a", "b", "c"] {
        assert!(is_locked(&other, &key(name)).await);
    }
    all.release().await.expect("release answers");
    for name in ["a", "b", "c"] {
        assert!(!is_locked(&other, &key(name)).await);
    }
}

/// One of them is held: none is kept.
pub async fn several_keys_are_taken_all_or_none<H: Harness>(h: &H) {
    let (other, locker) = (h.backend().await, Locker::new(h.backend().await));
    let held = take(&other, &key("b"), LONG).await;

    let error = locker.lock_all(["a", "b", "c"]).timeout(ms(300)).acquire().await.expect_err("b is held");

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    locker.drain().await;
    assert!(!is_locked(&other, &key("a")).await && !is_locked(&other, &key("c")).await, "some were kept");
    give_back(&other, &held).await;
}

/// Named in opposite order by two callers, they do not wait for each other for ever.
pub async fn several_keys_in_any_order_do_not_deadlock<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);
    let doors: Arc<[Witness; 2]> = Arc::default();
    let mut tasks = JoinSet::new();
    for number in 0..6 {
        let (locker, doors) = (locker.clone(), doors.clone());
        let names = if number % 2 == 0 { ["x", "y"] } else { ["y", "x"] };
        tasks.spawn(async move {
            let all = locker.lock_all(names).timeout(ms(60_000)).acquire().await.expect("each gets its turn");
            for (door, fence) in doors.iter().zip(all.fences()) {
                door.enter(fence);
            }
            tokio::task::yield_now().await;
            doors.iter().for_each(Witness::leave);
            all.release().await.expect("release answers");
        });
    }
    assert_eq!(tasks.join_all().await.len(), 6);
}

/// One leader at a time, each term later than the one before.
pub async fn leaders_follow_one_another_in_rising_terms<H: Harness>(h: &H) {
    let locker = Locker::new(h.backend().await);
    let seat = Arc::new(Witness::default());
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let (locker, seat) = (locker.clone(), seat.clone());
        tasks.spawn(async move {
            let leadership = locker.elect("leader").ttl(ms(3_000)).campaign().await.expect("each leads in turn");
            seat.enter(leadership.term());
            sleep(ms(20)).await;
            seat.leave();
            assert!(leadership.resign().await.expect("release answers").is_released());
        });
    }
    assert_eq!(tasks.join_all().await.len(), 3);
}

/// Everybody can see who leads.
pub async fn an_election_shows_its_leader<H: Harness>(h: &H) {
    let (here, there) = (Locker::new(h.backend().await), Locker::new(h.backend().await));
    assert!(there.elect("leader").observe().await.expect("lookup answers").is_none());

    let leadership = here.elect("leader").campaign().await.expect("nobody leads yet");

    let seen = there.elect("leader").observe().await.expect("lookup answers").expect("somebody leads");
    assert_eq!(seen.fence, leadership.term());
    leadership.resign().await.expect("release answers");
    assert!(there.elect("leader").observe().await.expect("lookup answers").is_none());
}
