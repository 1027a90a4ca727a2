//! How does a command under test get a Firestore?
//!
//! From an emulator inside the test's process: it is there on every machine.

use tokio::runtime::{Builder, Runtime};

/// Firestore in memory, on a free port of this machine.
pub(super) struct Emulator {
    port: u16,
    /// Serves for as long as it lives.
    _runtime: Runtime,
}

impl Emulator {
    pub(super) fn start() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listeners = runtime.block_on(hidane::bind("127.0.0.1", 0)).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let admin = hidane::Admin::default();
        let (grpc, http) = (hidane::grpc_routes(&admin), hidane::http_routes(admin));
        runtime.spawn(async move { drop(hidane::serve(listeners, grpc, http, std::future::pending()).await) });
        Self { port, _runtime: runtime }
    }

    pub(super) fn url(&self) -> String {
        format!("firestore://syncguard-test?emulator=127.0.0.1:{}", self.port)
    }
}
