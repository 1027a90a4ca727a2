//! What the documentation of the client promises beside the suite: shapes that must compile, and settings that must
//! hold.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Attempt, CancellationToken, Capabilities, ErrorCode, ExtendOutcome, Key, Label,
    LockBackend, LockError, LockId, LockInfo, Locker, Lookup, LossReason, MemoryBackend, ReleaseOutcome, Result, Ttl,
};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn locker() -> Locker {
    Locker::new(MemoryBackend::new())
}

#[tokio::test(start_paused = true)]
async fn work_can_be_spawned_with_what_it_borrows_and_in_either_form_of_closure() {
    let locker = locker();
    let spawned = tokio::spawn({
        let locker = locker.clone();
        async move {
            let name = String::from("borrowed");
            let first = locker.lock("a").run(async |lock| (name.len(), lock.fence().get())).await.unwrap();
            let second = locker.lock("a").run(|lock| async move { lock.fence().get() }).await.unwrap();
            let all = locker.lock_all(["b", "c"]).run(async |locks| locks.len() + name.len()).await.unwrap();
            (first, second, all)
        }
    });
    assert_eq!(spawned.await.unwrap(), ((8, 1), 2, 10));
}

#[tokio::test(start_paused = true)]
async fn leading_can_be_spawned_with_what_it_borrows_and_in_either_form_of_closure() {
    let locker = locker();
    let spawned = tokio::spawn({
        let locker = locker.clone();
        async move {
            let (election, name) = (locker.elect("leader"), String::from("borrowed"));
            let first =
                election.lead(async |lock| lock.fence().get() + u64::from(name == "borrowed") * 800).await.unwrap();
            let second = election.lead(|lock| async move { lock.fence().get() }).await.unwrap();
            (first, second)
        }
    });
    assert_eq!(spawned.await.unwrap(), (801, 2));
}

