//! Dropping a guard never blocks and never panics, wherever it happens.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use syncguard_core::{Guard, Locker, MemoryBackend};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn held(runtime: &Runtime, locker: &Locker) -> Guard {
    runtime.block_on(locker.lock("k").keep_alive().acquire()).unwrap()
}

fn is_free(locker: &Locker) -> bool {
    runtime().block_on(async {
        locker.drain().await;
        !locker.is_locked("k").await.unwrap()
    })
}

#[test]
fn a_guard_dropped_outside_of_its_runtime_is_released_on_it() {
    let (runtime, locker) = (runtime(), Locker::new(MemoryBackend::new()));
    let guard = held(&runtime, &locker);

    drop(guard);

    assert!(is_free(&locker));
}

#[test]
fn a_guard_dropped_on_another_thread_is_released() {
    let (runtime, locker) = (runtime(), Locker::new(MemoryBackend::new()));
    let guard = held(&runtime, &locker);

    std::thread::spawn(move || drop(guard)).join().unwrap();

    assert!(is_free(&locker));
}

#[test]
fn a_guard_dropped_after_its_runtime_is_left_to_its_lease_without_a_panic() {
    let (runtime, locker) = (runtime(), Locker::new(MemoryBackend::new()));
    let guard = held(&runtime, &locker);
    runtime.shutdown_background();

    drop(guard);

    let still_held = self::runtime().block_on(locker.is_locked("k")).unwrap();
    assert!(still_held, "nothing was left to carry the release out");
}

#[test]
fn a_guard_dropped_while_panicking_is_released_and_the_panic_goes_on() {
    let (runtime, locker) = (runtime(), Locker::new(MemoryBackend::new()));
    let guard = held(&runtime, &locker);

    let panic = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("the caller's own");
    }));

    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "the caller's own");
    assert!(is_free(&locker));
}

#[test]
fn work_that_panics_is_released_and_the_panic_reaches_the_caller() {
    let (runtime, locker) = (runtime(), Locker::new(MemoryBackend::new()));

    let work = locker.lock("k").run(async |_| panic!("the work's own"));
    let outcome: std::thread::Result<Result<(), _>> = catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)));

    assert!(outcome.is_err());
    assert!(is_free(&locker));
}

#[test]
fn a_guard_dropped_inside_a_current_thread_runtime_does_not_block_it() {
    let locker = Locker::new(MemoryBackend::new());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();

    runtime.block_on(async {
        drop(locker.lock("k").acquire().await.unwrap());
        locker.drain().await;
        assert!(!locker.is_locked("k").await.unwrap());
    });
}

#[test]
fn a_dropped_guard_is_renewed_no_more() {
    let (runtime, backend) = (runtime(), MemoryBackend::new());
    let locker = Locker::new(backend);
    let extends = Arc::new(AtomicUsize::new(0));
    let counted = extends.clone();
    let telemetry = syncguard_core::telemetry::Telemetry::new(locker.backend().clone(), move |event| {
        if event.operation == syncguard_core::telemetry::Operation::Extend {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let handle = telemetry.handle();
    let renewing = Locker::new(telemetry);
    let (done, wait) = mpsc::channel();

    runtime.block_on(async {
        let guard = renewing.lock("k").ttl(Duration::from_millis(60)).keep_alive().acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop(guard);
        renewing.drain().await;
        handle.flush(Duration::from_secs(5));
        let before = extends.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
        handle.flush(Duration::from_secs(5));
        done.send((before, extends.load(Ordering::SeqCst))).unwrap();
    });

    let (before, after) = wait.recv().unwrap();
    assert!(before > 0, "it was renewed while it lived");
    assert!(after - before <= 1, "at most the extend that was already on the wire");
}
