//! What is stored for people beside a lock, and what do other clients make of it?

use std::time::Duration;

use super::inspect::{all, client, inspector, look, port, take_labelled};
use crate::support::{fresh_prefix, key, raw, take, ttl};
use syncguard_core::{AskOutcome, ExtendOutcome, Label, LockBackend, LockId, Lookup, Renewal, Ttl};
use syncguard_testkit::redis_url;

#[tokio::test]
async fn a_holders_label_and_the_length_of_its_lease_are_shown() {
    let backend = client(&redis_url(), &fresh_prefix()).await;
    let label = "ada@host:7 \"nightly\" \u{1b}[31m é";
    let held = take_labelled(&backend, &key("k"), label).await;

    let info = look(&backend, "k").await;
    assert_eq!(info.label().map(Label::as_str), Some(label));
    assert_eq!(info.ttl(), Some(ttl(600_000)));
    assert_eq!(info.renewal(), Renewal::NotYet);
    let by_id = backend.lookup(Lookup::LockId(&held.id)).await.unwrap().unwrap();
    assert_eq!(by_id.label().map(Label::as_str), Some(label));

    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(backend.extend(&held.id, ttl(700_000)).await.unwrap().is_extended());
    let info = look(&backend, "k").await;
    assert_eq!((info.label().map(Label::as_str), info.ttl()), (Some(label), Some(ttl(700_000))));
    assert!(matches!(info.renewal(), Renewal::Renewed { .. }), "{:?}", info.renewal());

    // The next holder has none.
    assert!(backend.release(&held.id).await.unwrap().is_released());
    take(&backend, &key("k")).await;
    assert!(look(&backend, "k").await.label().is_none());
}

/// The specification's scripts, word for word.
struct Original {
    port: u16,
    prefix: String,
}

impl Original {
    fn name(&self, key: &str) -> String {
        format!("{}:{key}", self.prefix)
    }

    fn acquire(&self, key: &str, id: &LockId) -> String {
        let index = format!("{}:id:{}", self.prefix, id.as_str());
        let counter = format!("{}:fence:{}", self.prefix, self.name(key));
        let script = include_str!("../../benches/redis/spec/acquire.lua");
        let (name, id) = (self.name(key), id.as_str());
        raw(self.port, &["EVAL", script, "3", &name, &index, &counter, id, "30000", "1000", &name, key]).to_string()
    }

    /// The same script releases, and extends when it is given a ttl.
    fn mutate(&self, id: &LockId, ttl: Option<&str>) -> String {
        let index = format!("{}:id:{}", self.prefix, id.as_str());
        let script = include_str!("../../benches/redis/spec/release.lua");
        let mut words = vec!["EVAL", script, "1", &index, id.as_str(), "1000"];
        words.extend(ttl);
        raw(self.port, &words).to_string()
    }
}

#[tokio::test]
async fn a_client_without_labels_takes_over_and_is_not_shown_with_the_old_one() {
    let (url, prefix) = (redis_url(), fresh_prefix());
    let backend = client(&url, &prefix).await;
    let original = Original { port: port(&url), prefix };
    let held = take_labelled(&backend, &key("k"), "the former holder").await;
    assert_eq!(inspector(&backend).ask(&held.id).await.unwrap(), AskOutcome::Asked);
    // Dead, and still there: what it takes over.
    let value: serde_json::Value =
        serde_json::from_str(&raw(original.port, &["GET", &original.name("k")]).to_string()).unwrap();
    let mut dead = value.clone();
    dead["expiresAtMs"] = 1.into();
    raw(original.port, &["SET", &original.name("k"), &dead.to_string()]);

    let id = LockId::random();
    assert!(original.acquire("k", &id).starts_with('1'));

    let info = look(&backend, "k").await;
    assert_eq!(info.reveal().lock_id, &id);
    assert!(info.label().is_none() && info.ttl().is_none() && !info.is_asked_for());
    assert_eq!(info.renewal(), Renewal::Unknown);
    let listed = all(&inspector(&backend), "", 500).await;
    assert!(listed.iter().all(|lock| lock.label().is_none()));

    // It can be asked for and renewed by us, and released by it.
    assert_eq!(inspector(&backend).ask(&id).await.unwrap(), AskOutcome::Asked);
    assert!(matches!(backend.extend(&id, Ttl::DEFAULT).await.unwrap(), ExtendOutcome::Extended(it) if it.is_asked_for));
    assert_eq!(look(&backend, "k").await.ttl(), Some(Ttl::DEFAULT));
    assert_eq!(original.mutate(&id, None), "1");
}

#[tokio::test]
async fn the_original_renews_and_releases_a_lock_with_a_label() {
    let (url, prefix) = (redis_url(), fresh_prefix());
    let backend = client(&url, &prefix).await;
    let original = Original { port: port(&url), prefix };
    let held = take_labelled(&backend, &key("k"), "ada").await;
    assert_eq!(inspector(&backend).ask(&held.id).await.unwrap(), AskOutcome::Asked);

    assert!(original.mutate(&held.id, Some("40000")).starts_with('1'));

    let info = look(&backend, "k").await;
    assert_eq!(info.label().map(Label::as_str), Some("ada"));
    assert!(info.is_asked_for());
    assert_eq!(original.acquire("k", &LockId::random()), "0");
    // Written by cjson now, in an order of its own.
    let extended = backend.extend(&held.id, ttl(20_000)).await.unwrap();
    assert!(matches!(extended, ExtendOutcome::Extended(extension) if extension.is_asked_for), "{extended:?}");
    assert_eq!(look(&backend, "k").await.ttl(), Some(ttl(20_000)));
    assert_eq!(original.mutate(&held.id, None), "1");
    assert!(!backend.is_locked(&key("k")).await.unwrap());
}
