//! What do the tests talk to?
//!
//! An emulator inside the test process behind a [`Faults`] layer, or Google's own where it is on the machine. Each test
//! has a project of its own, so tests that share an emulator never meet.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test binary uses a part of it"
)]

pub mod clock;
pub mod faults;
pub mod line;
pub mod raw;
pub mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::{AcquireOutcome, AcquireRequest, Key, Lease, LockBackend, LockId, Ttl};
use syncguard_firestore::{FirestoreBackend, FirestoreBuilder};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use clock::WrongClock;
pub use faults::{Fault, Faults};
pub use line::Line;
pub use raw::Raw;

/// One project on an emulator.
#[derive(Clone)]
pub struct Project {
    pub id: String,
    pub address: String,
    /// Only the emulator inside this process has them.
    pub faults: Faults,
    patience: Duration,
    server: Option<Arc<Server>>,
}

/// The emulator inside this process: its documents outlive its socket.
struct Server {
    admin: hidane::Admin,
    running: Mutex<Option<Running>>,
}

struct Running {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Project {
    /// A fresh emulator inside this process.
    pub async fn start() -> Self {
        let (faults, admin) = (Faults::default(), hidane::Admin::default());
        let (port, running) = serve(&admin, &faults, 0).await;
        let server = Server { admin, running: Mutex::new(Some(running)) };
        Self {
            id: fresh_id(),
            address: format!("127.0.0.1:{port}"),
            faults,
            patience: Duration::from_secs(30),
            server: Some(Arc::new(server)),
        }
    }

    /// Closes every connection and serves the same documents on the same port again. `false` if it is not ours.
    pub async fn restart(&self) -> bool {
        let Some(server) = &self.server else { return false };
        let running = server.running.lock().unwrap().take().unwrap();
        running.stop.send(()).unwrap();
        running.ended.await.unwrap();
        let port = self.address.rsplit_once(':').unwrap().1.parse().unwrap();
        let (_, running) = serve(&server.admin, &self.faults, port).await;
        *server.running.lock().unwrap() = Some(running);
        true
    }

    /// A project of its own on an emulator that runs elsewhere on this machine.
    pub fn on(address: String) -> Self {
        // It may have been started a moment ago, and takes seconds to warm up beside other tests.
        Self { id: fresh_id(), address, faults: Faults::default(), patience: Duration::from_secs(120), server: None }
    }

    pub fn builder(&self) -> FirestoreBuilder {
        FirestoreBackend::builder(self.id.as_str()).emulator(self.address.as_str()).timeout(self.patience)
    }

    pub async fn backend(&self) -> FirestoreBackend {
        self.builder().connect().await.unwrap()
    }

    pub async fn raw(&self) -> Raw {
        Raw::connect(self).await
    }
}

async fn serve(admin: &hidane::Admin, faults: &Faults, port: u16) -> (u16, Running) {
    let listeners = hidane::bind("127.0.0.1", port).await.unwrap();
    let port = listeners[0].local_addr().unwrap().port();
    let (grpc, http) = (faults.layer(hidane::grpc_routes(admin)), hidane::http_routes(admin.clone()));
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(async move {
        // Dropping the sender is not a request to stop: a project may be dropped while its backends live on.
        let stopped = async {
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        hidane::serve(listeners, grpc, http, stopped).await.unwrap();
    });
    (port, Running { stop, ended })
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
    AcquireRequest::new(key, lock_id, ttl(millis))
}

/// Acquires a lock that must be free, for half a minute.
pub async fn take(backend: &impl LockBackend, name: &str) -> (LockId, Lease) {
    let (key, id) = (key(name), LockId::random());
    match backend.acquire(request(&key, &id, 30_000)).await.unwrap() {
        AcquireOutcome::Acquired(lease) => (id, lease),
        AcquireOutcome::Contended(_) => panic!("the key is held"),
    }
}
