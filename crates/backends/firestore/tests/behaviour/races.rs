//! What happens when many want the same thing at once?

use std::sync::Arc;
use std::time::Duration;

use super::support::{Fault, Project, key, request, take, ttl};
use syncguard_core::{AcquireOutcome, Clock, LockBackend, LockId, Locker, ReleaseOutcome, SystemClock};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_racing_acquirers_exactly_one_wins() {
    let project = Project::start().await;
    let mut backends = Vec::new();
    for _ in 0..20 {
        let backend = project.backend().await;
        // Connected before the race, so that the race is about the key.
        backend.is_locked(&key("other")).await.unwrap();
        backends.push(backend);
    }

    let mut racers = JoinSet::new();
    for backend in backends {
        racers.spawn(async move { backend.acquire(request(&key("k"), &LockId::random(), 30_000)).await });
    }
    let outcomes: Vec<_> = racers.join_all().await.into_iter().map(Result::unwrap).collect();

    let won = outcomes.iter().filter(|outcome| matches!(outcome, AcquireOutcome::Acquired(_))).count();
    assert_eq!((won, outcomes.len()), (1, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_workers_with_twenty_five_cycles_get_dense_fences() {
    dense_fences(&Project::start().await, 8, 25).await;
}

/// Each worker is a client of its own; together they get every fence once.
pub(crate) async fn dense_fences(project: &Project, clients: u64, cycles: u64) {
    let started = SystemClock.boot();
    let mut workers = JoinSet::new();
    for _ in 0..clients {
        let locker = Locker::new(project.backend().await);
        workers.spawn(async move {
            let mut fences = Vec::new();
            for _ in 0..cycles {
                let request = locker.lock("k").timeout(Duration::from_secs(120)).unlimited_retries();
                let guard = request.acquire().await.unwrap();
                fences.push(guard.fence().get());
                guard.release().await.unwrap();
            }
            fences
        });
    }
    let mut fences: Vec<u64> = workers.join_all().await.into_iter().flatten().collect();

    println!(
        "{clients} workers x {cycles} cycles: {:?}, {:?}",
        SystemClock.boot().since(started),
        project.faults.calls()
    );
    fences.sort_unstable();
    assert_eq!(fences, (1..=clients * cycles).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_of_different_locks_at_once_need_no_second_try() {
    let project = Project::start().await;
    let backend = Arc::new(project.backend().await);
    let mut ids = Vec::new();
    for number in 0..16 {
        ids.push(take(&*backend, &format!("k{number}")).await.0);
    }
    project.faults.reset_calls();

    let mut releases = JoinSet::new();
    for id in ids {
        let backend = backend.clone();
        releases.spawn(async move { backend.release(&id).await.unwrap() });
    }

    assert!(releases.join_all().await.into_iter().all(|outcome| outcome == ReleaseOutcome::Released));
    // A release that waited for another one, or lost against it, would have asked twice.
    assert_eq!(project.faults.calls(), [("Commit".to_owned(), 16), ("RunQuery".to_owned(), 16)]);
}

#[tokio::test]
async fn a_release_goes_ahead_while_another_one_is_stuck() {
    let project = Project::start().await;
    let backend = Arc::new(project.backend().await);
    let (stuck, _) = take(&*backend, "stuck").await;
    let (free, _) = take(&*backend, "free").await;
    project.faults.next("Commit", Fault::Delay(Duration::from_secs(2)));
    let slow = tokio::spawn({
        let backend = backend.clone();
        async move { backend.release(&stuck).await }
    });
    while project.faults.fired() == 0 {
        tokio::task::yield_now().await;
    }

    assert_eq!(backend.release(&free).await.unwrap(), ReleaseOutcome::Released);

    assert!(!slow.is_finished(), "the stuck one is still stuck");
    assert_eq!(slow.await.unwrap().unwrap(), ReleaseOutcome::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extend_and_a_release_at_once_end_with_no_lock() {
    let project = Project::start().await;
    let backend = Arc::new(project.backend().await);
    for _ in 0..30 {
        let (id, _) = take(&*backend, "k").await;
        let (extended, released) = tokio::join!(backend.extend(&id, ttl(30_000)), backend.release(&id));
        let _ = extended.unwrap();
        assert_eq!(released.unwrap(), ReleaseOutcome::Released);
        assert!(!backend.is_locked(&key("k")).await.unwrap());
    }
}

/// The one case in which two releases of one id may both say that they freed it: the write of the first got lost before it
/// took effect, which the first cannot tell from a lost answer, because the second freed the lock meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_overlapping_releases_of_one_id_free_its_lock_once_and_nobody_elses() {
    let project = Project::start().await;
    let backend = Arc::new(project.builder().timeout(Duration::from_secs(120)).connect().await.unwrap());
    let (id, _) = take(&*backend, "k").await;
    project.faults.next("Commit", Fault::Refuse(tonic::Code::Unavailable));
    // The first look passes; the one after the lost write comes late.
    project.faults.next("RunQuery", Fault::Delay(Duration::ZERO));
    project.faults.next("RunQuery", Fault::Delay(Duration::from_secs(2)));
    let first = tokio::spawn({
        let (backend, id) = (backend.clone(), id.clone());
        async move { backend.release(&id).await.unwrap() }
    });
    while project.faults.fired() < 3 {
        tokio::task::yield_now().await;
    }

    let second = backend.release(&id).await.unwrap();
    assert!(!backend.is_locked(&key("k")).await.unwrap());
    let (next, _) = take(&*backend, "k").await;
    let first = first.await.unwrap();

    assert!(first.is_released() || second.is_released(), "{first:?} {second:?}");
    assert!(backend.is_locked(&key("k")).await.unwrap(), "a release of another id freed the next holder's lock");
    assert!(!backend.release(&id).await.unwrap().is_released(), "later ones know better");
    assert_eq!(backend.release(&next).await.unwrap(), ReleaseOutcome::Released);
}
