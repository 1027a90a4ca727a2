//! Are the documents those of the TypeScript original, whatever the key?

use std::collections::HashMap;

use super::support::raw::{as_number, as_text, lock_fields, number, text};
use super::support::{Project, key, request, take, ttl};
use syncguard_core::{
    AbsentReason, AcquireOutcome, Clock, ErrorCode, ExtendOutcome, Fence, HashId, LockBackend, LockId, Lookup,
    ReleaseOutcome, SystemClock,
};

fn sorted(fields: &HashMap<String, impl Sized>) -> Vec<&str> {
    let mut names: Vec<_> = fields.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn the_documents_have_the_specified_fields_and_one_for_people() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let before = SystemClock.wall().as_millis();

    let (id, lease) = take(&backend, "payment:42").await;

    let raw = project.raw().await;
    let lock = raw.get("locks", "payment:42").await.unwrap();
    assert_eq!(sorted(&lock), ["acquiredAtMs", "expiresAtMs", "fence", "holder", "key", "lockId"]);
    assert_eq!(as_text(&lock, "lockId"), id.as_str());
    assert_eq!(as_text(&lock, "key"), "payment:42");
    assert_eq!(as_text(&lock, "fence"), "000000000000001");
    assert_eq!(as_number(&lock, "expiresAtMs"), lease.expires_at.as_millis());
    assert_eq!(as_number(&lock, "expiresAtMs") - as_number(&lock, "acquiredAtMs"), 30_000);
    assert!(as_number(&lock, "acquiredAtMs") >= before);
    let counter = raw.get("fence_counters", "fence:payment:42").await.unwrap();
    assert_eq!(sorted(&counter), ["fence", "keyDebug"]);
    assert_eq!(as_text(&counter, "fence"), "000000000000001");
    assert_eq!(as_text(&counter, "keyDebug"), "payment:42");
}

#[tokio::test]
async fn an_extend_changes_nothing_but_the_lease_and_a_release_leaves_the_counter() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let (id, _) = take(&backend, "k").await;
    let before = raw.get("locks", "k").await.unwrap();

    let _ = backend.extend(&id, ttl(90_000)).await.unwrap();

    let mut after = raw.get("locks", "k").await.unwrap();
    assert!(as_number(&after, "expiresAtMs") > as_number(&before, "expiresAtMs") + 50_000);
    assert_ne!(after["holder"], before["holder"], "it tells the length of the lease");
    for field in ["expiresAtMs", "holder"] {
        after.insert(field.to_owned(), before[field].clone());
    }
    assert_eq!(after, before);

    backend.release(&id).await.unwrap();
    assert!(raw.get("locks", "k").await.is_none());
    assert!(raw.get("fence_counters", "fence:k").await.is_some());
}

#[tokio::test]
async fn keys_that_cannot_be_document_ids_go_through_a_full_cycle() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    for name in ["a/b", "/a", "a//b", "a/b/c", "/", ".", "..", "__x__", "__id7__"] {
        let (id, lease) = take(&backend, name).await;
        assert_eq!(lease.fence, Fence::FIRST, "{name}");
        let hash = HashId::of(name).to_string();
        assert_eq!(as_text(&raw.get("locks", &hash).await.unwrap(), "key"), name);
        let contended = backend.acquire(request(&key(name), &LockId::random(), 1_000)).await.unwrap();
        assert!(matches!(contended, AcquireOutcome::Contended(_)), "{name}");
        assert!(backend.extend(&id, ttl(30_000)).await.unwrap().is_extended(), "{name}");
        assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Released, "{name}");

        assert!(raw.get("locks", &hash).await.is_none(), "{name}: released for real");
        assert!(!backend.is_locked(&key(name)).await.unwrap(), "{name}");
        let (id, lease) = take(&backend, name).await;
        assert_eq!(lease.fence.get(), 2, "{name}");
        backend.release(&id).await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_equals_another_keys_hash_is_refused_and_not_shared() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let twin = HashId::of("a/b").to_string();
    let (id, _) = take(&backend, "a/b").await;

    let error = backend.acquire(request(&key(&twin), &LockId::random(), 1_000)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    backend.release(&id).await.unwrap();
    // The counter remembers whose it is, so the clash is seen while nobody holds the lock, too.
    let error = backend.acquire(request(&key(&twin), &LockId::random(), 1_000)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);

    take(&backend, "507f1f77bcf86cd799439011").await;
}

#[tokio::test]
async fn a_lock_of_the_original_is_honoured_with_its_raw_key_and_double_numbers() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let (id, live) = (LockId::random(), SystemClock.wall().as_millis() + 30_000);
    // The original stores the key as the caller wrote it: decomposed here.
    let mut fields = lock_fields("cafe\u{301}", id.as_str(), 7, live);
    #[allow(clippy::as_conversions, clippy::cast_precision_loss)]
    let double =
        googleapis_tonic_google_firestore_v1::google::firestore::v1::value::ValueType::DoubleValue(live as f64);
    fields.get_mut("expiresAtMs").unwrap().value_type = Some(double);
    raw.put("locks", "caf\u{e9}", fields).await;
    raw.put("fence_counters", "fence:caf\u{e9}", HashMap::from([("fence".to_owned(), text("000000000000007"))])).await;

    let info = backend.lookup(Lookup::Key(&key("caf\u{e9}"))).await.unwrap().unwrap();
    assert_eq!((info.fence.get(), info.expires_at.as_millis()), (7, live));
    assert_eq!(info.reveal().key, &key("caf\u{e9}"));
    assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(take(&backend, "cafe\u{301}").await.1.fence.get(), 8);
}

