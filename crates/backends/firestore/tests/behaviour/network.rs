//! What if the line breaks, and not the server?

use std::time::Duration;

use super::support::{Fault as ServerFault, Line, key, request, take};
use syncguard_core::{AcquireOutcome, ErrorCode, LockBackend, LockId};
use syncguard_testkit::Fault;

fn fence(outcome: AcquireOutcome) -> u64 {
    match outcome {
        AcquireOutcome::Acquired(lease) => lease.fence.get(),
        AcquireOutcome::Contended(_) => panic!("contended by itself"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_reset_under_a_commit_leaves_one_lock_and_no_orphan() {
    let line = Line::start(Duration::from_secs(5)).await;
    let id = LockId::random();
    line.project.faults.next("Commit", ServerFault::Delay(Duration::from_millis(200)));
    let cut = async {
        while line.project.faults.fired() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        line.proxy.set(Fault::Reset);
        tokio::time::sleep(Duration::from_millis(50)).await;
        line.proxy.set(Fault::Pass);
    };

    let (outcome, ()) = tokio::join!(line.insist("k", &id), cut);

    assert!(line.proxy.counts().faults > 0, "the fault happened");
    assert_eq!(fence(outcome), 1, "one effect");
    assert!(line.backend.release(&id).await.unwrap().is_released());
    assert_eq!(take(&line.backend, "k").await.1.fence.get(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_vanish_are_an_ambiguous_timeout_and_the_same_id_owns_the_lock_afterwards() {
    let line = Line::start(Duration::from_millis(500)).await;
    line.backend.is_locked(&key("k")).await.unwrap();
    let id = LockId::random();
    line.project.faults.next("Commit", ServerFault::Delay(Duration::from_millis(100)));
    let cut = async {
        while line.project.faults.fired() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        line.proxy.set(Fault::DropReplies);
    };

    let request_key = key("k");
    let (tried, ()) = tokio::join!(line.backend.acquire(request(&request_key, &id, 30_000)), cut);

    let error = tried.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
    line.proxy.set(Fault::Pass);
    assert_eq!(fence(line.insist("k", &id).await), 1, "one effect");
    assert!(line.backend.release(&id).await.unwrap().is_released());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_away_is_used_again_when_it_is_back() {
    let line = Line::start(Duration::from_millis(500)).await;
    let (id, _) = take(&line.backend, "held").await;
    line.proxy.set(Fault::Refuse);
    // The broken connection may be noticed by the first call or before it; either way nobody answers.
    let error = line.backend.is_locked(&key("held")).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let error = line.backend.is_locked(&key("held")).await.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));

    line.proxy.set(Fault::Pass);

    assert_eq!(fence(line.insist("k", &LockId::random()).await), 1);
    assert!(line.backend.release(&id).await.unwrap().is_released());
}
