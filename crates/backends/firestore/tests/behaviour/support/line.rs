//! What lies between a backend and the emulator?

use std::time::Duration;

use syncguard_core::{AcquireOutcome, LockBackend, LockError, LockId};
use syncguard_firestore::FirestoreBackend;
use syncguard_testkit::FaultProxy;

use super::{Project, key, request};

/// A backend whose connection goes through a proxy.
pub struct Line {
    pub project: Project,
    pub proxy: FaultProxy,
    pub backend: FirestoreBackend,
}

impl Line {
    pub async fn start(patience: Duration) -> Self {
        let project = Project::start().await;
        let proxy = FaultProxy::start(project.address.rsplit_once(':').unwrap().1.parse().unwrap());
        let address = format!("127.0.0.1:{}", proxy.port());
        let backend = project.builder().emulator(address).timeout(patience).connect().await.unwrap();
        Self { project, proxy, backend }
    }

    /// Asks with one lock id until there is an answer, as the client's loop does.
    pub async fn insist(&self, name: &str, id: &LockId) -> AcquireOutcome {
        let mut last: Option<LockError> = None;
        for _ in 0..50 {
            match self.backend.acquire(request(&key(name), id, 30_000)).await {
                Ok(outcome) => return outcome,
                Err(error) => {
                    assert!(error.is_transient(), "{error:?}");
                    last = Some(error);
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the backend did not recover: {last:?}");
    }
}
