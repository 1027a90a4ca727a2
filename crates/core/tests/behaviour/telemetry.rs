//! Every operation emits one event, and a bad sink harms nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::telemetry::{LockEvent, Operation, Reason, Telemetry, TelemetryHandle};
use syncguard_core::{LockBackend, LockId, Locker, MemoryBackend};

type Log = Arc<Mutex<Vec<LockEvent>>>;

fn logged(reveal: bool) -> (Locker, TelemetryHandle, Log) {
    let log = Log::default();
    let sink = log.clone();
    let backend = Telemetry::with_names(
        MemoryBackend::new(),
        move |_| reveal,
        move |event| {
            sink.lock().unwrap().push(event.clone());
        },
    );
    let handle = backend.handle();
    (Locker::new(backend), handle, log)
}

fn events(handle: &TelemetryHandle, log: &Log) -> Vec<(Operation, Option<Reason>)> {
    assert!(handle.flush(Duration::from_secs(5)));
    log.lock().unwrap().iter().map(|event| (event.operation, event.reason)).collect()
}

#[tokio::test(start_paused = true)]
async fn every_operation_including_those_of_the_guard_emits_one_event_with_its_reason() {
    let (locker, handle, log) = logged(false);

    let guard = locker.lock("k").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    assert!(locker.lock("k").try_acquire().await.unwrap().is_none());
    let _ = guard.extend(Duration::from_secs(1)).await.unwrap();
    let id = guard.lock_id().clone();
    tokio::time::advance(Duration::from_secs(3)).await;
    locker.release_id(&id).await.unwrap();
    let _ = locker.extend_id(&LockId::random(), Duration::from_secs(1)).await.unwrap();
    guard.leak();

    let expected = [
        (Operation::Acquire, None),
        (Operation::Acquire, Some(Reason::Locked)),
        (Operation::Extend, None),
        (Operation::Release, Some(Reason::Expired)),
        (Operation::Extend, Some(Reason::NotFound)),
    ];
    assert_eq!(events(&handle, &log), expected);
}

#[tokio::test(start_paused = true)]
async fn a_failing_operation_emits_its_code() {
    let (locker, handle, log) = logged(false);
    let memory = MemoryBackend::new();
    let key = syncguard_core::Key::new("k").unwrap();
    memory.set_counter(&key, u64::MAX);
    let sink = log.clone();
    let backend = Telemetry::new(memory, move |event| sink.lock().unwrap().push(event.clone()));
    let failing = backend.handle();

    assert!(Locker::new(backend).lock("k").try_acquire().await.is_err());

    assert_eq!(
        events(&failing, &log),
        [(Operation::Acquire, Some(Reason::Error(syncguard_core::ErrorCode::Internal)))]
    );
    drop((locker, handle));
}

#[tokio::test(start_paused = true)]
async fn raw_names_come_only_by_predicate_and_never_for_deny_listed_keys() {
    for (reveal, key, shown) in [(false, "plain", false), (true, "plain", true), (true, "session-token:1", false)] {
        let (locker, handle, log) = logged(reveal);

        locker.lock(key).run(async |_| ()).await.unwrap();

        assert!(handle.flush(Duration::from_secs(5)));
        let event = log.lock().unwrap()[0].clone();
        assert_eq!(event.key.as_deref() == Some(key), shown, "{key}");
        assert_eq!(event.lock_id.is_some(), shown, "{key}");
        assert!(event.key_hash.is_some());
        let json = serde_json::to_string(&event).unwrap();
        assert!(!format!("{event:?} {json}").contains(key), "{event:?} {json}");
        assert!(json.starts_with("{\"operation\":\"acquire\",\"outcome\":\"ok\",\"keyHash\":\""), "{json}");
        assert!(event.lock_id.is_none_or(|id| !json.contains(&id)), "{json}");
        let ids = log.lock().unwrap().iter().filter(|event| event.lock_id.is_some()).count();
        assert_eq!(ids, usize::from(shown), "an event without a key shows no lock id either: {key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panicking_sink_harms_nothing() {
    let backend = Telemetry::new(MemoryBackend::new(), |_| panic!("a sink that panics"));
    let handle = backend.handle();
    let locker = Locker::new(backend);

    for _ in 0..3 {
        locker.lock("k").run(async |_| ()).await.unwrap();
    }

    assert!(handle.flush(Duration::from_secs(5)), "the sink's thread goes on");
}

#[tokio::test(start_paused = true)]
async fn a_stuck_sink_loses_events_and_delays_nothing() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let backend = Telemetry::new(MemoryBackend::new(), move |_| {
        let _ = gate.recv();
    });
    let handle = backend.handle();

    for _ in 0..5_000 {
        backend.is_locked(&syncguard_core::Key::new("k").unwrap()).await.unwrap();
    }

    assert!(handle.lost_events() > 0);
    drop(open);
}

#[tokio::test(start_paused = true)]
async fn a_loss_and_a_wait_without_the_lock_are_told() {
    let (locker, handle, log) = logged(false);
    let guard = locker.lock("k").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    let waiting = locker.lock("k").timeout(Duration::from_millis(200)).max_retries(0);
    assert!(waiting.acquire().await.is_err());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(!guard.is_held() && !guard.is_held(), "asking twice tells once");

    let told = events(&handle, &log);

    let beyond_calls: Vec<_> = told.into_iter().filter(|(operation, _)| *operation != Operation::Acquire).collect();
    let timeout = Reason::Error(syncguard_core::ErrorCode::AcquisitionTimeout);
    let lost = Reason::Lost(syncguard_core::LossReason::Expired);
    assert_eq!(beyond_calls, [(Operation::Wait, Some(timeout)), (Operation::Hold, Some(lost))]);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_left_is_told_as_abandoned() {
    struct Silent;

    impl LockBackend for Silent {
        fn capabilities(&self) -> syncguard_core::Capabilities {
            MemoryBackend::new().capabilities()
        }

        async fn acquire(
            &self,
            _: syncguard_core::AcquireRequest<'_>,
        ) -> syncguard_core::Result<syncguard_core::AcquireOutcome> {
            std::future::pending().await
        }

        async fn release(&self, _: &LockId) -> syncguard_core::Result<syncguard_core::ReleaseOutcome> {
            std::future::pending().await
        }

        async fn extend(
            &self,
            _: &LockId,
            _: syncguard_core::Ttl,
        ) -> syncguard_core::Result<syncguard_core::ExtendOutcome> {
            std::future::pending().await
        }

        async fn lookup(
            &self,
            _: syncguard_core::Lookup<'_>,
        ) -> syncguard_core::Result<Option<syncguard_core::LockInfo>> {
            std::future::pending().await
        }

        async fn purge_expired(&self) -> syncguard_core::Result<u64> {
            std::future::pending().await
        }
    }
    let log = Log::default();
    let sink = log.clone();
    let backend = Telemetry::new(Silent, move |event| sink.lock().unwrap().push(event.clone()));
    let handle = backend.handle();

    let id = LockId::random();
    assert!(tokio::time::timeout(Duration::from_secs(1), backend.release(&id)).await.is_err());

    assert_eq!(events(&handle, &log), [(Operation::Release, Some(Reason::Abandoned))]);
}
