//! What do the tests of this crate share? A look past the backend, straight at the server, and short words for locks.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it")]

pub(crate) mod place;
pub(crate) mod rights;

use std::time::Duration;

use syncguard_core::{
    AcquireOutcome, AcquireRequest, Contention, ErrorCode, Fence, Key, Lease, LockBackend, LockId, Result, Ttl,
};
use syncguard_testkit::redis::{Reply, RespClient};

/// Runs one command on the server at a port, or on the cluster node that it points to.
pub(crate) fn raw(port: u16, words: &[&str]) -> Reply {
    let mut port = port;
    for _ in 0..5 {
        let reply = RespClient::connect(port).unwrap().command_raw(words).unwrap();
        match &reply {
            Reply::Error(text) if text.starts_with("MOVED") => port = text.rsplit_once(':').unwrap().1.parse().unwrap(),
            Reply::Error(text) => panic!("{} failed: {text}", words[0]),
            _ => return reply,
        }
    }
    panic!("redirected in a circle")
}

/// A prefix that no other test has.
pub(crate) fn fresh_prefix() -> String {
    format!("test-{}", LockId::random().as_str())
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn ttl(millis: i64) -> Ttl {
    Ttl::from_millis(millis).unwrap()
}

/// A lock that a test holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) id: LockId,
    pub(crate) fence: Fence,
    pub(crate) expires_at_ms: i64,
}

/// One attempt with a fresh id.
pub(crate) async fn attempt(backend: &impl LockBackend, key: &Key, ttl: Ttl) -> Result<Result<Held, Contention>> {
    attempt_with(backend, key, ttl, backend.new_lock_id(key)).await
}

/// One attempt with an id.
pub(crate) async fn attempt_with(
    backend: &impl LockBackend,
    key: &Key,
    ttl: Ttl,
    id: LockId,
) -> Result<Result<Held, Contention>> {
    Ok(match backend.acquire(AcquireRequest::new(key, &id, ttl)).await? {
        AcquireOutcome::Acquired(Lease { fence, expires_at, .. }) => {
            Ok(Held { id, fence, expires_at_ms: expires_at.as_millis() })
        }
        AcquireOutcome::Contended(contention) => Err(contention),
    })
}

/// Takes a lock that must be free.
pub(crate) async fn take(backend: &impl LockBackend, key: &Key) -> Held {
    attempt(backend, key, Ttl::DEFAULT).await.expect("acquire answers").expect("the lock is free")
}

/// The code of a failed attempt.
pub(crate) async fn refusal(backend: &impl LockBackend, key: &Key) -> ErrorCode {
    attempt(backend, key, Ttl::DEFAULT).await.expect_err("acquire fails").code()
}

/// Waits until something is true; a generous bound for a loaded machine.
pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut check: F) {
    for _ in 0..1000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} did not happen within 20 s");
}
