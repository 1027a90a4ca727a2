//! Documents that were damaged at random: nothing panics or hangs, and nothing unreadable is a free lock.

use std::time::Duration;

use super::support::raw::{Fields, lock_fields, number, text};
use super::support::{Project, key, request, ttl};
use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use proto::value::ValueType;
use syncguard_core::{AcquireOutcome, LockBackend, LockId, Lookup};

const CASES: usize = 60;
const OWNER: &str = "AAAAAAAAAAAAAAAAAAAAAA";
const FAR: i64 = 4_102_444_800_000;
/// Far beyond the timeout of an operation.
const HANG: Duration = Duration::from_secs(90);

fn value() -> impl Strategy<Value = proto::Value> {
    let made = |value_type| proto::Value { value_type: Some(value_type) };
    prop_oneof![
        Just(made(ValueType::NullValue(0))),
        any::<bool>().prop_map(move |value| made(ValueType::BooleanValue(value))),
        any::<i64>().prop_map(number),
        select(vec![0, 1, -1, i64::MIN, i64::MAX]).prop_map(number),
        any::<f64>().prop_map(move |value| made(ValueType::DoubleValue(value))),
        ".{0,24}".prop_map(|value| text(&value)),
        proptest::collection::vec(any::<u8>(), 0..8).prop_map(move |bytes| made(ValueType::BytesValue(bytes))),
        Just(made(ValueType::MapValue(proto::MapValue::default()))),
        Just(made(ValueType::ArrayValue(proto::ArrayValue::default()))),
    ]
}

/// Fields of a live lock that have become something else, or are gone.
fn changes() -> impl Strategy<Value = Vec<(&'static str, Option<proto::Value>)>> {
    let field = select(vec!["lockId", "expiresAtMs", "acquiredAtMs", "fence", "key", "holder", "extra"]);
    proptest::collection::vec((field, proptest::option::of(value())), 1..4)
}

fn damaged(name: &str, changes: Vec<(&'static str, Option<proto::Value>)>) -> Fields {
    let mut fields = lock_fields(name, OWNER, 1, FAR);
    for (field, value) in changes {
        match value {
            Some(value) => drop(fields.insert(field.to_owned(), value)),
            None => drop(fields.remove(field)),
        }
    }
    fields
}

/// Only a number in the past says that a lock is over.
fn may_be_free(fields: &Fields) -> bool {
    match fields.get("expiresAtMs").and_then(|value| value.value_type.as_ref()) {
        Some(ValueType::IntegerValue(expires)) => *expires < FAR / 2,
        Some(ValueType::DoubleValue(expires)) => *expires < 2e12,
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_is_damaged_at_random_is_never_free() {
    let project = Project::start().await;
    let (backend, raw) = (project.backend().await, project.raw().await);
    raw.put("locks", "over", lock_fields("over", OWNER, 1, 1)).await;
    let taken = backend.acquire(request(&key("over"), &LockId::random(), 30_000)).await.unwrap();
    assert!(matches!(taken, AcquireOutcome::Acquired(_)), "a whole document of the past is a free lock");
    let (strategy, mut runner) = (changes(), TestRunner::deterministic());
    let (mut free, mut refused) = (0, 0);
    for case in 0..CASES {
        let name = format!("k{case}");
        let fields = damaged(&name, strategy.new_tree(&mut runner).unwrap().current());
        raw.put("locks", &name, fields.clone()).await;
        let (key, id, owner) = (key(&name), LockId::random(), LockId::parse(OWNER).unwrap());

        let work = async {
            let taken = backend.acquire(request(&key, &id, 30_000)).await;
            let mut errors = vec![
                backend.is_locked(&key).await.err(),
                backend.lookup(Lookup::Key(&key)).await.err(),
                backend.lookup(Lookup::LockId(&owner)).await.err(),
                backend.extend(&id, ttl(30_000)).await.err(),
                backend.release(&id).await.err(),
            ];
            match taken {
                Ok(AcquireOutcome::Acquired(_)) => {
                    assert!(may_be_free(&fields), "taken: {fields:?}");
                    free += 1;
                }
                Ok(AcquireOutcome::Contended(_)) => refused += 1,
                Err(error) => {
                    errors.push(Some(error));
                    refused += 1;
                }
            }
            errors
        };
        for error in tokio::time::timeout(HANG, work).await.expect("it hangs").into_iter().flatten() {
            let shown = format!("{error} {error:?} {:?}", error.hint());
            assert!(error.to_string().len() <= 1024 && !shown.contains(OWNER), "{shown}");
        }
    }
    println!("{refused} damaged locks kept, {free} whose end was a number in the past taken");
    assert!(refused > CASES / 2);
}
