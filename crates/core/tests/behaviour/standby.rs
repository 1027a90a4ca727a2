//! A lock is kept alive although its runtime does not run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, Guard, LockBackend, LockId, LockInfo, Locker, Lookup,
    LossReason, MemoryBackend, ReleaseOutcome, Result, SystemClock, Ttl,
};
use tokio::runtime::{Builder, Runtime};

const SECOND: Duration = Duration::from_secs(1);

/// A runtime that runs only inside of `block_on`.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The clock of real backends; the memory backend's own is one that tests pause, and nobody stands by for those.
fn real(backend: impl LockBackend) -> Locker {
    Locker::builder(backend).clock(Arc::new(SystemClock)).build()
}

/// Works as long as it takes, outside of every runtime.
fn compute_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1_200 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what} did not happen within a minute");
}

fn renewed(guard: &Guard, since: syncguard_core::Timestamp) -> bool {
    guard.check().unwrap();
    guard.expires_at() > since
}

#[test]
fn a_lock_is_renewed_while_its_caller_computes_outside_of_the_runtime() {
    let runtime = runtime();
    let locker = real(MemoryBackend::new());
    let guard = runtime.block_on(locker.lock("k").ttl(6 * SECOND).keep_alive().acquire()).unwrap();
    let granted = guard.expires_at();

    compute_until("the renewal", || renewed(&guard, granted));

    assert!(runtime.block_on(guard.release()).unwrap().is_released());
    assert_eq!(guard.loss(), Some(LossReason::Released));
}

#[test]
fn a_lock_is_renewed_while_all_threads_of_its_runtime_are_blocked() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let locker = real(MemoryBackend::new());
    let guard = runtime.block_on(locker.lock("k").ttl(6 * SECOND).keep_alive().acquire()).unwrap();
    let granted = guard.expires_at();
    let blocked: Vec<_> = (0..2)
        .map(|_| {
            let (end, ends) = std::sync::mpsc::channel::<()>();
            runtime.spawn(async move { ends.recv() });
            end
        })
        .collect();

    compute_until("the renewal", || renewed(&guard, granted));

    drop(blocked);
    assert!(runtime.block_on(guard.release()).unwrap().is_released());
}

#[test]
fn a_lock_is_renewed_while_its_own_renewal_stands_still_in_the_middle() {
    let runtime = runtime();
    let backend = FirstExtendHangs { memory: MemoryBackend::new(), extends: Arc::default() };
    let locker = real(backend.clone());
    let request = locker.lock("k").ttl(9 * SECOND).renew_every(SECOND / 4);
    let guard = runtime.block_on(request.acquire()).unwrap();
    let granted = guard.expires_at();

    runtime.block_on(async {
        while backend.extends.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    compute_until("the renewal", || renewed(&guard, granted));

    assert!(runtime.block_on(guard.release()).unwrap().is_released());
}

#[test]
fn a_lock_that_was_released_is_not_renewed() {
    let runtime = runtime();
    let backend = MemoryBackend::new();
    let locker = real(backend.clone());
    let (kept, released) = runtime.block_on(async {
        let kept = locker.lock("kept").ttl(3 * SECOND).keep_alive().acquire().await.unwrap();
        let released = locker.lock("released").ttl(3 * SECOND).keep_alive().acquire().await.unwrap();
        (kept, released)
    });
    runtime.block_on(released.release()).unwrap();
    let granted = kept.expires_at();

    // Both were due at the same time.
    compute_until("the renewal of the other", || renewed(&kept, granted));

    assert_eq!(released.loss(), Some(LossReason::Released));
    let taken = runtime.block_on(locker.lock("released").try_acquire()).unwrap();
    assert!(taken.is_some(), "nobody holds what was released");
}

/// Memory whose first extend is never answered.
#[derive(Clone)]
struct FirstExtendHangs {
    memory: MemoryBackend,
    extends: Arc<AtomicU32>,
}

impl LockBackend for FirstExtendHangs {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.memory.acquire(request).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.memory.release(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        if self.extends.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        self.memory.extend(lock_id, ttl).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.memory.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.memory.purge_expired().await
    }
}
