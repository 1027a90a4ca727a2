//! What if a machine's clock is wrong?

use std::time::Duration;

use super::support::raw::lock_fields;
use super::support::{Fault, Project, WrongClock, key, request, take};
use syncguard_core::{
    AcquireOutcome, Clock, ErrorCode, HealthStatus, LockBackend, LockId, ReleaseOutcome, SystemClock,
};
use syncguard_firestore::FirestoreBackend;

async fn off_by(project: &Project, millis: i64) -> FirestoreBackend {
    project.builder().clock(WrongClock::by(millis)).connect().await.unwrap()
}

async fn gets(backend: &FirestoreBackend, name: &str) -> bool {
    let outcome = backend.acquire(request(&key(name), &LockId::random(), 30_000)).await.unwrap();
    matches!(outcome, AcquireOutcome::Acquired(_))
}

#[tokio::test]
async fn clocks_that_differ_by_less_than_the_tolerance_never_give_two_holders() {
    let project = Project::start().await;
    for (holder, rival) in [(0, 300), (300, 0), (0, -300), (0, 900), (900, 0), (-450, 450), (450, -450), (0, -900)] {
        let (holder_side, rival_side) = (off_by(&project, holder).await, off_by(&project, rival).await);
        let (name, id, lease) = (format!("{holder} {rival}"), LockId::random(), 400);
        let sent = SystemClock.boot();
        let _ = holder_side.acquire(request(&key(&name), &id, lease)).await.unwrap();
        let believed_until = sent + Duration::from_millis(400);

        // The rival tries all the time until it gets the lock; by then the holder's own deadline must have passed.
        loop {
            let asked = SystemClock.boot();
            if gets(&rival_side, &name).await {
                let got = SystemClock.boot();
                assert!(got >= believed_until, "{name}: taken {:?} before its end", believed_until.since(got));
                break;
            }
            assert!(asked.since(sent) < Duration::from_secs(5), "{name}: a dead lock is never freed");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn the_offset_is_measured_from_ordinary_answers() {
    let project = Project::start().await;
    for wrong in [0, 300, -900, 7_000] {
        let backend = off_by(&project, wrong).await;
        assert!(backend.clock_offset().is_none());
        backend.is_locked(&key("k")).await.unwrap();
        let offset = backend.clock_offset().unwrap();
        assert!((offset.millis + wrong).abs() <= offset.error_millis, "{wrong}: {offset}");
    }
}

#[tokio::test]
async fn a_better_measurement_stands_against_a_worse_one_and_a_step_is_noticed() {
    let project = Project::start().await;
    let clock = WrongClock::by(0);
    let backend = project.builder().clock(clock.clone()).connect().await.unwrap();
    for _ in 0..5 {
        backend.is_locked(&key("k")).await.unwrap();
    }
    let best = backend.clock_offset().unwrap();

    project.faults.next("BatchGetDocuments", Fault::Delay(Duration::from_millis(600)));
    backend.is_locked(&key("k")).await.unwrap();
    assert_eq!(backend.clock_offset().unwrap(), best, "a slow answer tells less");

    clock.set(3_000);
    backend.is_locked(&key("k")).await.unwrap();
    assert!((backend.clock_offset().unwrap().millis + 3_000).abs() < 500, "somebody set the clock");
}

#[tokio::test]
async fn a_clock_seven_seconds_off_fails_the_health_check_and_is_refused_when_strict() {
    let project = Project::start().await;
    for wrong in [7_000, -7_000, 600] {
        let report = off_by(&project, wrong).await.health().await;
        let clock = report.checks.iter().find(|check| check.name == "clock").unwrap();
        assert_eq!(clock.status, HealthStatus::Fail, "{wrong}: {}", clock.detail);
        assert!(clock.hint.is_some());

        let strict = project.builder().clock(WrongClock::by(wrong)).strict_clock(true).connect().await.unwrap();
        let id = LockId::random();
        let error = strict.acquire(request(&key("k"), &id, 30_000)).await.unwrap_err();
        assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::Internal, false));
        assert!(!project.backend().await.is_locked(&key("k")).await.unwrap(), "nothing was written");
    }
}

#[tokio::test]
async fn a_good_clock_passes_and_strictness_lets_it_acquire() {
    let project = Project::start().await;
    let strict = project.builder().strict_clock(true).connect().await.unwrap();

    let report = strict.health().await;
    let (id, _) = take(&strict, "k").await;

    assert_eq!(report.worst(), HealthStatus::Pass, "{report:?}");
    let names: Vec<_> = report.checks.iter().map(|check| &*check.name).collect();
    assert_eq!(names, ["connection", "reachable", "collections", "index", "clock"]);
    assert_eq!(strict.release(&id).await.unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_clock_that_is_a_little_off_is_a_warning() {
    let project = Project::start().await;
    let report = off_by(&project, 300).await.health().await;
    assert_eq!(report.worst(), HealthStatus::Warn, "{report:?}");
}

#[tokio::test]
async fn an_unreachable_server_is_a_line_of_the_report() {
    let backend = FirestoreBackend::builder("p").emulator("127.0.0.1:9").connect().await.unwrap();
    let report = backend.health().await;
    assert_eq!(report.worst(), HealthStatus::Fail);
    assert!(report.checks.iter().any(|check| check.name == "reachable" && check.detail.contains("cannot be reached")));
}

#[tokio::test]
async fn a_clock_that_runs_ahead_sweeps_nothing_away_that_others_hold() {
    let project = Project::start().await;
    take(&project.backend().await, "held").await;
    let dead = SystemClock.wall().as_millis() - 60_000;
    project.raw().await.put("locks", "dead", lock_fields("dead", LockId::random().as_str(), 1, dead)).await;

    let purged = off_by(&project, 3_600_000).await.purge_expired().await.unwrap();

    assert_eq!(purged, 1);
    assert!(project.backend().await.is_locked(&key("held")).await.unwrap());
}
