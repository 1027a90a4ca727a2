//! What do operators see, also of clients that know nothing of it?

use std::collections::BTreeSet;
use std::time::Duration;

use super::support::raw::{lock_fields, number, text};
use super::support::{Fault, Project, key, take, ttl};
use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::value::ValueType;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, AskOutcome, Clock, Cursor, ErrorCode, ExtendOutcome, Inspector, Label, ListRequest,
    LockBackend, LockId, LockInfo, Locker, Lookup, Renewal, SystemClock, Ttl,
};
use syncguard_firestore::FirestoreBackend;
use tonic::Code;

fn inspector(backend: &FirestoreBackend) -> Inspector {
    backend.inspector().expect("firestore can be inspected")
}

/// All pages of a listing.
async fn list(backend: &FirestoreBackend, prefix: &str, page_size: u32) -> Vec<LockInfo> {
    let (inspector, mut cursor, mut locks) = (inspector(backend), None, Vec::new());
    for _ in 0..1000 {
        let request = ListRequest::new(prefix).page_size(page_size).after(cursor.as_ref());
        let page = inspector.list(request).await.unwrap();
        locks.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            return locks;
        }
    }
    panic!("the listing has no end");
}

async fn seen(backend: &FirestoreBackend, name: &str) -> LockInfo {
    backend.lookup(Lookup::Key(&key(name))).await.unwrap().expect("it is held")
}

fn told(info: &LockInfo) -> (Option<&str>, Option<Ttl>, bool) {
    (info.label().map(Label::as_str), info.ttl(), info.is_asked_for())
}

fn soon() -> i64 {
    SystemClock.wall().as_millis() + 600_000
}

async fn take_labelled(backend: &FirestoreBackend, name: &str, label: &str) -> LockId {
    let (key, id, label) = (key(name), LockId::random(), Label::new(label).unwrap());
    let request = AcquireRequest::new(&key, &id, ttl(600_000)).with_label(Some(&label));
    let outcome = backend.acquire(request).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Acquired(_)));
    id
}

#[tokio::test]
async fn a_holder_is_seen_with_its_label_and_hears_that_it_was_asked() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let locker = Locker::new(backend.clone());
    let request = locker.lock("deploy/web").ttl(Duration::from_secs(600)).label("ada@web-1:77 migrate");
    let guard = request.acquire().await.unwrap();

    let info = seen(&backend, "deploy/web").await;
    assert_eq!(told(&info), (Some("ada@web-1:77 migrate"), Some(ttl(600_000)), false));
    assert_eq!(info.renewal(), Renewal::NotYet);
    assert_eq!(told(&list(&backend, "dep", 10).await[0]), told(&info));

    assert_eq!(inspector(&backend).ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    assert!(seen(&backend, "deploy/web").await.is_asked_for());
    assert!(!guard.is_asked_for(), "it has not spoken with the server since");
    // A renewal in the same millisecond as the acquisition could not be told from none.
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert!(guard.extend(Duration::from_secs(700)).await.unwrap().is_extended());
    assert!(guard.is_asked_for());
    let info = backend.lookup(Lookup::LockId(guard.lock_id())).await.unwrap().unwrap();
    assert_eq!(told(&info), (Some("ada@web-1:77 migrate"), Some(ttl(700_000)), true));
    assert!(matches!(info.renewal(), Renewal::Renewed { .. }), "{:?}", info.renewal());

    // The mark ends with the lock.
    let id = guard.lock_id().clone();
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Absent);
    take(&backend, "deploy/web").await;
    assert_eq!(told(&seen(&backend, "deploy/web").await), (None, Some(ttl(30_000)), false));
}

#[tokio::test]
async fn a_client_without_labels_takes_over_and_is_not_shown_with_the_old_one() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let former = take_labelled(&backend, "k", "ada").await;
    assert_eq!(inspector(&backend).ask(&former).await.unwrap(), AskOutcome::Asked);
    let stored = raw.get("locks", "k").await.unwrap();
    let theirs = LockId::random();
    // The original sets the whole document; a client that merged its fields would leave the one that it does not know.
    let whole = lock_fields("k", theirs.as_str(), 2, soon());
    let mut merged = whole.clone();
    merged.insert("holder".to_owned(), stored["holder"].clone());

    for written in [whole, merged] {
        raw.put("locks", "k", written.clone()).await;

        let info = seen(&backend, "k").await;
        assert_eq!((info.reveal().lock_id, told(&info)), (&theirs, (None, None, false)));
        assert_eq!(info.renewal(), Renewal::Unknown);
        assert_eq!(told(&list(&backend, "", 10).await[0]), (None, None, false));
        // It can be asked for and renewed by us, and the former holder's name does not come back by it.
        assert_eq!(inspector(&backend).ask(&theirs).await.unwrap(), AskOutcome::Asked);
        let extended = backend.extend(&theirs, ttl(700_000)).await.unwrap();
        assert!(matches!(extended, ExtendOutcome::Extended(extension) if extension.is_asked_for), "{extended:?}");
        assert_eq!(told(&seen(&backend, "k").await), (None, Some(ttl(700_000)), true));
    }
    assert!(backend.release(&theirs).await.unwrap().is_released());
}

