//! Does a waiter hear of a release?
//!
//! A backend that gives live hints must keep them; one that gives none is skipped, visibly.

use std::time::Duration;

use syncguard_core::{LockBackend, WakeHint};

use crate::Harness;
use crate::Unsupported;
use crate::runner::skip;
use crate::support::{LONG, give_back, is_locked, key, take};

// A hint is no promise, but one that comes later than this is of no use to anybody.
const SOON: Duration = Duration::from_secs(10);

fn cannot_push(hint: &WakeHint) -> Option<Unsupported> {
    (!hint.is_live()).then(|| Unsupported::because("this backend cannot push; waiters rely on their schedule"))
}

/// The release comes from another client, as it does in life.
pub async fn a_release_by_another_client_wakes_a_waiter<H: Harness>(h: &H) {
    let (waiter, holder, key) = (h.backend().await, h.backend().await, key("k"));
    let held = take(&holder, &key, LONG).await;
    let hint = waiter.subscribe(&key).await;
    if let Some(reason) = cannot_push(&hint) {
        return skip("a_release_by_another_client_wakes_a_waiter", &reason);
    }

    give_back(&holder, &held).await;

    tokio::time::timeout(SOON, hint.woken()).await.expect("a release wakes a waiter");
    take(&waiter, &key, LONG).await;
}

/// The release comes from the waiter's own client.
pub async fn a_release_by_the_same_client_wakes_a_waiter<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    let hint = backend.subscribe(&key).await;
    if let Some(reason) = cannot_push(&hint) {
        return skip("a_release_by_the_same_client_wakes_a_waiter", &reason);
    }

    give_back(&backend, &held).await;

    tokio::time::timeout(SOON, hint.woken()).await.expect("a release wakes a waiter");
}

/// Waiters come and go; those who stay are still woken, and nothing breaks.
pub async fn a_waiter_that_left_does_not_take_the_hint_with_it<H: Harness>(h: &H) {
    let (backend, holder, key) = (h.backend().await, h.backend().await, key("k"));
    let held = take(&holder, &key, LONG).await;
    for _ in 0..20 {
        drop(backend.subscribe(&key).await);
    }
    let leaves = backend.subscribe(&key).await;
    let stays = backend.subscribe(&key).await;
    if let Some(reason) = cannot_push(&stays) {
        return skip("a_waiter_that_left_does_not_take_the_hint_with_it", &reason);
    }
    drop(leaves);

    give_back(&holder, &held).await;

    tokio::time::timeout(SOON, stays.woken()).await.expect("the waiter that stayed is woken");
}

/// Waiting is looking: it takes nothing and changes nothing.
pub async fn waiting_for_a_key_does_not_lock_it<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));

    let hint = backend.subscribe(&key).await;

    assert!(!is_locked(&backend, &key).await);
    let held = take(&backend, &key, LONG).await;
    give_back(&backend, &held).await;
    drop(hint);
}
