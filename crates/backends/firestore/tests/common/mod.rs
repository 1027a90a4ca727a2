//! What do the tests talk to?
//!
//! An emulator inside the test process behind a [`Faults`] layer, or Google's own where it is on the machine. Each test has
//! a project of its own, so tests that share an emulator never meet.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses a part of it"
)]

pub mod clock;
pub mod faults;
pub mod raw;
pub mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, Key, Lease, LockBackend, LockId, Ttl};
use syncguard_firestore::{FirestoreBackend, FirestoreBuilder};

pub use clock::WrongClock;
pub use faults::{Fault, Faults};
pub use raw::Raw;

/// One project on an emulator.
#[derive(Clone)]
pub struct Project {
    pub id: String,
    pub address: String,
    /// Only the emulator inside this process has them.
    pub faults: Faults,
    patience: Duration,
}

impl Project {
    /// A fresh emulator inside this process.
    pub async fn start() -> Self {
        let faults = Faults::default();
        let admin = hidane::Admin::default();
        let grpc = faults.layer(hidane::grpc_routes(&admin));
        let listeners = hidane::bind("127.0.0.1", 0).await.unwrap();
        let address = listeners[0].local_addr().unwrap().to_string();
        tokio::spawn(hidane::serve(listeners, grpc, hidane::http_routes(admin), std::future::pending()));
        Self { id: fresh_id(), address, faults, patience: Duration::from_secs(5) }
    }

    /// A project of its own on an emulator that runs elsewhere on this machine.
    pub fn on(address: String) -> Self {
        // It may have been started a moment ago, and takes seconds to warm up beside other tests.
        Self { id: fresh_id(), address, faults: Faults::default(), patience: Duration::from_secs(30) }
    }

    pub fn builder(&self) -> FirestoreBuilder {
        FirestoreBackend::builder(self.id.as_str()).emulator(self.address.as_str()).request_timeout(self.patience)
    }

    pub async fn backend(&self) -> FirestoreBackend {
        self.builder().connect().await.unwrap()
    }

    pub async fn raw(&self) -> Raw {
        Raw::connect(self).await
    }
}

fn fresh_id() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let random = LockId::random().hash().to_string();
    format!("test-{}-{}", &random[..12], NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub fn ttl(millis: i64) -> Ttl {
    Ttl::from_millis(millis).unwrap()
}

pub fn request<'a>(key: &'a Key, lock_id: &'a LockId, millis: i64) -> AcquireRequest<'a> {
    AcquireRequest { key, lock_id, ttl: ttl(millis), label: None }
}

/// Acquires a lock that must be free, for half a minute.
pub async fn take(backend: &impl LockBackend<Fence = syncguard_core::Fence>, name: &str) -> (LockId, Lease) {
    let (key, id) = (key(name), LockId::random());
    match backend.acquire(request(&key, &id, 30_000)).await.unwrap() {
        AcquireOutcome::Acquired(lease) => (id, lease),
        AcquireOutcome::Contended(_) => panic!("the key is held"),
    }
}
