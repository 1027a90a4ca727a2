//! Does the backend fail as it should: closed, by name, and alone?

use syncguard_core::{ErrorCode, LockBackend, LockError, Locker};

use crate::runner::skip;
use crate::support::{LONG, attempt, attempt_as, extend, give_back, is_locked, key, take};
use crate::{Fault, Faulty, Harness, Operation, Poison};

/// Text where a lock belongs.
pub async fn a_value_that_is_no_lock_is_never_free<H: Harness>(h: &H) {
    never_free(h, Poison::NotALock, "a_value_that_is_no_lock_is_never_free").await;
}

/// A lock with nothing in it.
pub async fn an_empty_value_is_never_free<H: Harness>(h: &H) {
    never_free(h, Poison::Empty, "an_empty_value_is_never_free").await;
}

/// A lock that does not say when it ends.
pub async fn a_lock_without_an_expiry_is_never_free<H: Harness>(h: &H) {
    never_free(h, Poison::NoExpiry, "a_lock_without_an_expiry_is_never_free").await;
}

/// A lock whose end is no number.
pub async fn a_lock_whose_expiry_is_text_is_never_free<H: Harness>(h: &H) {
    never_free(h, Poison::ExpiryIsText, "a_lock_whose_expiry_is_text_is_never_free").await;
}

/// A live lock that does not say whose it is.
pub async fn a_live_lock_without_an_owner_is_never_free<H: Harness>(h: &H) {
    never_free(h, Poison::NoOwner, "a_live_lock_without_an_owner_is_never_free").await;
}

async fn never_free<H: Harness>(h: &H, poison: Poison, case: &str) {
    let backend = h.backend().await;
    let (foreign, healthy) = (key("canary-foreign"), key("healthy"));
    let held = take(&backend, &healthy, LONG).await;
    if let Err(reason) = h.poison(&foreign, poison).await {
        return skip(case, &reason);
    }

    attempt(&backend, &foreign, LONG).await.expect_err("a foreign value is not a free lock");
    // Asked through the client, which adds to every error what it is about.
    let locker = Locker::new(h.backend().await);
    let error = locker.lock(&foreign).try_acquire().await.expect_err("a foreign value is not a free lock");
    assert_names_the_place(&error, &foreign);
    match locker.is_locked(&foreign).await {
        Ok(is_held) => assert!(is_held, "a foreign value counts as free"),
        Err(error) => assert_names_the_place(&error, &foreign),
    }
    let error = locker.inspect(&foreign).await.expect_err("a foreign value is not an absent lock");
    assert_names_the_place(&error, &foreign);

    assert!(extend(&backend, &held, LONG).await, "another key stopped working");
    assert!(is_locked(&backend, &healthy).await);
    give_back(&backend, &held).await;
    let next = take(&backend, &key("next"), LONG).await;
    give_back(&backend, &next).await;
    attempt(&backend, &foreign, LONG).await.expect_err("the foreign value is still there");
}

fn assert_names_the_place(error: &LockError, key: &syncguard_core::Key) {
    assert_eq!(error.code(), ErrorCode::Internal, "{error:?}");
    assert!(!error.is_transient(), "a foreign value does not go away by itself");
    assert_eq!(error.key(), Some(key), "the error does not say where it is");
    assert_shows_no_name(error, key.as_str());
}

fn assert_shows_no_name(error: &LockError, name: &str) {
    let mut text = format!("{error} {error:?} {error:#?} {}", error.hint().unwrap_or_default());
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    assert!(!text.contains(name), "an error shows a raw name: {text}");
}

/// Whatever goes wrong, printing it gives no name away.
pub async fn errors_show_no_raw_name<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("canary-token=hunter2"));
    if let Err(reason) = h.set_counter(&key, syncguard_core::Fence::MAX.get()).await {
        return skip("errors_show_no_raw_name", &reason);
    }
    let lock_id = backend.new_lock_id(&key);

    let error = attempt_as(&backend, &key, &lock_id, LONG).await.expect_err("the counter is at its limit");

    assert_shows_no_name(&error, "canary");
    assert_shows_no_name(&error, "hunter2");
    assert_shows_no_name(&error, lock_id.as_str());
}