#[tokio::test]
async fn a_damaged_document_is_an_internal_error_that_names_the_field_and_other_keys_work() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let live = SystemClock.wall().as_millis() + 30_000;
    for field in ["lockId", "key", "fence", "acquiredAtMs", "expiresAtMs"] {
        for damage in [None, Some(number(-1)), Some(text(""))] {
            let mut fields = lock_fields("canary-key", LockId::random().as_str(), 1, live);
            match &damage {
                None => _ = fields.remove(field),
                // A negative time is a time, long past.
                Some(value) if *value == number(-1) && field.ends_with("AtMs") => continue,
                Some(value) => _ = fields.insert(field.to_owned(), value.clone()),
            }
            raw.put("locks", "canary-key", fields).await;
            for error in [
                backend.acquire(request(&key("canary-key"), &LockId::random(), 1_000)).await.map(|_| ()).unwrap_err(),
                backend.is_locked(&key("canary-key")).await.map(|_| ()).unwrap_err(),
                backend.lookup(Lookup::Key(&key("canary-key"))).await.map(|_| ()).unwrap_err(),
            ] {
                assert_eq!(error.code(), ErrorCode::Internal, "{field} {damage:?}");
                assert!(error.to_string().contains(field), "{error}");
                assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
            }
        }
    }
    take(&backend, "other").await;
}

#[tokio::test]
async fn a_damaged_or_exhausted_counter_is_refused_and_nothing_is_written() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    for counter in ["900000000000000", "999999999999999", "1000000000000000", "", "12", "-00000000000001", "x"] {
        let fields = HashMap::from([("fence".to_owned(), text(counter))]);
        raw.put("fence_counters", "fence:k", fields.clone()).await;

        let error = backend.acquire(request(&key("k"), &LockId::random(), 1_000)).await.unwrap_err();

        assert_eq!(error.code(), ErrorCode::Internal, "{counter}");
        assert!(raw.get("locks", "k").await.is_none(), "{counter}: no orphan lock");
        assert_eq!(raw.get("fence_counters", "fence:k").await.unwrap(), fields);
    }
    raw.put("fence_counters", "fence:k", HashMap::from([("fence".to_owned(), number(3))])).await;
    assert!(backend.acquire(request(&key("k"), &LockId::random(), 1_000)).await.is_err());
    raw.put("fence_counters", "fence:k", HashMap::from([("fence".to_owned(), text("000000000000000"))])).await;
    assert_eq!(take(&backend, "k").await.1.fence, Fence::FIRST);
}

#[tokio::test]
async fn a_lost_counter_is_survived_by_the_dead_locks_fence_and_by_the_floor() {
    let project = Project::start().await;
    let raw = project.raw().await;
    let dead = SystemClock.wall().as_millis() - 60_000;
    raw.put("locks", "k", lock_fields("k", LockId::random().as_str(), 41, dead)).await;
    assert_eq!(take(&project.backend().await, "k").await.1.fence.get(), 42);

    let floored = project.builder().fence_floor(true).connect().await.unwrap();
    let before = u64::try_from(SystemClock.wall().as_millis()).unwrap() - 5_000;
    let (id, lease) = take(&floored, "other").await;
    assert!(lease.fence.get() > before, "{:?}", lease.fence);
    floored.release(&id).await.unwrap();
    assert!(take(&floored, "other").await.1.fence > lease.fence);
}

#[tokio::test]
async fn an_acquire_is_idempotent_by_lock_id() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let (id, lease) = take(&backend, "k").await;

    let again = backend.acquire(request(&key("k"), &id, 90_000)).await.unwrap();

    let AcquireOutcome::Acquired(again) = again else { panic!("contended by itself") };
    assert_eq!((again.fence, again.expires_at), (lease.fence, lease.expires_at));
    assert!(again.observed_at >= lease.observed_at && lease.observed_at.is_some(), "its age is known");
}

#[tokio::test]
async fn an_expired_lock_is_told_from_one_that_never_was() {
    let project = Project::start().await;
    let (backend, dead) = (project.backend().await, LockId::random());
    let expired_at = SystemClock.wall().as_millis() - 60_000;
    project.raw().await.put("locks", "k", lock_fields("k", dead.as_str(), 1, expired_at)).await;

    for (lock_id, reason) in [(dead, AbsentReason::Expired), (LockId::random(), AbsentReason::NotFound)] {
        assert_eq!(backend.extend(&lock_id, ttl(1_000)).await.unwrap(), ExtendOutcome::Absent(Some(reason)));
        assert_eq!(backend.release(&lock_id).await.unwrap(), ReleaseOutcome::Absent(Some(reason)));
    }
}

#[tokio::test]
async fn a_backend_is_shared_freely_and_shows_no_secret() {
    fn assert_shareable<T: Clone + std::fmt::Debug + Send + Sync + 'static>(_: &T) {}
    let project = Project::start().await;
    let backend = project.builder().credentials("/canary.json").connect().await.unwrap();
    assert_shareable(&backend);
    assert!(!format!("{backend:?} {:?}", backend.clone()).contains("canary"));
}

#[tokio::test]
async fn the_health_check_finds_keys_that_another_client_stores_elsewhere() {
    let project = Project::start().await;
    let backend = project.backend().await;
    take(&backend, "a/b/c").await;
    let warns = async || backend.health().await.checks.iter().any(|check| check.name == "keys");
    assert!(!warns().await, "our own form of such keys is fine");

    let expires_at = SystemClock.wall().as_millis() + 60_000;
    let fields = lock_fields("a/b/c", LockId::random().as_str(), 1, expires_at);
    project.raw().await.put("locks/a/b", "c", fields).await;

    assert!(warns().await);
}
