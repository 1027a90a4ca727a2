//! How does the Firestore emulator lose its connections and keep its documents?

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The Firestore emulator inside this process. Its documents outlive its socket.
pub(super) struct Emulator {
    runtime: Runtime,
    admin: hidane::Admin,
    pub(super) port: u16,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Emulator {
    pub(super) fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut emulator = Self { runtime, admin: hidane::Admin::default(), port: 0, running: None };
        emulator.serve()?;
        Ok(emulator)
    }

    fn serve(&mut self) -> Result<()> {
        let listeners = self.runtime.block_on(hidane::bind("127.0.0.1", self.port))?;
        self.port = listeners.first().context("the emulator listens nowhere")?.local_addr()?.port();
        let (grpc, http) = (hidane::grpc_routes(&self.admin), hidane::http_routes(self.admin.clone()));
        let (stop, stopped) = oneshot::channel::<()>();
        let served = self.runtime.spawn(async move {
            drop(hidane::serve(listeners, grpc, http, async { drop(stopped.await) }).await);
        });
        self.running = Some((stop, served));
        Ok(())
    }

    pub(super) fn restart(&mut self, down: Duration) -> Result<()> {
        if let Some((stop, served)) = self.running.take() {
            ensure!(stop.send(()).is_ok(), "the emulator ended by itself");
            // A connection that does not end is ended with its task.
            let abort = served.abort_handle();
            let ended = self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), served).await });
            if ended.is_err() {
                abort.abort();
            }
        }
        std::thread::sleep(down);
        syncguard_testkit::process::wait_for("the emulator's port", Duration::from_secs(30), || Ok(self.serve().ok()))
    }
}
