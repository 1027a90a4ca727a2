//! Does a lock obey its owner and nobody else?

use syncguard_core::LockBackend;

use crate::Harness;
use crate::support::{LONG, assert_contended, extend, give_back, is_locked, key, release, take};

/// Release frees the lock for the next attempt.
pub async fn a_released_lock_can_be_taken_at_once<H: Harness>(h: &H) {
    let (backend, other, key) = (h.backend().await, h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    assert_contended(&other, &key).await;

    give_back(&backend, &held).await;

    assert!(!is_locked(&other, &key).await);
    take(&other, &key, LONG).await;
}

/// `Released`, then `Absent`.
pub async fn releasing_twice_is_absent_the_second_time<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;

    assert!(release(&backend, &held).await);
    assert!(!release(&backend, &held).await);
    assert!(!extend(&backend, &held, LONG).await);
}

/// A valid lock id that does not hold the lock changes nothing.
pub async fn a_stranger_can_neither_release_nor_extend<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    let stranger = backend.new_lock_id(&key);

    assert!(!backend.release(&stranger).await.expect("release answers").is_released());
    assert!(!backend.extend(&stranger, LONG).await.expect("extend answers").is_extended());

    assert!(is_locked(&backend, &key).await, "the owner is unharmed");
    give_back(&backend, &held).await;
}
