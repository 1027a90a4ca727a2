//! What do operators see, and does looking harm anybody?
//!
//! For backends that can be inspected; one that cannot is complete without it, and says so by a visible skip.

use std::collections::BTreeSet;
use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, AskOutcome, ExtendOutcome, Extension, Fence, Inspector, Key, Label, ListRequest,
    LockBackend, LockId, LockInfo, Lookup, Watch,
};

use crate::runner::skip;
use crate::support::{BackendClock, Held, LONG, after, assert_contended, extend, give_back, key, take, ttl};
use crate::{Harness, Poison, Unsupported};

/// A hint that comes later than this is of no use to anybody.
const SOON: Duration = Duration::from_secs(10);

/// The ability of this backend. Without it the case is skipped.
fn inspector<B: LockBackend>(backend: &B, case: &str) -> Option<Inspector> {
    let inspector = backend.inspector();
    if inspector.is_none() {
        skip(case, &Unsupported::because("this backend cannot be inspected"));
    }
    inspector
}

/// All pages of a listing.
async fn list(inspector: &Inspector, prefix: &str, page_size: u32) -> Vec<LockInfo> {
    let (mut locks, mut cursor) = (Vec::new(), None);
    for _ in 0..100_000 {
        let request = ListRequest::new(prefix).page_size(page_size).after(cursor.as_ref());
        let page = inspector.list(request).await.expect("list answers");
        locks.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            return locks;
        }
    }
    panic!("the listing has no end");
}

/// Which keys a listing shows. A storage that moves under it may show one twice.
async fn names(inspector: &Inspector, prefix: &str, page_size: u32) -> BTreeSet<String> {
    let locks = list(inspector, prefix, page_size).await;
    locks.iter().map(|info| info.reveal().key.as_str().to_owned()).collect()
}

async fn listed(inspector: &Inspector, key: &Key) -> Option<LockInfo> {
    list(inspector, key.as_str(), 500).await.into_iter().find(|info| info.reveal().key == key)
}

async fn seen<B: LockBackend>(backend: &B, key: &Key) -> LockInfo {
    backend.lookup(Lookup::Key(key)).await.expect("lookup answers").expect("the lock is held")
}

/// Every live lock is shown, of this namespace only, in pages of any size, and a prefix is not a pattern.
pub async fn a_listing_shows_what_is_held_by_the_beginning_of_its_key<H: Harness>(h: &H) {
    let (backend, elsewhere) = (h.backend().await, h.elsewhere().await);
    let case = "a_listing_shows_what_is_held_by_the_beginning_of_its_key";
    let Some(inspector) = inspector(&backend, case) else { return };
    // A storage that has no order of its own is looked through as a whole, ten names a step and at the pace of a listing:
    // where the server is shared and busy, that takes longer than an ordinary lease.
    let lease = ttl(3_600_000);
    take(&elsewhere, &key("j_%*b:99"), lease).await;
    let mut expected = BTreeSet::new();
    for number in 0..25 {
        let name = format!("j_%*b:{number}");
        let held = take(&backend, &key(&name), lease).await;
        if number % 5 == 0 {
            give_back(&backend, &held).await;
        } else {
            expected.insert(name);
        }
    }
    let others = ["j_%*c", "jx%*b:1", "j_yy*b:1", "j_%yyb:1", "J_%*b:1", "é"].map(str::to_owned);
    for name in &others {
        take(&backend, &key(name), lease).await;
    }

    for page_size in [10, 10_000] {
        assert_eq!(names(&inspector, "j_%*b:", page_size).await, expected, "{page_size} a page");
    }
    let all: BTreeSet<String> = expected.iter().chain(&others).cloned().collect();
    assert_eq!(names(&inspector, "", 500).await, all);

    assert_eq!(names(&inspector, "j_%*b:1", 500).await.len(), 9, "1, and 11 to 19 without 15");
    assert!(names(&inspector, "k", 500).await.is_empty());
    let (key, by_key) = (key("j_%*b:7"), seen(&backend, &key("j_%*b:7")).await);
    let listed = listed(&inspector, &key).await.expect("it is held");
    let told = |info: &LockInfo| (info.reveal().lock_id.clone(), info.fence, info.acquired_at, info.expires_at);
    assert_eq!(told(&listed), told(&by_key));
}

