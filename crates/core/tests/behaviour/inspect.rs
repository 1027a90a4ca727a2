//! Seeing who holds what, and asking for it.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use syncguard_core::{
    AskOutcome, Counts, Cursor, ErrorCode, Guard, Inspect, Inspector, ListRequest, LockBackend, LockError, LockId,
    Locker, MemoryBackend, Page, Renewal, Result, TransitionKind, Watch,
};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn locker() -> (Locker, Inspector) {
    let locker = Locker::new(MemoryBackend::new());
    let inspector = locker.backend().inspector().unwrap();
    (locker, inspector)
}

async fn hold(locker: &Locker, key: &str, seconds: u64) -> Guard {
    locker.lock(key).ttl(SECOND * u32::try_from(seconds).unwrap()).acquire().await.unwrap()
}

/// What the watch tells, as words and keys, once there is something.
async fn news(watch: &mut Watch) -> Vec<String> {
    for _ in 0..1000 {
        let news = watch.next().await.unwrap();
        if !news.is_empty() {
            return news.iter().map(|it| format!("{} {}", it.kind.as_str(), it.lock.reveal().key.as_str())).collect();
        }
    }
    panic!("nothing was told");
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_what_became_of_every_lock() {
    let (locker, inspector) = locker();
    let first = hold(&locker, "a", 30).await;
    let mut watch = inspector.watch("");
    assert_eq!(news(&mut watch).await, ["present a"]);

    let second = hold(&locker, "b", 5).await;
    assert_eq!(news(&mut watch).await, ["acquired b"]);

    sleep(SECOND).await;
    assert!(first.extend(SECOND * 30).await.unwrap().is_extended());
    assert_eq!(news(&mut watch).await, ["renewed a"]);

    first.release().await.unwrap();
    assert_eq!(news(&mut watch).await, ["released a"]);

    second.leak();
    assert_eq!(news(&mut watch).await, ["expired b"]);
    assert_eq!(watch.locks().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_a_hand_over_from_a_lock_that_was_taken_over() {
    let (locker, inspector) = locker();
    let mut watch = inspector.watch("k");
    hold(&locker, "kind", 30).await.leak();
    let handed = hold(&locker, "k", 30).await;
    let dead = hold(&locker, "killed", 5).await;
    assert_eq!(watch.next().await.unwrap().len(), 3);

    // Nobody looks meanwhile, so the watch sees the outcome only.
    handed.release().await.unwrap();
    let next = hold(&locker, "k", 60).await;
    dead.leak();
    sleep(SECOND * 7).await;
    let thief = hold(&locker, "killed", 30).await;

    let told = watch.next().await.unwrap();
    let words: Vec<_> = told.iter().map(|it| (it.kind, it.lock.fence, it.previous.is_some())).collect();
    let expected = [
        (TransitionKind::Released, handed.fence(), false),
        (TransitionKind::Acquired, next.fence(), false),
        (TransitionKind::Stolen, thief.fence(), true),
    ];
    assert_eq!(words, expected);
    assert!(next.fence() > handed.fence());
}

/// Answers from memory while it is up.
struct Shaky {
    memory: MemoryBackend,
    down: Arc<AtomicBool>,
}

impl Inspect for Shaky {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        if self.down.load(Ordering::Relaxed) {
            return Err(LockError::new(ErrorCode::ServiceUnavailable, "down"));
        }
        self.memory.list(request).await
    }

    async fn count(&self) -> Result<Counts> {
        self.memory.count().await
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        self.memory.ask(lock_id).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_the_storage_was_away_and_needs_no_hints() {
    let memory = MemoryBackend::new();
    let down = Arc::new(AtomicBool::new(true));
    let locker = Locker::new(memory.clone());
    let mut watch = Inspector::new(Shaky { memory, down: down.clone() }).watch("");
    let before = hold(&locker, "before", 300).await;

    assert_eq!(watch.next().await.unwrap_err().code(), ErrorCode::ServiceUnavailable);
    down.store(false, Ordering::Relaxed);
    assert_eq!(news(&mut watch).await, ["present before"]);

    down.store(true, Ordering::Relaxed);
    assert!(watch.next().await.is_err() && watch.next().await.is_err());
    before.release().await.unwrap();
    let _after = hold(&locker, "after", 300).await;
    down.store(false, Ordering::Relaxed);
    assert_eq!(news(&mut watch).await, ["released before", "acquired after"]);
}

#[tokio::test(start_paused = true)]
async fn a_listing_goes_page_by_page_through_the_live_locks_of_a_prefix() {
    let (locker, inspector) = locker();
    let mut guards = Vec::new();
    for number in 0..25 {
        guards.push(hold(&locker, &format!("job%{number:02}"), 60).await);
    }
    guards.push(hold(&locker, "jobs", 60).await);
    hold(&locker, "job%dead", 1).await.leak();
    sleep(SECOND * 3).await;

    let mut keys = Vec::new();
    let mut cursor: Option<Cursor> = None;
    for _ in 0..100 {
        let request = ListRequest::new("job%").page_size(10).after(cursor.as_ref());
        let page = inspector.list(request).await.unwrap();
        assert!(page.locks.len() <= 10);
        keys.extend(page.locks.iter().map(|lock| lock.reveal().key.as_str().to_owned()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }

    assert!(cursor.is_none());
    let expected: Vec<_> = (0..25).map(|number| format!("job%{number:02}")).collect();
    assert_eq!(keys, expected);
    assert_eq!(inspector.count().await.unwrap(), Counts::new(26, 27));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_renews_hears_that_it_is_asked_and_the_next_one_does_not() {
    let (locker, inspector) = locker();
    let guard = locker.lock("k").ttl(SECOND * 30).keep_alive().acquire().await.unwrap();
    assert!(timeout(SECOND * 60, guard.asked_to_release()).await.is_err());

    assert_eq!(inspector.ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    timeout(SECOND * 11, guard.asked_to_release()).await.unwrap();

    assert!(guard.is_asked_for() && guard.is_held());
    let seen = locker.inspect("k").await.unwrap().unwrap();
    assert!(seen.is_asked_for() && matches!(seen.renewal(), Renewal::Renewed { .. }));
    guard.release().await.unwrap();
    assert_eq!(inspector.ask(guard.lock_id()).await.unwrap(), AskOutcome::Absent);
    let next = locker.lock("k").ttl(SECOND * 30).keep_alive().acquire().await.unwrap();
    assert!(timeout(SECOND * 60, next.asked_to_release()).await.is_err());
}

#[test]
fn nothing_about_keys_is_printed() {
    let cursor = Cursor::new("canary");
    let request = ListRequest::new("canary").after(Some(&cursor));

    assert!(!format!("{request:?} {cursor:?}").contains("canary"));
}
