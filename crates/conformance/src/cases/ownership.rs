//! Does a lock obey its owner and nobody else?

use syncguard_core::{AcquireOutcome, AcquireRequest, Label, LockBackend, Lookup};

use crate::runner::skip;
use crate::support::{
    BackendClock, LONG, after, assert_contended, attempt_as, extend, give_back, is_locked, key, ms, release, take, ttl,
};
use crate::{Harness, Unsupported};

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

/// The lock id is the whole ownership: another client of the owner may use it.
pub async fn an_owner_may_extend_and_release_from_another_client<H: Harness>(h: &H) {
    let (here, there, key) = (h.backend().await, h.backend().await, key("k"));
    let held = take(&here, &key, LONG).await;

    assert!(extend(&there, &held, LONG).await);
    give_back(&there, &held).await;

    assert!(!release(&here, &held).await);
}

/// Who was paused for too long finds nothing, and harms nobody.
pub async fn an_old_owner_cannot_touch_the_lock_after_a_takeover<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let old = take(&backend, &key, ttl(100)).await;
    clock.wait_until(h, &backend, after(old.expires_at, 1_100)).await;
    let new = take(&backend, &key, LONG).await;

    assert!(!extend(&backend, &old, LONG).await, "the old owner extended");
    assert!(!release(&backend, &old).await, "the old owner released");
    assert!(backend.lookup(Lookup::LockId(&old.lock_id)).await.expect("lookup answers").is_none());

    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("the new owner is unharmed");
    assert_eq!((info.reveal().lock_id, info.expires_at), (&new.lock_id, new.expires_at));
    give_back(&backend, &new).await;
}

/// A right id that never held anything.
pub async fn an_unknown_id_is_absent_everywhere<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let unknown = backend.new_lock_id(&key("k"));

    assert!(!backend.release(&unknown).await.expect("release answers").is_released());
    assert!(!backend.extend(&unknown, LONG).await.expect("extend answers").is_extended());
    assert!(backend.lookup(Lookup::LockId(&unknown)).await.expect("lookup answers").is_none());
    assert!(!is_locked(&backend, &key("k")).await, "extend created a lock");
}

/// Each owner has its own lock; releasing one leaves the others.
pub async fn owners_of_different_keys_do_not_meet<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let (one, two) = (key("one"), key("two"));
    let (first, second) = (take(&backend, &one, LONG).await, take(&backend, &two, LONG).await);

    give_back(&backend, &first).await;

    assert!(!is_locked(&backend, &one).await);
    assert!(is_locked(&backend, &two).await);
    assert!(!extend(&backend, &first, LONG).await);
    give_back(&backend, &second).await;
}

/// A reply was lost: the same id asks again and is told what it holds, unchanged.
pub async fn acquiring_again_with_the_same_id_owns_up<H: Harness>(h: &H) {
    let (backend, other, key) = (h.backend().await, h.backend().await, key("k"));
    let held = take(&backend, &key, ttl(20_000)).await;

    for client in [&backend, &other] {
        let again = attempt_as(client, &key, &held.lock_id, LONG).await.expect("acquire answers");
        let again = again.expect("the owner is not contended by itself");
        assert_eq!((again.fence, again.expires_at), (held.fence, held.expires_at), "owning up changed the lease");
    }

    give_back(&backend, &held).await;
    assert!(!is_locked(&backend, &key).await, "owning up made a second lock");
    assert_eq!(take(&backend, &key, LONG).await.fence.get(), held.fence.get() + 1, "owning up consumed a fence");
}

/// A lease that an earlier, unanswered attempt took has less left than its length, and the answer says how much.
pub async fn a_lease_that_is_owned_up_to_tells_its_age<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let lock_id = backend.new_lock_id(&key);
    let request = AcquireRequest::new(&key, &lock_id, LONG);
    let ask = async || match backend.acquire(request).await.expect("acquire answers") {
        AcquireOutcome::Acquired(lease) => lease,
        AcquireOutcome::Contended(_) => panic!("the lock is this id's or free"),
    };
    let first = ask().await;
    if first.left().is_none() {
        return skip(
            "a_lease_that_is_owned_up_to_tells_its_age",
            &Unsupported::because("the answer does not carry the backend's time"),
        );
    }

    h.pass(ms(1_500)).await;
    let again = ask().await;

    let (left, longest) = (again.left().expect("told as before"), LONG.duration().saturating_sub(ms(1_400)));
    assert_eq!(again.expires_at, first.expires_at);
    assert!(left <= longest, "{left:?} are left of a lease that is at least 1.5 s old");
}

