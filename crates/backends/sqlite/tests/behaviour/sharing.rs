//! Do tasks and backends of one process share a file well?

use std::collections::HashSet;
use std::time::Duration;

use super::support::{Scene, acquire, holder, key, ttl};
use syncguard_core::{AcquireOutcome, LockBackend, LockId, Lookup};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_sixty_four_tasks_exactly_one_gets_the_lock() {
    let scene = Scene::new();
    let backend = scene.open();

    for round in 0..20 {
        let key = key(&format!("k{}", round % 3));
        let attempts: Vec<_> = (0..64)
            .map(|_| {
                let (backend, key) = (backend.clone(), key.clone());
                tokio::spawn(async move { acquire(&backend, &key, &LockId::random()).await })
            })
            .collect();
        let mut winners = Vec::new();
        for attempt in attempts {
            winners.extend(holder(attempt.await.unwrap()));
        }

        assert_eq!(winners.len(), 1, "round {round}");
        assert!(backend.release(&winners[0].lock_id).await.unwrap().is_released());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_on_their_own_keys_all_get_their_own_fences() {
    let scene = Scene::new();
    let backend = scene.open();

    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let backend = backend.clone();
            tokio::spawn(async move {
                let key = key(&format!("own:{task}"));
                for expected in 1..=20 {
                    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
                    assert_eq!(held.lease.fence.get(), expected);
                    assert!(backend.release(&held.lock_id).await.unwrap().is_released());
                }
            })
        })
        .collect();

    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn two_backends_of_one_file_see_the_same_locks() {
    let scene = Scene::new();
    let (first, second) = (scene.open(), scene.open());
    let key = key("k");
    let held = holder(acquire(&first, &key, &LockId::random()).await).unwrap();

    let (_, contended) = acquire(&second, &key, &LockId::random()).await;
    assert!(matches!(contended, AcquireOutcome::Contended(contention) if contention.free_in.is_some()));
    assert!(second.is_locked(&key).await.unwrap());
    let info = second.lookup(Lookup::LockId(&held.lock_id)).await.unwrap().unwrap();
    assert_eq!(info.fence, held.lease.fence);
    assert!(second.release(&held.lock_id).await.unwrap().is_released());
    assert!(!first.is_locked(&key).await.unwrap());
}

#[tokio::test]
async fn an_acquire_whose_caller_left_before_its_turn_takes_nothing() {
    let scene = Scene::new();
    let backend = scene.open();
    let (key, id) = (key("k"), LockId::random());
    let turn = scene.block_writers();

    let left = tokio::time::timeout(Duration::from_millis(50), acquire(&backend, &key, &id)).await;
    assert!(left.is_err(), "nobody can write now");
    drop(turn);

    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    assert_eq!(held.lease.fence.get(), 1, "the one who left consumed no fence");
}

#[tokio::test]
async fn a_release_whose_caller_left_is_done_all_the_same() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    let turn = scene.block_writers();

    let left = tokio::time::timeout(Duration::from_millis(50), backend.release(&held.lock_id)).await;
    assert!(left.is_err());
    drop(turn);

    assert!(holder(acquire(&backend, &key, &LockId::random()).await).is_some());
}

#[tokio::test]
async fn a_queue_that_does_not_move_is_a_timeout_that_certainly_took_nothing() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    let _turn = scene.block_writers();

    let lock_id = LockId::random();
    let request = syncguard_core::AcquireRequest::new(&key, &lock_id, ttl());
    let error = backend.acquire(request).await.unwrap_err();

    assert_eq!(error.code(), syncguard_core::ErrorCode::NetworkTimeout);
    assert!(!error.is_ambiguous());
    assert!(!backend.is_locked(&key).await.unwrap(), "reading does not stand in the queue");
}

#[tokio::test]
async fn who_asks_for_a_held_lock_hears_so_without_standing_in_the_queue() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    let _turn = scene.block_writers();

    let (_, outcome) = acquire(&backend, &key, &LockId::random()).await;

    assert!(matches!(outcome, AcquireOutcome::Contended(_)));
}

#[tokio::test]
async fn a_waiter_of_the_same_process_is_woken_by_a_release() {
    let scene = Scene::new();
    let backend = scene.open();
    let key = key("k");
    let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
    let hint = backend.subscribe(&key).await;

    backend.release(&held.lock_id).await.unwrap();

    tokio::time::timeout(Duration::from_secs(5), hint.woken()).await.unwrap();
}

#[tokio::test]
async fn fences_go_on_after_the_file_was_closed_and_opened_again() {
    let scene = Scene::new();
    let key = key("k");
    let mut seen = HashSet::new();
    for _ in 0..5 {
        let backend = scene.open();
        let held = holder(acquire(&backend, &key, &LockId::random()).await).unwrap();
        assert!(seen.insert(held.lease.fence));
        backend.release(&held.lock_id).await.unwrap();
    }
    assert_eq!(seen.iter().max().unwrap().get(), 5);
}