#[tokio::test(start_paused = true)]
async fn words_are_taken_as_words() {
    let locker = locker();
    let (key, label) = (Key::new("k").unwrap(), Label::new("who").unwrap());
    for request in [locker.lock("k"), locker.lock(String::from("k")), locker.lock(&key), locker.lock(key.clone())] {
        let guard = request.ttl(Ttl::DEFAULT).label(&label).acquire().await.unwrap();
        assert_eq!(guard.key(), &key);
        assert!(guard.extend(Ttl::DEFAULT).await.unwrap().is_extended());
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_value_of_work_that_outlived_its_lock_can_be_kept() {
    let locker = locker();
    let careless = |locker: &Locker| locker.lock("k").ttl(SECOND).on_lost(syncguard_core::OnLost::Continue);

    let report = careless(&locker)
        .run_and_report(async |_| {
            sleep(3 * SECOND).await;
            "receipt"
        })
        .await
        .unwrap();

    assert_eq!((report.value, report.loss), ("receipt", Some(LossReason::Expired)));
    let report = locker.lock("other").run_and_report(async |_| "quick").await.unwrap();
    assert_eq!((report.value, report.loss), ("quick", None));

    let both = || locker.lock_all(["a", "b"]).on_lost(syncguard_core::OnLost::Continue);
    let report = both()
        .run_and_report(async |locks| {
            locker.release_id(locks[1].lock_id()).await.unwrap();
            sleep(20 * SECOND).await; // time to renew
            "receipt"
        })
        .await
        .unwrap();
    assert_eq!((report.value, report.loss), ("receipt", Some(LossReason::Absent)));
    let report = both().run_and_report(async |locks| locks.len()).await.unwrap();
    assert_eq!((report.value, report.loss), (2, None));
    assert!(!locker.is_locked("a").await.unwrap() && !locker.is_locked("b").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn contention_tells_when_the_lock_is_free_at_the_latest() {
    let locker = locker();
    let _held = locker.lock("k").ttl(10 * SECOND).acquire().await.unwrap();

    let Attempt::Contended(contention) = locker.lock("k").attempt().await.unwrap() else { panic!("it is held") };
    let error = locker.lock("k").timeout(SECOND).acquire().await.unwrap_err();

    assert_eq!(contention.free_in, Some(11 * SECOND));
    let free_in = error.free_in().expect("the error tells it too");
    assert!(free_in > 9 * SECOND && free_in < 11 * SECOND, "{free_in:?}");
}

#[tokio::test(start_paused = true)]
async fn either_of_two_tokens_ends_the_waiting() {
    let locker = locker();
    let _held = locker.lock("k").acquire().await.unwrap();
    for fires in 0..2 {
        let tokens = [CancellationToken::new(), CancellationToken::new()];
        let request = locker.lock("k").wait_forever().cancel(tokens[0].clone()).cancel(tokens[1].clone());
        let waiting = tokio::spawn(request.acquire());
        sleep(SECOND).await;

        tokens[fires].cancel();

        let error = timeout(SECOND, waiting).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.code(), ErrorCode::Aborted);
        assert!(error.to_string().contains("aborted"));
    }
}

#[tokio::test(start_paused = true)]
async fn keep_alive_follows_a_lease_that_was_shortened_by_hand() {
    let locker = locker();
    let guard = locker.lock("k").ttl(60 * SECOND).keep_alive().acquire().await.unwrap();

    assert!(guard.extend(3 * SECOND).await.unwrap().is_extended());
    sleep(30 * SECOND).await;

    assert!(guard.is_held(), "{:?}", guard.loss());
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_ends_a_lock_that_is_not_renewed_and_no_extension_passes_it() {
    let locker = locker();
    let plain = locker.lock("plain").ttl(60 * SECOND).max_hold(5 * SECOND).acquire().await.unwrap();
    let extended = locker.lock("extended").ttl(2 * SECOND).max_hold(5 * SECOND).acquire().await.unwrap();
    let renewed = locker.lock("renewed").ttl(2 * SECOND).keep_alive().max_hold(5 * SECOND).acquire().await.unwrap();
    assert!(extended.extend(60 * SECOND).await.unwrap().is_extended());
    assert!(extended.remaining() <= 5 * SECOND);

    sleep(4 * SECOND).await;
    assert!(plain.is_held() && extended.is_held() && renewed.is_held());
    sleep(SECOND).await;

    for guard in [plain, extended, renewed] {
        assert_eq!(guard.loss(), Some(LossReason::MaxHold));
        guard.release().await.unwrap();
        assert_eq!(guard.loss(), Some(LossReason::MaxHold), "a release hides no loss");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_wait_with_endless_retries_looks_again_every_few_seconds() {
    let backend = Forgetful::default();
    let (locker, calls) = (Locker::new(backend.clone()), backend.acquires);
    let waiting = tokio::spawn(locker.lock("k").wait_forever().unlimited_retries().acquire());
    sleep(600 * SECOND).await;
    let before = calls.load(Ordering::SeqCst);

    sleep(60 * SECOND).await;

    assert!(calls.load(Ordering::SeqCst) >= before + 10, "a waiter sleeps through a free lock");
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn an_absurd_delay_sleeps_and_does_not_overflow() {
    let locker = locker();
    let _held = locker.lock("k").ttl(10 * SECOND).acquire().await.unwrap();
    let request = locker.lock("k").wait_forever().unlimited_retries().max_delay(Duration::MAX);

    let waiting = tokio::spawn(request.retry_delay(Duration::MAX).acquire());

    let guard = timeout(60 * SECOND, waiting).await.expect("the end of the lease is looked at").unwrap();
    assert!(guard.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn several_locks_share_one_budget() {
    let locker = locker();
    let _held: Vec<_> = [
        locker.lock("b").ttl(60 * SECOND).acquire().await.unwrap(),
        locker.lock("d").ttl(60 * SECOND).acquire().await.unwrap(),
    ]
    .into();
    let started = tokio::time::Instant::now();

    let error = locker.lock_all(["a", "b", "c", "d"]).timeout(SECOND / 2).acquire().await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::AcquisitionTimeout);
    assert!(started.elapsed() <= SECOND, "{:?}", started.elapsed());
    assert!(locker.shutdown(SECOND).await);
    assert!(!locker.is_locked("a").await.unwrap());
}

#[test]
fn without_a_runtime_there_is_an_error_and_no_panic() {
    let acquiring = std::pin::pin!(locker().lock("k").acquire());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());

    let std::task::Poll::Ready(result) = acquiring.poll(&mut context) else { panic!("it cannot wait") };

    let error = result.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.to_string().contains("no tokio runtime"), "{error}");
}

#[test]
fn a_runtime_without_timers_is_an_error_and_no_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

    let error = runtime.block_on(locker().lock("k").try_acquire()).unwrap_err();

    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert!(error.hint().unwrap().contains("enable_time"), "{error:?}");
}

#[test]
fn a_renewal_that_its_runtime_never_ran_is_named_by_the_loss() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(locker().lock("k").ttl(Duration::from_millis(50)).keep_alive().acquire()).unwrap();

    // The caller computes, and nobody runs the runtime.
    std::thread::sleep(Duration::from_millis(100));

    let error = guard.check().unwrap_err();
    assert_eq!(error.code(), ErrorCode::LockLost);
    assert!(error.to_string().contains("never ran"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_is_not_blamed_on_its_renewal() {
    let guard = locker().lock("k").ttl(SECOND).acquire().await.unwrap();

    sleep(2 * SECOND).await;

    let error = guard.check().unwrap_err();
    assert_eq!(error.code(), ErrorCode::LockLost);
    assert!(!error.to_string().contains("renewal"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn renewals_are_sent_when_they_are_due_and_again_soon_after_a_failure() {
    let sent_at = async |every: u64, failures| {
        let backend = Timed { failures, ..Timed::default() };
        let request = Locker::new(backend.clone()).lock("k").ttl(10 * SECOND);
        let guard = request.renew_every(Duration::from_millis(every)).acquire().await.unwrap();
        sleep(Duration::from_millis(every * 7 / 2)).await;
        guard.check().unwrap();
        let sent = backend.sent.lock().unwrap();
        // Timers are late, and leases counted in whole milliseconds early, by up to a millisecond.
        sent.iter().map(|after| (after.as_millis() + 5) / 10 * 10).collect::<Vec<_>>()
    };

    assert_eq!(sent_at(400, 0).await, [400, 800, 1_200]);
    assert_eq!(sent_at(400, 2).await, [400, 500, 600, 1_000], "a quarter of the interval after a failure");
    assert_eq!(sent_at(8_000, 0).await, [8_000, 16_000, 24_000], "also when it is more than half of the lease");
}

/// Memory that notes when it is asked to extend, and fails some of the first times.
#[derive(Clone)]
struct Timed {
    memory: MemoryBackend,
    start: tokio::time::Instant,
    sent: Arc<Mutex<Vec<Duration>>>,
    failures: usize,
}

impl Default for Timed {
    fn default() -> Self {
        Self { memory: MemoryBackend::new(), start: tokio::time::Instant::now(), sent: Arc::default(), failures: 0 }
    }
}

impl LockBackend for Timed {
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
        let count = {
            let mut sent = self.sent.lock().unwrap();
            sent.push(self.start.elapsed());
            sent.len()
        };
        if count <= self.failures {
            return Err(LockError::new(ErrorCode::ServiceUnavailable, "not now"));
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

/// Answers every acquire with contention, and never tells how long it lasts.
#[derive(Clone, Default)]
struct Forgetful {
    acquires: Arc<AtomicU32>,
}

impl LockBackend for Forgetful {
    fn capabilities(&self) -> Capabilities {
        MemoryBackend::new().capabilities()
    }

    async fn acquire(&self, _: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.acquires.fetch_add(1, Ordering::SeqCst);
        Ok(AcquireOutcome::Contended(syncguard_core::Contention::new()))
    }

    async fn release(&self, _: &LockId) -> Result<ReleaseOutcome> {
        Ok(ReleaseOutcome::Absent(None))
    }

    async fn extend(&self, _: &LockId, _: Ttl) -> Result<ExtendOutcome> {
        Ok(ExtendOutcome::Absent(None))
    }

    async fn lookup(&self, _: Lookup<'_>) -> Result<Option<LockInfo>> {
        Ok(None)
    }

    async fn purge_expired(&self) -> Result<u64> {
        Ok(0)
    }
}

/// Memory whose first acquire is granted and its reply lost, and whose second one is slow and then refused without
/// doubt.
#[derive(Clone)]
struct LostThenRefused {
    memory: MemoryBackend,
    acquires: Arc<AtomicU32>,
    recovers: Option<tokio::time::Instant>,
}

impl LockBackend for LostThenRefused {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        match self.acquires.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let _ = self.memory.acquire(request).await?;
                Err(LockError::new(ErrorCode::NetworkTimeout, "reply lost").ambiguous())
            }
            _ if self.recovers.is_some_and(|at| at <= tokio::time::Instant::now()) => {
                self.memory.acquire(request).await
            }
            _ => {
                sleep(4 * SECOND).await;
                Err(LockError::new(ErrorCode::ServiceUnavailable, "refused"))
            }
        }
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.memory.release(lock_id).await
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

/// As after an ordinary failover: the first reply is lost, and the server owns up when most of the lease is over.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_owned_up_to_late_is_renewed_in_time() {
    let recovers = Some(tokio::time::Instant::now() + 22 * SECOND);
    let memory = MemoryBackend::new();
    let locker = Locker::new(LostThenRefused { memory, acquires: Arc::default(), recovers });

    let guard = locker.lock("k").ttl(30 * SECOND).wait_forever().keep_alive().acquire().await.unwrap();
    assert!(guard.remaining() < 8 * SECOND, "{:?}", guard.remaining());
    sleep(60 * SECOND).await;

    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_id_of_unknown_fate_is_reaped_also_when_the_wall_cuts_its_second_attempt() {
    let memory = MemoryBackend::new();
    let locker = Locker::new(LostThenRefused { memory: memory.clone(), acquires: Arc::default(), recovers: None });

    let error = locker.lock("k").ttl(60 * SECOND).timeout(SECOND).acquire().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "nobody was seen who holds it");
    locker.drain().await;

    assert!(!memory.is_locked(&Key::new("k").unwrap()).await.unwrap(), "the lost grant blocks the key");
}