#[tokio::test]
async fn an_original_that_renews_keeps_the_label_and_a_strange_field_hides_nothing() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    take_labelled(&backend, "k", "ada").await;
    // As `update({ expiresAtMs })` does.
    let mut renewed = raw.get("locks", "k").await.unwrap();
    renewed.insert("expiresAtMs".to_owned(), number(soon() + 3_000_000));
    raw.put("locks", "k", renewed.clone()).await;

    let info = seen(&backend, "k").await;
    assert_eq!((info.label().map(Label::as_str), info.renewal()), (Some("ada"), Renewal::Unknown));

    for strange in [text("ada"), number(7), proto::Value { value_type: Some(ValueType::BooleanValue(true)) }] {
        renewed.insert("holder".to_owned(), strange);
        raw.put("locks", "k", renewed.clone()).await;
        assert_eq!(told(&seen(&backend, "k").await), (None, None, false));
    }
}

#[tokio::test]
async fn a_listing_is_complete_in_small_steps_and_shows_live_locks_only() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    let mut expected = BTreeSet::new();
    for count in 0..24 {
        // A key with a slash lies under its hash, and is listed among the others all the same.
        let name = if count % 2 == 0 { format!("deploy:{count}") } else { format!("deploy:a/{count}") };
        let id = take_labelled(&backend, &name, "ada").await;
        if count % 3 == 0 {
            assert!(backend.release(&id).await.unwrap().is_released());
        } else {
            expected.insert(name);
        }
    }
    for name in ["deploy", "deploy;", "deplox", "\u{10ffff}"] {
        take(&backend, name).await;
    }
    raw.put("locks", "deploy:dead", lock_fields("deploy:dead", LockId::random().as_str(), 1, 1_000)).await;
    let mut damaged = lock_fields("deploy:damaged", "short", 1, soon());
    raw.put("locks", "deploy:damaged", damaged.clone()).await;
    damaged.remove("key");
    raw.put("locks", "deploy:nameless", damaged).await;

    for page_size in [1, 7, 1000] {
        let found = list(&backend, "deploy:", page_size).await;
        let names: BTreeSet<String> = found.iter().map(|info| info.reveal().key.as_str().to_owned()).collect();
        assert_eq!((names, found.len()), (expected.clone(), expected.len()), "{page_size} a page");
    }

    assert_eq!(list(&backend, "", 5).await.len(), expected.len() + 4);
    assert_eq!(list(&backend, "\u{10ffff}", 5).await.len(), 1);
    assert!(list(&backend, "e", 5).await.is_empty());
    let counts = inspector(&backend).count().await.unwrap();
    // The two damaged documents have an expiry, and no counter.
    assert_eq!((counts.locks, counts.counters), (24 - 8 + 4 + 2, 24 + 4));
}

#[tokio::test]
async fn a_listing_reads_what_has_the_prefix_and_nothing_else() {
    let project = Project::start().await;
    let backend = project.backend().await;
    for name in ["a", "b:1", "b:2", "b:3", "c"] {
        take(&backend, name).await;
    }
    project.faults.reset_calls();

    let page = inspector(&backend).list(ListRequest::new("b:").page_size(3)).await.unwrap();

    assert_eq!(page.locks.len(), 3);
    assert_eq!(project.faults.calls(), [("RunQuery".to_owned(), 1)]);
    let rest = inspector(&backend).list(ListRequest::new("b:").page_size(3).after(page.next.as_ref())).await.unwrap();
    assert!(rest.locks.is_empty() && rest.next.is_none());
    let _ = inspector(&backend).count().await.unwrap();
    assert_eq!(project.faults.calls(), [("RunAggregationQuery".to_owned(), 2), ("RunQuery".to_owned(), 2)]);
}

#[tokio::test]
async fn a_question_survives_a_renewal_at_the_same_moment_and_a_lost_reply() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let (id, _) = take(&backend, "k").await;
    for fault in [Fault::Refuse(Code::Aborted), Fault::LoseReply(Code::Unavailable)] {
        project.faults.next("Commit", fault);
        assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Asked);
    }
    assert_eq!(project.faults.fired(), 2);
    // Five of each at once, which is fewer than an operation may lose in a row: each is answered, and the mark stays.
    let ask = inspector(&backend);
    let asking = async {
        for _ in 0..5 {
            assert_eq!(ask.ask(&id).await.unwrap(), AskOutcome::Asked);
        }
    };
    let renewing = async {
        for _ in 0..5 {
            assert!(backend.extend(&id, ttl(60_000)).await.unwrap().is_extended());
        }
    };
    tokio::join!(asking, renewing);
    assert_eq!(told(&seen(&backend, "k").await), (None, Some(ttl(60_000)), true));
}

#[tokio::test]
async fn a_missing_index_and_a_foreign_cursor_are_named() {
    let project = Project::start().await;
    let backend = project.backend().await;
    project.faults.next("RunQuery", Fault::Refuse(Code::FailedPrecondition));

    let error = inspector(&backend).list(ListRequest::new("")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().contains("`key`") && error.hint().unwrap().contains("fields update key"), "{error:?}");

    let foreign = Cursor::new("17 0 server");
    let error = inspector(&backend).list(ListRequest::new("").after(Some(&foreign))).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert_eq!(project.faults.fired(), 1);
}