/// What is over is neither listed nor counted, whether or not the storage still keeps it; counters are for ever.
pub async fn a_listing_and_a_count_pass_over_what_is_over<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let Some(inspector) = inspector(&backend, "a_listing_and_a_count_pass_over_what_is_over") else { return };
    let clock = BackendClock::start(&backend).await;
    let living = take(&backend, &key("living"), LONG).await;
    let released = take(&backend, &key("released"), LONG).await;
    give_back(&backend, &released).await;
    let dead = take(&backend, &key("dead"), ttl(1)).await;
    clock.wait_until(h, &backend, after(dead.expires_at, 1_100)).await;

    let shown = names(&inspector, "", 500).await;
    let counts = inspector.count().await.expect("count answers");

    assert!(shown.contains("living") && !shown.contains("dead") && !shown.contains("released"), "{shown:?}");
    // The clock's own lock is the other one.
    assert_eq!((shown.len(), counts.locks, counts.counters), (2, 2, 4));
    give_back(&backend, &living).await;
    assert_eq!(inspector.count().await.expect("count answers").locks, 1);
}

/// A stored value that is no lock holds up its own key, not the listing.
pub async fn a_listing_passes_over_what_is_no_lock<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let Some(inspector) = inspector(&backend, "a_listing_passes_over_what_is_no_lock") else { return };
    if let Err(reason) = h.poison(&key("foreign"), Poison::NotALock).await {
        return skip("a_listing_passes_over_what_is_no_lock", &reason);
    }
    take(&backend, &key("lock"), LONG).await;

    assert_eq!(names(&inspector, "", 500).await, BTreeSet::from(["lock".to_owned()]));
    inspector.count().await.expect("count answers");
}

/// Looking at everything moves no lease, no fence and no counter.
pub async fn inspecting_changes_nothing<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let Some(inspector) = inspector(&backend, "inspecting_changes_nothing") else { return };
    let (held_key, free_key) = (key("held"), key("free"));
    let held = take(&backend, &held_key, LONG).await;
    let before = seen(&backend, &held_key).await;

    for _ in 0..3 {
        list(&inspector, "", 500).await;
        inspector.count().await.expect("count answers");
        drop(inspector.changes().await);
    }

    let after = seen(&backend, &held_key).await;
    assert_eq!((after.expires_at, after.fence, after.is_asked_for()), (before.expires_at, before.fence, false));
    assert_contended(&backend, &held_key).await;
    assert_eq!(take(&backend, &free_key, LONG).await.fence, Fence::FIRST);
    give_back(&backend, &held).await;
}

async fn take_labelled<B: LockBackend>(backend: &B, key: &Key, label: &Label, millis: i64) -> Held {
    let lock_id = backend.new_lock_id(key);
    let request = AcquireRequest::new(key, &lock_id, ttl(millis)).with_label(Some(label));
    match backend.acquire(request).await.expect("acquire answers") {
        AcquireOutcome::Acquired(lease) => Held { lock_id, fence: lease.fence, expires_at: lease.expires_at },
        AcquireOutcome::Contended(_) => panic!("the lock is free, so acquire succeeds"),
    }
}

/// A label names its holder, through renewals, and nobody else: not the one after it, however the lock changed hands.
pub async fn a_label_is_shown_and_not_with_the_next_holder<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let Some(inspector) = inspector(&backend, "a_label_is_shown_and_not_with_the_next_holder") else { return };
    let clock = BackendClock::start(&backend).await;
    let (given_back, died) = (key("given back"), key("died"));
    let label = Label::new("ada@web-1:77 'é\u{1b}[31m\"").expect("a valid label");
    let first = take_labelled(&backend, &given_back, &label, 30_000).await;
    assert!(extend(&backend, &first, LONG).await);
    for info in [seen(&backend, &given_back).await, listed(&inspector, &given_back).await.expect("it is held")] {
        assert_eq!(info.label(), Some(&label), "a backend that can be inspected shows who holds");
        assert!(!format!("{info:?}").contains("ada@web-1"));
    }
    let dead = take_labelled(&backend, &died, &label, 1).await;
    // The mark of somebody who asked must not be inherited either.
    let _ = inspector.ask(&first.lock_id).await.expect("ask answers");
    let _ = inspector.ask(&dead.lock_id).await.expect("ask answers");

    give_back(&backend, &first).await;
    clock.wait_until(h, &backend, after(dead.expires_at, 1_100)).await;

    for key in [given_back, died] {
        let next = take(&backend, &key, LONG).await;
        for info in [seen(&backend, &key).await, listed(&inspector, &key).await.expect("it is held")] {
            assert_eq!(info.reveal().lock_id, &next.lock_id);
            assert_eq!((info.label(), info.is_asked_for()), (None, false), "a former holder's");
        }
    }
}

async fn renew<B: LockBackend>(backend: &B, lock_id: &LockId) -> Extension {
    match backend.extend(lock_id, LONG).await.expect("extend answers") {
        ExtendOutcome::Extended(extension) => extension,
        ExtendOutcome::Absent(_) => panic!("a held lock could not be extended"),
    }
}