/// The lock was taken and nobody heard: the same id asks again and is told.
pub async fn an_acquire_whose_reply_was_lost_is_owned_up_to<H: Harness>(h: &H) {
    let (backend, key) = (Faulty::new(h.backend().await), key("k"));
    let lock_id = backend.new_lock_id(&key);
    backend.nth(Operation::Acquire, 1, Fault::ReplyLost);

    let lost = attempt_as(&backend, &key, &lock_id, LONG).await.expect_err("the reply is lost");
    assert!(lost.is_ambiguous());
    let held = attempt_as(&backend, &key, &lock_id, LONG).await.expect("acquire answers");
    let held = held.expect("a lost reply must not contend with itself");

    assert_eq!(backend.fired(Operation::Acquire), 1);
    assert_eq!(held.fence, syncguard_core::Fence::FIRST, "one acquisition took two fences");
    give_back(&backend, &held).await;
    assert!(!is_locked(&backend, &key).await, "an orphan is left");
}

/// The lock was taken and nobody heard: giving up the id frees it.
pub async fn an_acquire_whose_reply_was_lost_can_be_given_up<H: Harness>(h: &H) {
    let (backend, key) = (Faulty::new(h.backend().await), key("k"));
    let lock_id = backend.new_lock_id(&key);
    backend.nth(Operation::Acquire, 1, Fault::ReplyLost);
    attempt_as(&backend, &key, &lock_id, LONG).await.expect_err("the reply is lost");
    assert!(is_locked(&backend, &key).await);

    assert!(backend.release(&lock_id).await.expect("release answers").is_released());

    assert!(!is_locked(&backend, &key).await);
    take(&backend, &key, LONG).await;
}

/// The lease was renewed and nobody heard: renewing again is the same.
pub async fn an_extend_whose_reply_was_lost_can_be_repeated<H: Harness>(h: &H) {
    let (backend, key) = (Faulty::new(h.backend().await), key("k"));
    let held = take(&backend, &key, LONG).await;
    backend.nth(Operation::Extend, 1, Fault::ReplyLost);

    backend.extend(&held.lock_id, LONG).await.expect_err("the reply is lost");
    assert!(extend(&backend, &held, LONG).await);

    assert_eq!(backend.fired(Operation::Extend), 1);
    give_back(&backend, &held).await;
}

/// The lock was freed and nobody heard: releasing again harms not even the next owner.
pub async fn a_release_whose_reply_was_lost_can_be_repeated<H: Harness>(h: &H) {
    let (backend, key) = (Faulty::new(h.backend().await), key("k"));
    let held = take(&backend, &key, LONG).await;
    backend.nth(Operation::Release, 1, Fault::ReplyLost);

    backend.release(&held.lock_id).await.expect_err("the reply is lost");
    let next = take(&backend, &key, LONG).await;
    let again = backend.release(&held.lock_id).await.expect("release answers");

    assert_eq!(backend.fired(Operation::Release), 1);
    assert!(!again.is_released(), "one release had two effects");
    assert!(is_locked(&backend, &key).await, "the next owner lost its lock");
    give_back(&backend, &next).await;
}

/// The health report is for people: it names what it checked and gives no name away.
pub async fn a_health_report_answers_and_harms_nothing<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("canary-health"));
    let held = take(&backend, &key, LONG).await;

    let report = backend.health().await;

    for check in &report.checks {
        assert!(!check.name.is_empty() && !check.detail.is_empty(), "an empty line: {check:?}");
    }
    let text = format!("{report:?}");
    assert!(!text.contains("canary-health") && !text.contains(held.lock_id.as_str()), "{text}");
    assert!(is_locked(&backend, &key).await);
    give_back(&backend, &held).await;
    assert_eq!(take(&backend, &key, LONG).await.fence.get(), held.fence.get() + 1);
}

/// What a backend says it is, is what its types say.
pub async fn the_capabilities_are_true<H: Harness>(h: &H) {
    let capabilities = h.backend().await.capabilities();
    assert!(!capabilities.backend.is_empty());
    assert_eq!(capabilities, h.elsewhere().await.capabilities());
}
