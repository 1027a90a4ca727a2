//! What do the logs say, and what do they keep to themselves?

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::support::key;
use crate::support::place::Place;
use syncguard_core::{Fence, Locker};

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_fence_near_its_limit_is_warned_of_once_and_without_the_key() {
    let place = Place::new().await;
    let locker = Locker::new(place.backend.clone());
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _listening = tracing::subscriber::set_default(subscriber);
    let warnings = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    drop(locker.lock("canary-key").try_acquire().await.unwrap().unwrap().release().await);
    assert!(!warnings().contains("WARN"), "a first fence is no reason to warn: {}", warnings());

    place.run(&["SET", &place.counter("canary-key"), &Fence::WARN.get().to_string()]);
    let guard = locker.lock("canary-key").try_acquire().await.unwrap().unwrap();

    let text = warnings();
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
    assert!(text.contains(&key("canary-key").hash().to_string()), "{text}");
    assert!(!text.contains("canary-key") && !text.contains(guard.lock_id().as_str()), "{text}");
}
