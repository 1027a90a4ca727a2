//! Does a waiter hear of a release?

use std::sync::Arc;
use std::time::Duration;

use super::support::{Fault, Project, key, take};
use syncguard_core::{LockBackend, Locker};
use tokio::time::timeout;
use tonic::Code;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_another_client_wakes_the_waiter() {
    let project = Project::start().await;
    let (holder, waiter) = (project.backend().await, project.backend().await);
    let (id, _) = take(&holder, "a/b").await;
    let hint = waiter.subscribe(&key("a/b")).await;
    assert!(hint.is_live());
    // A confirmation that came late is a hint as well, on a busy machine: it is not the one that is waited for here.
    let _ = timeout(Duration::from_millis(100), hint.woken()).await;

    holder.release(&id).await.unwrap();

    timeout(SOON, hint.woken()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_of_a_backend_share_one_stream() {
    let project = Project::start().await;
    let (holder, waiter) = (project.backend().await, project.backend().await);
    let mut held = Vec::new();
    for number in 0..10 {
        let name = format!("k{number}");
        let (id, _) = take(&holder, &name).await;
        held.push((id, waiter.subscribe(&key(&name)).await, waiter.subscribe(&key(&name)).await));
    }
    assert!(project.faults.calls().contains(&("Listen".to_owned(), 1)), "{:?}", project.faults.calls());

    for (id, hint, _other) in &held {
        holder.release(id).await.unwrap();
        timeout(SOON, hint.woken()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_sleeps_long_between_tries_gets_the_lock_at_once() {
    let project = Project::start().await;
    let (holder, locker) = (project.backend().await, Locker::new(project.backend().await));
    let (id, _) = take(&holder, "k").await;
    let waiting = tokio::spawn(async move {
        let patient = Duration::from_secs(60);
        locker.lock("k").retry_delay(patient).max_delay(patient).wait_forever().acquire().await.unwrap()
    });
    // The stream is open and the waiter has looked once more after that.
    while project.faults.calls().iter().filter(|(name, _)| name == "Listen").count() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());

    holder.release(&id).await.unwrap();

    let guard = timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(guard.fence().get(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_is_opened_again() {
    let project = Project::start().await;
    let (holder, waiter) = (project.backend().await, project.backend().await);
    let (id, _) = take(&holder, "k").await;
    project.faults.next("Listen", Fault::Refuse(Code::Unavailable));
    let hint = waiter.subscribe(&key("k")).await;
    assert!(hint.is_live(), "it may work later");

    holder.release(&id).await.unwrap();

    timeout(SOON, hint.woken()).await.unwrap();
    assert_eq!(project.faults.fired(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_listening_is_forbidden_waiters_poll_and_get_the_lock() {
    let project = Project::start().await;
    let (holder, waiter) = (project.backend().await, Arc::new(project.backend().await));
    let (id, _) = take(&holder, "k").await;
    project.faults.next("Listen", Fault::Refuse(Code::PermissionDenied));
    let hint = waiter.subscribe(&key("k")).await;
    assert!(!hint.is_live());
    assert!(!waiter.subscribe(&key("other")).await.is_live(), "it is not asked again");
    assert_eq!(project.faults.fired(), 1);

    holder.release(&id).await.unwrap();

    assert!(!waiter.is_locked(&key("k")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_free_by_the_time_it_is_watched_is_a_hint_at_once() {
    let project = Project::start().await;
    let waiter = project.backend().await;

    let hint = waiter.subscribe(&key("k")).await;

    timeout(SOON, hint.woken()).await.unwrap();
}
