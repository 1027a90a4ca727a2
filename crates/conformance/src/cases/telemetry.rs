//! Is every operation told, truly, briefly and without harm?

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use syncguard_core::telemetry::{LockEvent, Operation, Reason, Telemetry, TelemetryHandle};
use syncguard_core::{ErrorCode, LockBackend, Locker};

use crate::support::{BackendClock, LONG, after, extend, faulty, give_back, is_locked, key, ms, release, take, ttl};
use crate::{Fault, Harness};

/// What a sink has heard.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<LockEvent>>>);

impl Heard {
    fn sink(&self) -> impl FnMut(&LockEvent) + Send + 'static {
        let heard = self.clone();
        move |event| heard.events().push(event.clone())
    }

    fn events(&self) -> std::sync::MutexGuard<'_, Vec<LockEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was heard up to now.
    fn all(&self, telemetry: &TelemetryHandle) -> Vec<LockEvent> {
        assert!(telemetry.flush(Duration::from_secs(20)), "the sink does not come to an end");
        assert_eq!(telemetry.lost_events(), 0);
        std::mem::take(&mut *self.events())
    }
}

fn operations(events: &[LockEvent]) -> Vec<Operation> {
    events.iter().map(|event| event.operation).collect()
}

/// One event for each operation, in order, with hashes.
pub async fn every_operation_is_told_once<H: Harness>(h: &H) {
    use Operation::{Acquire, Extend, IsLocked, Lookup, Purge, Release};
    let heard = Heard::default();
    let backend = Telemetry::new(h.backend().await, heard.sink());
    let key = key("k");

    let held = take(&backend, &key, LONG).await;
    assert!(extend(&backend, &held, LONG).await);
    assert!(is_locked(&backend, &key).await);
    backend.lookup(syncguard_core::Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    give_back(&backend, &held).await;
    backend.purge_expired().await.expect("purge answers");

    let events = heard.all(&backend.handle());
    assert_eq!(operations(&events), [Acquire, Extend, IsLocked, Lookup, Release, Purge]);
    assert!(events.iter().all(LockEvent::is_ok), "{events:?}");
    let (of_key, of_id) = (Some(key.hash()), Some(held.lock_id.hash()));
    let told: Vec<_> = events.iter().map(|event| (event.key_hash, event.lock_id_hash)).collect();
    // Each tells what it was asked about: a release and an extend know the id alone.
    assert_eq!((told[0], told[1].1, told[2].0), ((of_key, of_id), of_id, of_key));
    assert_eq!((told[3].0, told[4].1, told[5]), (of_key, of_id, (None, None)));
}

/// What a guard does by itself is told too: renewals, and the release of a dropped one.
pub async fn the_operations_of_a_guard_are_told<H: Harness>(h: &H) {
    let heard = Heard::default();
    let backend = Telemetry::new(h.backend().await, heard.sink());
    let (telemetry, locker) = (backend.handle(), Locker::new(backend));
    let guard = locker.lock("k").ttl(ms(900)).keep_alive().acquire().await.expect("free");
    h.pass(ms(700)).await;

    drop(guard);
    locker.drain().await;

    let events = heard.all(&telemetry);
    let told = operations(&events);
    assert_eq!(told.first(), Some(&Operation::Acquire));
    assert_eq!(told.last(), Some(&Operation::Release));
    assert!(told.contains(&Operation::Extend), "{told:?}");
    assert!(events.iter().all(LockEvent::is_ok), "{events:?}");
}

/// A failure is told with its code.
pub async fn failures_are_told_with_their_code<H: Harness>(h: &H) {
    let (heard, faults) = (Heard::default(), faulty(h).await);
    let backend = Telemetry::new(faults.clone(), heard.sink());
    let key = key("k");
    let held = take(&backend, &key, LONG).await;
    faults.everything(Fault::Refuse(ErrorCode::RateLimited));

    crate::support::attempt(&backend, &key, LONG).await.expect_err("refused");
    backend.extend(&held.lock_id, LONG).await.expect_err("refused");
    backend.release(&held.lock_id).await.expect_err("refused");
    backend.is_locked(&key).await.expect_err("refused");
    backend.lookup(syncguard_core::Lookup::LockId(&held.lock_id)).await.expect_err("refused");
    backend.purge_expired().await.expect_err("refused");

    let events = heard.all(&backend.handle());
    assert_eq!(events.len(), 7);
    for event in &events[1..] {
        assert_eq!(event.reason, Some(Reason::Error(ErrorCode::RateLimited)), "{event:?}");
        assert_eq!(event.outcome(), "rate-limited");
    }
}

/// `locked` for contention, `not-found` for what is not there, `absent` where the backend does not say why.
pub async fn the_reasons_are_told<H: Harness>(h: &H) {
    let heard = Heard::default();
    let backend = Telemetry::new(h.backend().await, heard.sink());
    let key = key("k");
    let held = take(&backend, &key, LONG).await;

    crate::support::assert_contended(&backend, &key).await;
    give_back(&backend, &held).await;
    assert!(!release(&backend, &held).await);
    assert!(!extend(&backend, &held, LONG).await);

    let outcomes: Vec<_> = heard.all(&backend.handle()).iter().map(LockEvent::outcome).collect();
    assert_eq!(outcomes[..3], ["ok", "locked", "ok"]);
    assert!(outcomes[3..].iter().all(|outcome| ["not-found", "absent"].contains(outcome)), "{outcomes:?}");
}

/// `expired` where the backend saw it, `not-found` or `absent` where it could not see the difference.
pub async fn the_end_of_a_lease_is_told<H: Harness>(h: &H) {
    let heard = Heard::default();
    let inner = h.backend().await;
    let clock = BackendClock::start(&inner).await;
    let backend = Telemetry::new(h.backend().await, heard.sink());
    let held = take(&backend, &key("k"), ttl(50)).await;
    clock.wait_until(h, &inner, after(held.expires_at, 1_100)).await;

    assert!(!release(&backend, &held).await);

    let events = heard.all(&backend.handle());
    assert!(["expired", "not-found", "absent"].contains(&events[1].outcome()), "{events:?}");
}

/// Nobody asked for names, so there are none.
pub async fn events_show_no_raw_name_unless_asked<H: Harness>(h: &H) {
    let heard = Heard::default();
    let backend = Telemetry::new(h.backend().await, heard.sink());
    let held = take(&backend, &key("canary"), LONG).await;
    give_back(&backend, &held).await;

    for event in heard.all(&backend.handle()) {
        assert_eq!((&event.key, &event.lock_id), (&None, &None));
        let text = format!("{event:?} {event:#?}");
        assert!(!text.contains("canary") && !text.contains(held.lock_id.as_str()), "{text}");
    }
}

/// Names come where the predicate says so, and nowhere else.
pub async fn names_are_told_only_where_the_predicate_says_so<H: Harness>(h: &H) {
    let heard = Heard::default();
    let shown = key("shown").hash();
    let backend = Telemetry::with_names(h.backend().await, move |event| event.key_hash == Some(shown), heard.sink());
    take(&backend, &key("shown"), LONG).await;
    take(&backend, &key("hidden"), LONG).await;

    let names: Vec<_> = heard.all(&backend.handle()).into_iter().map(|event| event.key).collect();
    assert_eq!(names, [Some("shown".to_owned()), None]);
}

/// Names that look like secrets are told to nobody.
pub async fn names_that_look_like_secrets_are_never_told<H: Harness>(h: &H) {
    let heard = Heard::default();
    let backend = Telemetry::with_names(h.backend().await, |_| true, heard.sink());
    let secrets = ["reset-Password:42", "api_key=1", "user:TOKEN:7", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"];
    for name in secrets {
        take(&backend, &key(name), LONG).await;
    }

    let events = heard.all(&backend.handle());
    assert_eq!(events.len(), secrets.len());
    for event in events {
        assert_eq!(event.key, None, "a name that looks like a secret was told");
        assert!(event.key_hash.is_some());
    }
}

/// A sink or a predicate that panics loses its event and nothing else.
pub async fn a_panicking_sink_harms_nothing<H: Harness>(h: &H) {
    let backend = Telemetry::new(h.backend().await, |_| panic!("on purpose"));
    let worse = Telemetry::with_names(h.backend().await, |_| panic!("on purpose"), |_| ());
    for (name, backend) in [("a", &backend), ("b", &worse)] {
        let held = take(backend, &key(name), LONG).await;
        assert!(extend(backend, &held, LONG).await);
        give_back(backend, &held).await;
        assert!(backend.handle().flush(Duration::from_secs(20)), "the sink's thread is gone");
    }
}

/// A sink that does not come back holds nothing up.
pub async fn a_sink_that_blocks_holds_nothing_up<H: Harness>(h: &H) {
    let (open, gate) = mpsc::channel::<()>();
    let backend = Telemetry::new(h.backend().await, move |_| _ = gate.recv());
    let started = Instant::now();

    for _ in 0..5 {
        let held = take(&backend, &key("k"), LONG).await;
        give_back(&backend, &held).await;
    }

    assert!(started.elapsed() < ms(10_000), "{:?}", started.elapsed());
    drop(open);
    assert!(backend.handle().flush(Duration::from_secs(20)));
}