/// Only a lock that is held is owned up to: after its release the same id is a new acquisition.
pub async fn a_released_id_that_acquires_again_gets_a_new_fence<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    give_back(&backend, &held).await;

    let again = attempt_as(&backend, &key, &held.lock_id, LONG).await.expect("acquire answers").expect("free");

    assert!(again.fence > held.fence);
    give_back(&backend, &again).await;
    assert!(!is_locked(&backend, &key).await);
}

/// Only a lock that is alive is owned up to: after its lease the same id is a new acquisition.
pub async fn a_dead_id_that_acquires_again_gets_a_new_fence<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let clock = BackendClock::start(&backend).await;
    let held = take(&backend, &key, ttl(50)).await;
    clock.wait_until(h, &backend, after(held.expires_at, 1_100)).await;

    let again = attempt_as(&backend, &key, &held.lock_id, LONG).await.expect("acquire answers").expect("free");

    assert!(again.fence > held.fence && again.expires_at > held.expires_at);
    give_back(&backend, &again).await;
    assert!(!is_locked(&backend, &key).await);
}

/// By key and by id one sees the same lock.
pub async fn lookups_by_key_and_by_id_agree<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("caf\u{e9}"));
    let held = take(&backend, &key, LONG).await;

    let by_key = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    let by_id = backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").expect("held");

    for info in [&by_key, &by_id] {
        assert_eq!(info.reveal().key, &key);
        assert_eq!(info.reveal().lock_id, &held.lock_id);
        assert_eq!((info.fence, info.expires_at), (held.fence, held.expires_at));
        assert_eq!((info.key_hash(), info.lock_id_hash()), (key.hash(), held.lock_id.hash()));
    }
    assert_eq!(by_key.acquired_at, by_id.acquired_at);
}

/// Looking a hundred times changes nothing.
pub async fn lookups_are_read_only<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    for _ in 0..50 {
        backend.lookup(Lookup::Key(&key)).await.expect("lookup answers");
        backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers");
        assert!(is_locked(&backend, &key).await);
    }

    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    assert_eq!((info.fence, info.expires_at), (held.fence, held.expires_at));
    give_back(&backend, &held).await;
    assert_eq!(take(&backend, &key, LONG).await.fence.get(), held.fence.get() + 1);
}

/// Absent, released and expired look alike.
pub async fn a_lookup_of_what_is_not_held_is_none<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    let expired = take(&backend, &key("expired"), ttl(50)).await;
    let released = take(&backend, &key("released"), LONG).await;
    give_back(&backend, &released).await;
    clock.wait_until(h, &backend, after(expired.expires_at, 1_100)).await;

    for name in ["absent", "released", "expired"] {
        assert!(backend.lookup(Lookup::Key(&key(name))).await.expect("lookup answers").is_none(), "{name}");
    }
    for held in [&expired, &released] {
        assert!(backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").is_none());
    }
}

/// Printed or serialised by accident, an info gives no name away.
pub async fn an_info_shows_no_raw_name<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("canary-password=hunter2"));
    let held = take(&backend, &key, LONG).await;
    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");

    let text = format!("{info:?} {info:#?} {}", serde_json::to_string(&info).expect("an info is JSON"));

    assert!(!text.contains("canary") && !text.contains("hunter2"), "the key shows");
    assert!(!text.contains(held.lock_id.as_str()), "the lock id shows");
    assert!(text.contains(&key.hash().to_string()));
}

/// A label is kept as it is, or not at all.
pub async fn a_label_is_kept_as_it_is_or_left_out<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let label = Label::new("worker-7 \u{1f6e0} '\"\n").expect("a valid label");
    let lock_id = backend.new_lock_id(&key);
    let request = AcquireRequest::new(&key, &lock_id, LONG).with_label(Some(&label));
    let outcome = backend.acquire(request).await.expect("acquire answers");
    assert!(matches!(outcome, AcquireOutcome::Acquired(_)));

    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");

    assert!(info.label().is_none_or(|kept| *kept == label), "the label came back changed");
    assert!(!format!("{info:?}").contains("worker-7"));
}
