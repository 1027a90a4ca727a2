//! How does a look remove a dead lock?

use std::time::Duration;

use super::support::raw::lock_fields;
use super::support::{Fault, Project, WrongClock, key, take};
use syncguard_core::{Clock, LockBackend, LockId, SystemClock};
use tokio::time::timeout;

/// Generous: it only ends a test that has failed.
const LONG: Duration = Duration::from_secs(60);

async fn put_dead(project: &Project, name: &str) {
    let dead = SystemClock.wall().as_millis() - 60_000;
    project.raw().await.put("locks", name, lock_fields(name, LockId::random().as_str(), 1, dead)).await;
}

fn commits(project: &Project) -> u32 {
    project.faults.calls().iter().filter(|(name, _)| name == "Commit").map(|(_, count)| *count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_does_not_wait_for_the_removal_and_starts_one_at_a_time() {
    let project = Project::start().await;
    put_dead(&project, "one").await;
    put_dead(&project, "two").await;
    project.faults.reset_calls();
    // A look that waited would wait for an hour.
    let patient = project.builder().timeout(Duration::from_secs(3_600)).cleanup_in_is_locked(true);
    let backend = patient.connect().await.unwrap();
    project.faults.next("Commit", Fault::Hang);

    assert!(!timeout(LONG, backend.is_locked(&key("one"))).await.unwrap().unwrap());
    let began = async {
        while commits(&project) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, began).await.unwrap();
    assert!(!timeout(LONG, backend.is_locked(&key("two"))).await.unwrap().unwrap());

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(commits(&project), 1, "a second removal began beside the first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_lock_is_removed_in_the_background_of_a_look() {
    let project = Project::start().await;
    let backend = project.builder().cleanup_in_is_locked(true).connect().await.unwrap();
    let raw = project.raw().await;
    for name in ["one", "two"] {
        put_dead(&project, name).await;
        let gone = async {
            while raw.get("locks", name).await.is_some() {
                assert!(!backend.is_locked(&key(name)).await.unwrap());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LONG, gone).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_with_a_clock_that_runs_ahead_removes_nothing_that_others_hold() {
    let project = Project::start().await;
    let holder = project.backend().await;
    let (id, _) = take(&holder, "k").await;
    let ahead = project.builder().clock(WrongClock::by(3_600_000)).cleanup_in_is_locked(true);
    let ahead = ahead.connect().await.unwrap();
    project.faults.reset_calls();

    assert!(!ahead.is_locked(&key("k")).await.unwrap(), "its clock says so");

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(commits(&project), 0);
    assert!(holder.release(&id).await.unwrap().is_released());
}
