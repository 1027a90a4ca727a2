//! Who hears of a release that failed, and when?

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ErrorCode, ExtendOutcome, LockBackend, LockError, LockId, LockInfo,
    Locker, Lookup, MemoryBackend, ReleaseOutcome, Result, Ttl,
};

/// What every release does.
#[derive(Clone, Copy)]
enum Releases {
    Fail(ErrorCode),
    Hang,
}

/// Memory that grants everything and never releases.
#[derive(Clone)]
struct Sticky {
    memory: MemoryBackend,
    releases: Releases,
    tried: Arc<AtomicU32>,
}

impl Sticky {
    fn new(releases: Releases) -> Self {
        Self { memory: MemoryBackend::new(), releases, tried: Arc::default() }
    }
}

impl LockBackend for Sticky {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.memory.acquire(request).await
    }

    async fn release(&self, _: &LockId) -> Result<ReleaseOutcome> {
        self.tried.fetch_add(1, Ordering::SeqCst);
        match self.releases {
            Releases::Fail(code) => Err(LockError::new(code, "no")),
            Releases::Hang => std::future::pending().await,
        }
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.memory.extend(lock_id, ttl).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.memory.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.memory.purge_expired().await
    }
}

type Heard = Arc<Mutex<Vec<(&'static str, ErrorCode, String)>>>;

fn locker(backend: &Sticky, heard: &Heard) -> Locker {
    let heard = heard.clone();
    let hook = move |error: &LockError, key: &syncguard_core::Key, _: &LockId| {
        heard.lock().unwrap().push(("locker", error.code(), key.as_str().to_owned()));
    };
    Locker::builder(backend.clone()).on_release_error(hook).build()
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_tells_the_lockers_hook_once_after_its_retries() {
    let (backend, heard) = (Sticky::new(Releases::Fail(ErrorCode::ServiceUnavailable)), Heard::default());
    let locker = locker(&backend, &heard);

    drop(locker.lock("k").acquire().await.unwrap());
    locker.drain().await;

    assert_eq!(*heard.lock().unwrap(), [("locker", ErrorCode::ServiceUnavailable, "k".to_owned())]);
    assert_eq!(backend.tried.load(Ordering::SeqCst), 3, "a passing failure is tried again");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_will_not_pass_is_told_at_once() {
    let (backend, heard) = (Sticky::new(Releases::Fail(ErrorCode::AuthFailed)), Heard::default());
    let locker = locker(&backend, &heard);

    let value = locker.lock("k").run(async |_| 42).await.unwrap();

    assert_eq!(value, 42, "the result of the work is not hidden");
    assert_eq!(*heard.lock().unwrap(), [("locker", ErrorCode::AuthFailed, "k".to_owned())]);
    locker.drain().await;
    assert_eq!(backend.tried.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_never_answered_is_told_as_a_timeout() {
    let (backend, heard) = (Sticky::new(Releases::Hang), Heard::default());
    let locker = locker(&backend, &heard);

    drop(locker.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap());
    locker.drain().await;

    assert_eq!(*heard.lock().unwrap(), [("locker", ErrorCode::NetworkTimeout, "k".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_requests_own_hook_hears_instead_of_the_lockers() {
    let (backend, heard) = (Sticky::new(Releases::Fail(ErrorCode::ServiceUnavailable)), Heard::default());
    let locker = locker(&backend, &heard);
    let own = heard.clone();
    let request = locker.lock("k").on_release_error(move |error, key, _| {
        own.lock().unwrap().push(("request", error.code(), key.as_str().to_owned()));
        panic!("a hook that panics harms nothing");
    });

    request.run(async |_| ()).await.unwrap();
    locker.drain().await;

    assert_eq!(*heard.lock().unwrap(), [("request", ErrorCode::ServiceUnavailable, "k".to_owned())]);
}
