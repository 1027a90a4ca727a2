//! What does the backend say in the log?

use std::io::Write;
use std::sync::{Arc, Mutex};

use super::support::{Scene, key};
use syncguard_core::{Fence, Locker};

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_counter_near_its_limit_warns_once_and_by_hash_only() {
    let scene = Scene::new();
    let locker = Locker::new(scene.open());
    let key = key("canary-key");
    let sql = "INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ('fence:canary-key', ?1)";
    scene.sql().execute(sql, [i64::try_from(Fence::WARN.get()).unwrap()]).unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();

    let listening = tracing::subscriber::set_default(subscriber);
    let guard = locker.lock(&key).try_acquire().await.unwrap().unwrap();
    drop(listening);

    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
    assert!(text.contains(&key.hash().to_string()), "{text}");
    assert!(!text.contains("canary-key") && !text.contains(guard.lock_id().as_str()), "{text}");
}
