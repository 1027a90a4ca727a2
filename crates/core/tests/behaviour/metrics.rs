//! The feature `metrics` alone records: no wrapper around the backend is needed.
#![cfg(feature = "metrics")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use syncguard_core::{Locker, MemoryBackend};

/// Writes down which metric was touched, with its labels.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<String>>>);

struct Line(Written, String);

impl CounterFn for Line {
    fn increment(&self, _: u64) {
        self.0.0.lock().unwrap().push(self.1.clone());
    }

    fn absolute(&self, _: u64) {}
}

impl HistogramFn for Line {
    fn record(&self, _: f64) {
        self.0.0.lock().unwrap().push(self.1.clone());
    }
}

impl Written {
    fn line(&self, key: &Key) -> Arc<Line> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Line(self.clone(), format!("{} {}", key.name(), labels.join(" "))))
    }
}

impl Recorder for Written {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.0.lock().unwrap().push(format!("described {} {}", name.as_str(), !text.is_empty()));
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, text: SharedString) {
        self.0.lock().unwrap().push(format!("described {} {}", name.as_str(), !text.is_empty()));
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.line(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.line(key))
    }
}

#[test]
fn operations_waits_holds_and_losses_are_recorded_without_a_wrapper() {
    let written = Written::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();

    metrics::with_local_recorder(&written, || {
        runtime.block_on(async {
            let locker = Locker::new(MemoryBackend::new());
            locker.lock("canary").run(async |_| ()).await.unwrap();
            let guard = locker.lock("canary").ttl(Duration::from_secs(1)).acquire().await.unwrap();
            assert!(locker.lock("canary").try_acquire().await.unwrap().is_none());
            tokio::time::advance(Duration::from_secs(5)).await;
            assert!(!guard.is_held());
        });
    });

    let lines = written.0.lock().unwrap().clone();
    for expected in [
        "described syncguard_lost_total true",
        "syncguard_lost_total backend=memory reason=absent",
        "syncguard_operation_seconds backend=memory operation=acquire outcome=ok",
        "syncguard_operation_seconds backend=memory operation=acquire outcome=locked",
        "syncguard_operation_seconds backend=memory operation=release outcome=ok",
        "syncguard_wait_seconds backend=memory outcome=ok",
        "syncguard_hold_seconds backend=memory",
        "syncguard_lost_total backend=memory reason=expired",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} is missing in {lines:#?}");
    }
    assert!(lines.iter().all(|line| !line.contains("canary")));
}
