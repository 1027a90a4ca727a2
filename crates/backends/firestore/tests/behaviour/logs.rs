//! What do the logs say, and what do they keep to themselves?

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use super::support::raw::{lock_fields, text};
use super::support::{Fault, Project, WrongClock, key};
use syncguard_core::{Clock, HashId, LockBackend, Locker, SystemClock};
use tonic::Code;
use tracing_subscriber::EnvFilter;

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Page {
    /// Every level of our own target.
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let page = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("syncguard=trace"))
            .with_ansi(false)
            .with_writer(move || page.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn warnings_show_hashes_and_no_names() {
    let page = Page::default();
    let _listening = page.listen();
    let project = Project::start().await;
    let raw = project.raw().await;
    let backend = project.builder().clock(WrongClock::by(300)).connect().await.unwrap();

    // A counter near its limit, a lock id on two documents, a clock that is off, a stream that breaks.
    let near = HashMap::from([("fence".to_owned(), text("090000000000000"))]);
    raw.put("fence_counters", "fence:canary-key", near).await;
    let guard = Locker::new(backend.clone()).lock("canary-key").try_acquire().await.unwrap().unwrap();
    let id = guard.leak();
    let dead = SystemClock.wall().as_millis() - 60_000;
    raw.put("locks", "canary-copy", lock_fields("canary-copy", id.as_str(), 1, dead)).await;
    project.faults.next("Listen", Fault::Refuse(Code::Unavailable));
    backend.subscribe(&key("canary-key")).await;
    assert!(backend.release(&id).await.unwrap().is_released());

    let said = page.text();
    for expected in [
        "the fence counter nears its limit",
        "several documents carry one lock id",
        "this machine's clock differs from firestore's",
        "the listen stream broke",
        &HashId::of("canary-key").to_string(),
        &id.hash().to_string(),
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(!said.contains("canary") && !said.contains(id.as_str()), "{said}");
}
