//! Does it hold on Google's own emulator, too, where it is installed?

use std::time::Duration;

use super::races::dense_fences;
use super::support::{Project, key, request, take};
use syncguard_core::{AcquireOutcome, HealthStatus, LockBackend, LockId};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The emulator is no part of what the set-up installs: a machine may lack it, and then it is said.
fn emulator(test: &str) -> Option<Project> {
    match syncguard_testkit::firestore_emulator() {
        Ok(address) => Some(Project::on(address)),
        Err(reason) => {
            assert!(std::env::var_os("SYNCGUARD_REQUIRE_SERVERS").is_none(), "{reason:#}");
            println!("SKIPPED {test}: {reason:#}");
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_the_waiter_on_googles_emulator() {
    let Some(project) = emulator("a_release_wakes_the_waiter_on_googles_emulator") else { return };
    let (holder, waiter) = (project.backend().await, project.backend().await);
    let (id, _) = take(&holder, "k").await;
    let hint = waiter.subscribe(&key("k")).await;
    assert!(hint.is_live());
    assert!(timeout(Duration::from_millis(200), hint.woken()).await.is_err(), "nothing has happened yet");

    holder.release(&id).await.unwrap();

    timeout(Duration::from_secs(10), hint.woken()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_twenty_wins_on_googles_emulator() {
    let Some(project) = emulator("one_of_twenty_wins_on_googles_emulator") else { return };
    let mut racers = JoinSet::new();
    for _ in 0..20 {
        let backend = project.backend().await;
        racers.spawn(async move { backend.acquire(request(&key("k"), &LockId::random(), 30_000)).await.unwrap() });
    }
    let outcomes = racers.join_all().await;
    let won = outcomes.iter().filter(|outcome| matches!(outcome, AcquireOutcome::Acquired(_))).count();
    assert_eq!((won, outcomes.len()), (1, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_get_dense_fences_on_googles_emulator() {
    let Some(project) = emulator("eight_workers_get_dense_fences_on_googles_emulator") else { return };
    dense_fences(&project, 8, 25).await;
}

#[tokio::test]
async fn a_good_clock_does_not_fail_on_googles_emulator() {
    let Some(project) = emulator("a_good_clock_does_not_fail_on_googles_emulator") else { return };
    let report = project.backend().await.health().await;
    // A slow start of the emulator may leave it inconclusive.
    assert_ne!(report.worst(), HealthStatus::Fail, "{report:?}");
    assert!(report.checks.iter().any(|check| check.name == "index" && check.status == HealthStatus::Pass));
}
