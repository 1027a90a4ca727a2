//! How many calls does an operation cost?

use super::support::{Project, key, request, take, ttl};
use syncguard_core::{AcquireOutcome, ExtendOutcome, LockBackend, LockId, Lookup, ReleaseOutcome};

fn calls(list: &[(&str, u32)]) -> Vec<(String, u32)> {
    list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[tokio::test]
async fn acquire_release_and_extend_take_two_calls_and_every_look_one() {
    let project = Project::start().await;
    let backend = project.backend().await;
    let faults = &project.faults;

    let (id, _) = take(&backend, "k").await;
    assert_eq!(faults.calls(), calls(&[("BatchGetDocuments", 1), ("Commit", 1)]), "acquire");

    faults.reset_calls();
    let contended = backend.acquire(request(&key("k"), &LockId::random(), 1_000)).await.unwrap();
    assert!(matches!(contended, AcquireOutcome::Contended(_)));
    assert_eq!(faults.calls(), calls(&[("BatchGetDocuments", 1)]), "held");

    faults.reset_calls();
    assert!(matches!(backend.extend(&id, ttl(30_000)).await.unwrap(), ExtendOutcome::Extended(_)));
    assert_eq!(faults.calls(), calls(&[("Commit", 1), ("RunQuery", 1)]), "extend");

    faults.reset_calls();
    assert!(backend.lookup(Lookup::Key(&key("k"))).await.unwrap().is_some());
    assert_eq!(faults.calls(), calls(&[("BatchGetDocuments", 1)]), "lookup by key");

    faults.reset_calls();
    assert!(backend.lookup(Lookup::LockId(&id)).await.unwrap().is_some());
    assert_eq!(faults.calls(), calls(&[("RunQuery", 1)]), "lookup by lock id");

    faults.reset_calls();
    assert!(backend.is_locked(&key("k")).await.unwrap());
    assert_eq!(faults.total(), 1, "is_locked");

    faults.reset_calls();
    assert_eq!(backend.release(&id).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(faults.calls(), calls(&[("Commit", 1), ("RunQuery", 1)]), "release");

    faults.reset_calls();
    assert!(!backend.release(&id).await.unwrap().is_released());
    assert_eq!(faults.calls(), calls(&[("RunQuery", 1)]), "release of nothing");
}
