//! What do the cases have in common?
//!
//! Short words for keys, leases and attempts. Everything here panics with what it expected: a case reads as a story,
//! not as error handling.

use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Contention, Fence, Key, Lease, LockBackend, LockId, Lookup, Result, Timestamp, Ttl,
};

use crate::{Faulty, Harness};

/// Long enough that it never ends within a case.
pub(crate) const LONG: Ttl = Ttl::DEFAULT;

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("the key of a case is valid")
}

pub(crate) fn ttl(millis: i64) -> Ttl {
    Ttl::from_millis(millis).expect("the ttl of a case is valid")
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A lock that a case holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) lock_id: LockId,
    pub(crate) fence: Fence,
    pub(crate) expires_at: Timestamp,
}

/// One attempt with a fresh lock id.
pub(crate) async fn attempt<B>(backend: &B, key: &Key, ttl: Ttl) -> Result<Result<Held, Contention>>
where
    B: LockBackend,
{
    let lock_id = backend.new_lock_id(key);
    attempt_as(backend, key, &lock_id, ttl).await
}

/// One attempt with a lock id of the caller's.
pub(crate) async fn attempt_as<B>(
    backend: &B,
    key: &Key,
    lock_id: &LockId,
    ttl: Ttl,
) -> Result<Result<Held, Contention>>
where
    B: LockBackend,
{
    Ok(match backend.acquire(AcquireRequest::new(key, lock_id, ttl)).await? {
        AcquireOutcome::Acquired(Lease { fence, expires_at, .. }) => {
            Ok(Held { lock_id: lock_id.clone(), fence, expires_at })
        }
        AcquireOutcome::Contended(contention) => Err(contention),
    })
}

/// Takes a lock that must be free.
pub(crate) async fn take<B: LockBackend>(backend: &B, key: &Key, ttl: Ttl) -> Held {
    let answer = attempt(backend, key, ttl).await.expect("acquire answers");
    answer.expect("the lock is free, so acquire succeeds")
}

/// Checks that somebody else holds the lock.
pub(crate) async fn assert_contended<B: LockBackend>(backend: &B, key: &Key) {
    let answer = attempt(backend, key, LONG).await.expect("acquire answers");
    assert!(answer.is_err(), "a held lock was granted again: {answer:?}");
}

/// Gives back a lock that must still be held.
pub(crate) async fn give_back<B: LockBackend>(backend: &B, held: &Held) {
    let outcome = backend.release(&held.lock_id).await.expect("release answers");
    assert!(outcome.is_released(), "a held lock could not be released: {outcome:?}");
}

pub(crate) async fn release<B: LockBackend>(backend: &B, held: &Held) -> bool {
    backend.release(&held.lock_id).await.expect("release answers").is_released()
}

pub(crate) async fn extend<B: LockBackend>(backend: &B, held: &Held, ttl: Ttl) -> bool {
    backend.extend(&held.lock_id, ttl).await.expect("extend answers").is_extended()
}

pub(crate) async fn is_locked<B: LockBackend>(backend: &B, key: &Key) -> bool {
    backend.is_locked(key).await.expect("is_locked answers")
}

/// The backend's clock, read through a lock that lives for the whole case.
pub(crate) struct BackendClock {
    key: Key,
}

impl BackendClock {
    pub(crate) async fn start<B: LockBackend>(backend: &B) -> Self {
        let key = key("the lock by which a case reads the clock");
        take(backend, &key, ttl(3_600_000)).await;
        Self { key }
    }

    pub(crate) async fn now<B: LockBackend>(&self, backend: &B) -> Timestamp {
        let info = backend.lookup(Lookup::Key(&self.key)).await.expect("lookup answers");
        info.expect("the clock's own lock is alive").observed_at
    }
}

impl BackendClock {
    /// Passes time until the backend's clock shows the moment.
    pub(crate) async fn wait_until<H: Harness>(&self, h: &H, backend: &H::Backend, moment: Timestamp) {
        loop {
            let now = self.now(backend).await;
            if now >= moment {
                return;
            }
            h.pass(moment.since(now)).await;
        }
    }

    pub(crate) async fn is_before<B: LockBackend>(&self, backend: &B, moment: Timestamp) -> bool {
        self.now(backend).await < moment
    }
}

/// A moment some milliseconds after (or before) another.
pub(crate) fn after(moment: Timestamp, millis: i64) -> Timestamp {
    Timestamp::from_millis(moment.as_millis() + millis)
}

/// Repeats a look on fresh keys until the machine was quick enough for it to count; `None` says it was too slow.
pub(crate) async fn promptly<T>(look: impl AsyncFn(Key) -> Option<T>) -> T {
    const TRIALS: usize = 8;
    for trial in 0..TRIALS {
        if let Some(counted) = look(key(&format!("trial {trial}"))).await {
            return counted;
        }
    }
    panic!("in {TRIALS} trials the machine never looked in time; run fewer tests at once");
}

/// A client of the harness that can be broken.
pub(crate) async fn faulty<H: Harness>(h: &H) -> Faulty<H::Backend> {
    Faulty::new(h.backend().await)
}
