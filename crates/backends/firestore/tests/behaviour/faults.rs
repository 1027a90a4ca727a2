//! What does each failure of the server become, and does anything stay behind?

use std::time::Duration;

use super::support::{Fault, Project, key, request, take, ttl};
use syncguard_core::{AcquireOutcome, ErrorCode, LockBackend, LockError, LockId, Lookup, ReleaseOutcome};
use syncguard_firestore::FirestoreBackend;
use tonic::Code;

const TABLE: [(Code, ErrorCode); 16] = [
    (Code::Cancelled, ErrorCode::ServiceUnavailable),
    (Code::Unknown, ErrorCode::ServiceUnavailable),
    (Code::InvalidArgument, ErrorCode::InvalidArgument),
    (Code::DeadlineExceeded, ErrorCode::NetworkTimeout),
    (Code::NotFound, ErrorCode::InvalidArgument),
    (Code::AlreadyExists, ErrorCode::Internal),
    (Code::PermissionDenied, ErrorCode::AuthFailed),
    (Code::ResourceExhausted, ErrorCode::RateLimited),
    (Code::FailedPrecondition, ErrorCode::InvalidArgument),
    (Code::Aborted, ErrorCode::ServiceUnavailable),
    (Code::OutOfRange, ErrorCode::InvalidArgument),
    (Code::Unimplemented, ErrorCode::InvalidArgument),
    (Code::Internal, ErrorCode::ServiceUnavailable),
    (Code::Unavailable, ErrorCode::ServiceUnavailable),
    (Code::DataLoss, ErrorCode::ServiceUnavailable),
    (Code::Unauthenticated, ErrorCode::AuthFailed),
];

/// Codes after which a Commit may have been applied.
const DOUBTFUL: [Code; 6] =
    [Code::Cancelled, Code::Unknown, Code::DeadlineExceeded, Code::Internal, Code::Unavailable, Code::DataLoss];
/// Codes by which a Commit says that it lost.
const LOST: [Code; 4] = [Code::FailedPrecondition, Code::Aborted, Code::AlreadyExists, Code::NotFound];

async fn try_take(backend: &FirestoreBackend, name: &str) -> Result<AcquireOutcome, LockError> {
    backend.acquire(request(&key(name), &LockId::random(), 30_000)).await
}

fn tells_no_names(error: &LockError, id: &LockId) {
    let mut text = format!("{error} {error:?} {:?}", error.hint());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text} {error} {error:?}");
        cause = error.source();
    }
    assert!(!text.contains("canary") && !text.contains(id.as_str()), "{text}");
}

#[tokio::test]
async fn each_code_on_a_read_is_mapped_by_the_code_and_is_not_ambiguous() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let (id, _) = take(&backend, "held").await;
    for (code, expected) in TABLE {
        let planned = project.faults.fired();
        project.faults.next("BatchGetDocuments", Fault::Refuse(code));
        let acquired = try_take(&backend, "canary-key").await.unwrap_err();
        project.faults.next("BatchGetDocuments", Fault::Refuse(code));
        let looked = backend.is_locked(&key("canary-key")).await.unwrap_err();
        project.faults.next("RunQuery", Fault::Refuse(code));
        let released = backend.release(&id).await.unwrap_err();
        project.faults.next("RunQuery", Fault::Refuse(code));
        let found = backend.lookup(Lookup::LockId(&id)).await.unwrap_err();

        assert_eq!(project.faults.fired(), planned + 4);
        for error in [acquired, looked, released, found] {
            assert_eq!(error.code(), expected, "{code:?}");
            assert!(!error.is_ambiguous(), "{code:?}: nothing was written");
            tells_no_names(&error, &id);
        }
    }
    assert!(backend.release(&id).await.unwrap().is_released());
}

#[tokio::test]
async fn each_code_on_a_commit_is_an_answer_a_definite_error_or_a_resolved_doubt() {
    let project = Project::start().await;
    let backend = project.backend().await;
    for (code, expected) in TABLE {
        let name = format!("{code:?}");
        project.faults.next("Commit", Fault::Refuse(code));

        let tried = try_take(&backend, &name).await;

        if code == Code::DeadlineExceeded {
            let error = tried.unwrap_err();
            assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
        } else if DOUBTFUL.contains(&code) || LOST.contains(&code) {
            // Read again: nothing of ours is there, so it is tried again and goes through.
            assert!(matches!(tried, Ok(AcquireOutcome::Acquired(lease)) if lease.fence.get() == 1), "{code:?}");
        } else {
            let error = tried.unwrap_err();
            assert_eq!((error.code(), error.is_ambiguous()), (expected, false), "{code:?}");
            assert!(!backend.is_locked(&key(&name)).await.unwrap(), "{code:?}");
        }
    }
}

#[tokio::test]
async fn a_lost_reply_of_an_acquire_is_resolved_by_the_lock_id() {
    let project = Project::start().await;
    let backend = project.backend().await;
    for code in DOUBTFUL {
        let (name, id) = (format!("{code:?}"), LockId::random());
        let fired = project.faults.fired();
        project.faults.next("Commit", Fault::LoseReply(code));

        let first = backend.acquire(request(&key(&name), &id, 30_000)).await;

        assert_eq!(project.faults.fired(), fired + 1);
        if code == Code::DeadlineExceeded {
            // The time is over: the caller hears of the doubt, and resolves it by asking again.
            let error = first.unwrap_err();
            assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
        } else {
            assert!(matches!(first, Ok(AcquireOutcome::Acquired(_))), "{code:?}: {first:?}");
        }
        let again = backend.acquire(request(&key(&name), &id, 30_000)).await.unwrap();
        assert!(matches!(again, AcquireOutcome::Acquired(lease) if lease.fence.get() == 1), "{code:?}: one effect");
        assert!(backend.release(&id).await.unwrap().is_released(), "{code:?}: no orphan");
    }
}