/// The mark reaches the holder with the answer to its next renewal, and ends with the lock.
pub async fn a_holder_hears_with_its_next_renewal_that_it_was_asked<H: Harness>(h: &H) {
    let (backend, operator, key) = (h.backend().await, h.backend().await, key("k"));
    let case = "a_holder_hears_with_its_next_renewal_that_it_was_asked";
    let Some(inspector) = inspector(&operator, case) else { return };
    let stranger = backend.new_lock_id(&key);
    assert_eq!(inspector.ask(&stranger).await.expect("ask answers"), AskOutcome::Absent);
    let held = take(&backend, &key, LONG).await;
    assert!(!renew(&backend, &held.lock_id).await.is_asked_for, "nobody asked");
    let before = seen(&backend, &key).await;

    assert_eq!(inspector.ask(&held.lock_id).await.expect("ask answers"), AskOutcome::Asked);

    let marked = seen(&backend, &key).await;
    assert!(marked.is_asked_for() && !before.is_asked_for());
    assert_eq!(marked.expires_at, before.expires_at, "a question is no renewal");
    assert!(listed(&inspector, &key).await.expect("it is held").is_asked_for());
    for _ in 0..2 {
        assert!(renew(&backend, &held.lock_id).await.is_asked_for);
    }
    give_back(&backend, &held).await;
    assert_eq!(inspector.ask(&held.lock_id).await.expect("ask answers"), AskOutcome::Absent);
    let next = take(&backend, &key, LONG).await;
    assert!(!renew(&backend, &next.lock_id).await.is_asked_for, "the next holder is not asked");
}

/// A storage that hints at changes hints at a release that somebody waits for, and the waiter hears it too.
pub async fn a_release_that_is_waited_for_hints_at_a_change<H: Harness>(h: &H) {
    let (holder, operator, key) = (h.backend().await, h.backend().await, key("k"));
    let case = "a_release_that_is_waited_for_hints_at_a_change";
    let Some(inspector) = inspector(&operator, case) else { return };
    let held = take(&holder, &key, LONG).await;
    let waiting = operator.subscribe(&key).await;
    let changes = inspector.changes().await;
    if !changes.is_live() {
        return skip(
            case,
            &Unsupported::because("this backend hints at no changes; watching is listing by a schedule"),
        );
    }

    give_back(&holder, &held).await;

    tokio::time::timeout(SOON, changes.woken()).await.expect("who watches hears of the release");
    if waiting.is_live() {
        tokio::time::timeout(SOON, waiting.woken()).await.expect("who waits hears of it as well");
    }
}

/// What the next looks tell, until all of it was told.
async fn told(watch: &mut Watch, expected: usize) -> BTreeSet<(&'static str, String)> {
    let mut told = BTreeSet::new();
    for _ in 0..30 {
        for transition in watch.next().await.expect("a look answers") {
            told.insert((transition.kind.as_str(), transition.lock.reveal().key.as_str().to_owned()));
        }
        if told.len() >= expected {
            return told;
        }
    }
    panic!("not told in thirty looks; only {told:?}");
}

/// Watching finds what came, what was renewed and what left, also where the storage hints at nothing.
pub async fn a_watch_tells_who_came_and_who_left<H: Harness>(h: &H) {
    let (backend, operator) = (h.backend().await, h.backend().await);
    let Some(inspector) = inspector(&operator, "a_watch_tells_who_came_and_who_left") else { return };
    let clock = BackendClock::start(&backend).await;
    let stays = take(&backend, &key("w:stays"), LONG).await;
    let leaves = take(&backend, &key("w:leaves"), LONG).await;
    take(&backend, &key("not watched"), LONG).await;
    let mut watch = inspector.watch("w:");
    let pairs = |pairs: &[(&'static str, &str)]| -> BTreeSet<(&'static str, String)> {
        pairs.iter().map(|(kind, key)| (*kind, (*key).to_owned())).collect()
    };
    assert_eq!(told(&mut watch, 2).await, pairs(&[("present", "w:stays"), ("present", "w:leaves")]));

    give_back(&backend, &leaves).await;
    take(&backend, &key("w:comes"), LONG).await;
    // In the same millisecond as the acquisition it would change nothing.
    clock.wait_until(h, &backend, after(stays.expires_at, 5 - LONG.as_millis())).await;
    assert!(extend(&backend, &stays, LONG).await);

    let expected = pairs(&[("renewed", "w:stays"), ("released", "w:leaves"), ("acquired", "w:comes")]);
    assert_eq!(told(&mut watch, 3).await, expected);
    assert_eq!(watch.locks().count(), 2);
}
