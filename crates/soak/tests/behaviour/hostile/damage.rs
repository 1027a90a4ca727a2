//! What was stored is damaged at random: nothing panics, and nothing unreadable is a free lock.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use syncguard::redis::RedisBuilder;
use syncguard::{AcquireOutcome, AcquireRequest, Key, LockBackend, LockId, Ttl};
use syncguard_testkit::redis::RespClient;
use syncguard_testkit::{RedisOptions, RedisServer};

use crate::hostile::{generate, use_all};

const CASES: usize = 60;

/// A live lock as it is stored, in which some fields have become something else, or whose text was cut or changed.
fn stored() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({"a": {"b": []}})),
    ];
    let field = select(vec!["lockId", "expiresAtMs", "acquiredAtMs", "fence", "key", "extra"]);
    let changes = proptest::collection::vec((field, proptest::option::of(value)), 0..4);
    (changes, any::<Index>(), any::<u8>(), 0..6_u8).prop_map(|(changes, at, byte, how)| {
        let mut lock = json!({
            "lockId": "AAAAAAAAAAAAAAAAAAAAAA", "expiresAtMs": 4_102_444_800_000_i64, "acquiredAtMs": 1,
            "key": "k", "fence": "000000000000001",
        });
        for (field, value) in changes {
            match value {
                Some(value) => lock[field] = value,
                None => drop(lock.as_object_mut().unwrap().remove(field)),
            }
        }
        let mut bytes = lock.to_string().into_bytes();
        let at = at.index(bytes.len());
        match how {
            0 => bytes.truncate(at),
            1 => bytes[at] = byte,
            _ => {}
        }
        bytes
    })
}

/// Only a number in the past says that a lock is over.
fn may_be_free(stored: &[u8]) -> bool {
    let Ok(lock) = serde_json::from_slice::<Value>(stored) else { return false };
    // A number of which nothing is lost in Lua.
    lock["expiresAtMs"].as_f64().is_some_and(|expires| expires < 4_000_000_000_000.0)
}

#[tokio::test]
async fn a_lock_that_is_damaged_at_random_is_never_free_on_redis() {
    let server = RedisServer::start(RedisOptions::new());
    let backend = RedisBuilder::from_url(&server.url()).unwrap().connect().await.unwrap().into_any();
    let mut raw = RespClient::connect(server.port()).unwrap();
    let (mut free, mut refused) = (0, 0);
    for (number, stored) in generate(&stored(), CASES).into_iter().enumerate() {
        let key = Key::new(format!("k{number}")).unwrap();
        // The client speaks text: what is no text becomes a mark, which is damage as well.
        let text = String::from_utf8_lossy(&stored).into_owned();
        raw.command(&["SET", &format!("syncguard:{}", key.as_str()), &text]).unwrap();
        let id = LockId::random();
        let outcome = backend.acquire(AcquireRequest::new(&key, &id, Ttl::DEFAULT)).await;
        match outcome {
            Ok(AcquireOutcome::Acquired(_)) => {
                assert!(may_be_free(text.as_bytes()), "taken: {text}");
                free += 1;
            }
            _ => refused += 1,
        }
        for error in use_all(&backend, &key).await {
            assert!(
                error.to_string().len() <= 1024 && !error.to_string().contains("AAAAAAAAAAAAAAAAAAAAAA"),
                "{error}"
            );
        }
    }
    println!("{refused} damaged locks kept, {free} whose end was a number in the past taken");
    assert!(refused > CASES / 2);
}
