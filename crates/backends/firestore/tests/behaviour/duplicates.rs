//! What if several documents carry one lock id?

use super::support::raw::lock_fields;
use super::support::{Project, key, take, ttl};
use syncguard_core::{
    AbsentReason, Clock, ErrorCode, ExtendOutcome, LockBackend, LockId, Lookup, ReleaseOutcome, SystemClock,
};

fn now() -> i64 {
    SystemClock.wall().as_millis()
}

#[tokio::test]
async fn a_dead_copy_is_passed_over_and_cleaned_up_by_the_next_write() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let (id, _) = take(&backend, "m").await;
    // On either side of the live one, so that whichever the query returns first, one copy comes before it.
    for copy in ["a", "z"] {
        raw.put("locks", copy, lock_fields(copy, id.as_str(), 1, now() - 60_000)).await;
    }

    let info = backend.lookup(Lookup::LockId(&id)).await.unwrap().unwrap();
    assert_eq!(info.reveal().key, &key("m"));
    assert!(raw.get("locks", "a").await.is_some(), "a look changes nothing");
    assert!(backend.extend(&id, ttl(30_000)).await.unwrap().is_extended());
    assert!(raw.get("locks", "a").await.is_none() && raw.get("locks", "z").await.is_none());

    raw.put("locks", "a", lock_fields("a", id.as_str(), 1, now() - 60_000)).await;
    assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Released);
    assert!(raw.get("locks", "a").await.is_none() && raw.get("locks", "m").await.is_none());
}

#[tokio::test]
async fn a_copy_that_died_a_moment_ago_is_left_alone() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let (id, _) = take(&backend, "m").await;
    raw.put("locks", "a", lock_fields("a", id.as_str(), 1, now() - 1_100)).await;

    assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Released);

    assert!(raw.get("locks", "a").await.is_some());
}

#[tokio::test]
async fn several_live_ones_are_nobodys_to_touch() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let (id, _) = take(&backend, "m").await;
    raw.put("locks", "a", lock_fields("a", id.as_str(), 1, now() + 30_000)).await;

    for error in [
        backend.release(&id).await.map(|_| ()).unwrap_err(),
        backend.extend(&id, ttl(1_000)).await.map(|_| ()).unwrap_err(),
        backend.lookup(Lookup::LockId(&id)).await.map(|_| ()).unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(!format!("{error} {error:?}").contains(id.as_str()));
    }

    assert!(raw.get("locks", "m").await.is_some() && raw.get("locks", "a").await.is_some());
}

#[tokio::test]
async fn only_dead_ones_are_an_expired_lock() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let id = LockId::random();
    for name in ["a", "b"] {
        raw.put("locks", name, lock_fields(name, id.as_str(), 1, now() - 60_000)).await;
    }

    assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Absent(Some(AbsentReason::Expired)));
    assert_eq!(backend.extend(&id, ttl(1)).await.unwrap(), ExtendOutcome::Absent(Some(AbsentReason::Expired)));
    assert!(backend.lookup(Lookup::LockId(&id)).await.unwrap().is_none());
}