#[tokio::test]
async fn a_lost_reply_of_a_release_or_an_extend_has_one_effect() {
    let project = Project::start().await;
    let backend = project.backend().await;
    for code in [Code::Unavailable, Code::Cancelled, Code::Internal] {
        let (id, _) = take(&backend, "k").await;
        project.faults.next("Commit", Fault::LoseReply(code));
        assert!(backend.extend(&id, ttl(90_000)).await.unwrap().is_extended(), "{code:?}");
        project.faults.next("Commit", Fault::LoseReply(code));
        assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Released, "{code:?}");
        assert!(!backend.is_locked(&key("k")).await.unwrap(), "{code:?}");
    }
    assert_eq!(project.faults.fired(), 6);
}

#[tokio::test]
async fn a_server_that_keeps_failing_under_writes_is_an_ambiguous_error() {
    let project = Project::start().await;
    let backend = project.backend().await;
    for _ in 0..3 {
        project.faults.next("Commit", Fault::Refuse(Code::Unavailable));
    }

    let error = try_take(&backend, "k").await.unwrap_err();

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, true));
}

#[tokio::test]
async fn a_doubtful_write_whose_resolution_fails_is_ambiguous() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let id = LockId::random();
    project.faults.next("BatchGetDocuments", Fault::Delay(Duration::ZERO));
    project.faults.next("Commit", Fault::LoseReply(Code::Unavailable));
    project.faults.next("BatchGetDocuments", Fault::Refuse(Code::PermissionDenied));

    let error = backend.acquire(request(&key("k"), &id, 30_000)).await.unwrap_err();

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::AuthFailed, true));
    assert!(backend.release(&id).await.unwrap().is_released(), "it had been applied");
}

#[tokio::test]
async fn losing_every_time_is_service_unavailable_after_a_bounded_number_of_tries() {
    let project = Project::start().await;
    let backend = project.backend().await;
    for _ in 0..50 {
        project.faults.next("Commit", Fault::Refuse(Code::Aborted));
    }

    let error = try_take(&backend, "k").await.unwrap_err();

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));
    assert_eq!(project.faults.fired(), 8);
}

#[tokio::test]
async fn a_silent_server_is_a_network_timeout_and_only_a_write_leaves_doubt() {
    let project = Project::start().await;
    let backend = project.builder().timeout(Duration::from_secs(2)).connect().await.unwrap();
    // The second time it is asked on a new connection.
    project.faults.next("BatchGetDocuments", Fault::Hang);
    project.faults.next("BatchGetDocuments", Fault::Hang);
    let error = try_take(&backend, "k").await.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, false));

    let id = LockId::random();
    project.faults.next("Commit", Fault::Hang);
    let error = backend.acquire(request(&key("k"), &id, 30_000)).await.unwrap_err();
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));
    assert!(backend.release(&id).await.unwrap().is_released(), "the connection still works, and the id owns the lock");
}

#[tokio::test]
async fn a_slow_answer_gives_a_lease_that_counts_from_after_the_wait() {
    let project = Project::start().await;
    let backend = project.backend().await;
    project.faults.next("BatchGetDocuments", Fault::Delay(Duration::from_millis(700)));
    let id = LockId::random();

    let before = syncguard_core::Clock::wall(&syncguard_core::SystemClock).as_millis();
    let outcome = backend.acquire(request(&key("k"), &id, 500)).await.unwrap();

    let AcquireOutcome::Acquired(lease) = outcome else { panic!("{outcome:?}") };
    assert!(lease.expires_at.as_millis() >= before + 700 + 500, "the clock is read after the wait");
}

#[tokio::test]
async fn a_missing_index_is_explained_with_the_command_that_makes_it() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let (id, _) = take(&backend, "k").await;
    project.faults.next("RunQuery", Fault::Refuse(Code::FailedPrecondition));

    let error = backend.release(&id).await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    let hint = error.hint().unwrap();
    assert!(hint.contains("gcloud firestore indexes fields update lockId --collection-group=locks"), "{hint}");
    assert!(hint.contains(&project.id), "{hint}");
}

#[tokio::test]
async fn nobody_listening_is_service_unavailable_and_certain() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let backend = FirestoreBackend::builder("p").emulator(free.to_string()).connect().await.unwrap();

    let error = try_take(&backend, "k").await.unwrap_err();

    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("refused"), "{cause}");
}

#[tokio::test]
async fn an_answer_that_ends_early_is_not_an_absent_lock() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let (id, _) = take(&backend, "k").await;
    for _ in 0..2 {
        project.faults.next("BatchGetDocuments", Fault::Refuse(Code::Ok));
        project.faults.next("RunQuery", Fault::Refuse(Code::Ok));
    }

    let tried = try_take(&backend, "k").await.map(|_| ());
    let looked = backend.is_locked(&key("k")).await.map(|_| ());
    let released = backend.release(&id).await.map(|_| ());
    let found = backend.lookup(Lookup::LockId(&id)).await.map(|_| ());

    for answer in [tried, looked, released, found] {
        assert_eq!(answer.unwrap_err().code(), ErrorCode::Internal);
    }
    assert!(backend.release(&id).await.unwrap().is_released());
}
