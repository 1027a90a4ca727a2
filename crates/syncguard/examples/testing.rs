//! How is code tested that takes locks?
//!
//! On the memory backend with paused time, so that a lease of half a minute takes no time; and on a backend that answers
//! by a script (`syncguard-conformance`) where it is about contention, loss and failure. The functions below are what
//! you would mark `#[tokio::test(start_paused = true)]`. `cargo run -p syncguard --example testing`
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use syncguard::{ErrorCode, ExtendOutcome, LockError, Locker, MemoryBackend};
use syncguard_conformance::{Operation, ScriptedBackend};

/// The code under test.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Sent(u32),
    Skipped,
    TryLater,
}

async fn send_invoices(locker: &Locker, invoices: u32) -> Result<Outcome, LockError> {
    let lock = locker.lock("job:invoices").timeout(Duration::from_secs(1)).keep_alive();
    let sent = lock.run(async |_| {
        for _invoice in 0..invoices {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        invoices
    });
    match sent.await {
        Ok(sent) => Ok(Outcome::Sent(sent)),
        Err(error) if error.code() == ErrorCode::AcquisitionTimeout => Ok(Outcome::Skipped),
        Err(error) if error.is_transient() => Ok(Outcome::TryLater),
        Err(error) => Err(error),
    }
}

/// An hour of work takes a moment, and the lock is renewed all the while.
pub(crate) async fn it_keeps_the_lock_for_an_hour() {
    let locker = Locker::new(MemoryBackend::new());
    assert_eq!(send_invoices(&locker, 3600).await.unwrap(), Outcome::Sent(3600));
    assert!(!locker.is_locked("job:invoices").await.unwrap());
}

pub(crate) async fn it_skips_while_another_one_is_at_it() {
    let locker = Locker::new(MemoryBackend::new());
    let _other = locker.lock("job:invoices").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    assert_eq!(send_invoices(&locker, 1).await.unwrap(), Outcome::Skipped);
}

pub(crate) async fn it_stops_when_the_lock_is_taken_away() {
    let backend = ScriptedBackend::new().extend_answers(ExtendOutcome::Absent(None));
    let error = send_invoices(&Locker::new(backend), 3600).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::LockLost);
}

pub(crate) async fn it_comes_back_when_the_backend_is_down() {
    let backend =
        (0..20).fold(ScriptedBackend::new(), |backend, _| backend.acquire_fails(ErrorCode::ServiceUnavailable));
    assert_eq!(send_invoices(&Locker::new(backend.clone()), 1).await.unwrap(), Outcome::TryLater);
    assert!(backend.count(Operation::Acquire) > 1, "it is tried again within the budget");
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    it_keeps_the_lock_for_an_hour().await;
    it_skips_while_another_one_is_at_it().await;
    it_stops_when_the_lock_is_taken_away().await;
    it_comes_back_when_the_backend_is_down().await;
    println!("all four as expected");
}
