//! What lies in Redis, and what happens when something else lies there?

use std::time::Duration;

use crate::support::{Held, attempt, fresh_prefix, key, raw, refusal, take, ttl};
use syncguard_core::{AcquireOutcome, AcquireRequest, ErrorCode, LockBackend, LockId, Lookup, ReleaseOutcome, Ttl};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::redis::Reply;
use syncguard_testkit::redis_url;

struct Place {
    backend: RedisBackend,
    prefix: String,
    port: u16,
}

impl Place {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    async fn with(change: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Self {
        let (url, prefix) = (redis_url(), fresh_prefix());
        let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
        let options = RedisBuilder::from_url(&url).unwrap().prefix(prefix.as_str());
        Self { backend: change(options).connect().await.unwrap(), prefix, port }
    }

    fn run(&self, words: &[&str]) -> Reply {
        raw(self.port, words)
    }

    fn name(&self, key: &str) -> String {
        format!("{}:{key}", self.prefix)
    }

    fn counter(&self, key: &str) -> String {
        format!("{0}:fence:{0}:{key}", self.prefix)
    }

    fn index(&self, id: &LockId) -> String {
        format!("{}:id:{}", self.prefix, id.as_str())
    }

    fn text(&self, name: &str) -> String {
        self.run(&["GET", name]).to_string()
    }
}

fn number(reply: &Reply) -> i64 {
    reply.to_string().parse().unwrap()
}

#[tokio::test]
async fn a_lock_lies_in_redis_as_the_original_writes_it() {
    let place = Place::new().await;
    let quoted = key("res\"ource:100%é/\u{1}");

    let held = take(&place.backend, &quoted).await;

    let name = place.name(quoted.as_str());
    let stored: serde_json::Value = serde_json::from_str(&place.text(&name)).unwrap();
    let mut fields: Vec<&str> = stored.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    // The length of the lease is ours: the original keeps what it does not know.
    assert_eq!(fields, ["acquiredAtMs", "expiresAtMs", "fence", "key", "lockId", "ttlMs"]);
    assert_eq!(stored["ttlMs"], 30_000);
    assert_eq!(stored["lockId"], held.id.as_str());
    assert_eq!(stored["key"], quoted.as_str());
    assert_eq!(stored["fence"], "000000000000001");
    assert_eq!(stored["expiresAtMs"].as_i64().unwrap(), held.expires_at_ms);
    assert_eq!(stored["expiresAtMs"].as_i64().unwrap() - stored["acquiredAtMs"].as_i64().unwrap(), 30_000);
    assert_eq!(place.text(&place.index(&held.id)), name);
    assert_eq!(place.text(&place.counter(quoted.as_str())), "1");
}

#[tokio::test]
async fn lock_and_index_live_for_the_lease_and_the_tolerance_and_the_counter_for_ever() {
    let place = Place::new().await;
    let held = take(&place.backend, &key("k")).await;
    let left = |name: &str| number(&place.run(&["PTTL", name]));

    for name in [place.name("k"), place.index(&held.id)] {
        assert!((30_000..=31_000).contains(&left(&name)), "{}", left(&name));
    }
    assert_eq!(left(&place.counter("k")), -1);

    let _ = place.backend.extend(&held.id, ttl(60_000)).await.unwrap();
    for name in [place.name("k"), place.index(&held.id)] {
        assert!((60_000..=61_000).contains(&left(&name)), "{}", left(&name));
    }

    assert_eq!(place.backend.release(&held.id).await.unwrap(), ReleaseOutcome::Released);
    assert_eq!(number(&place.run(&["EXISTS", &place.name("k"), &place.index(&held.id)])), 0);
    assert_eq!(place.text(&place.counter("k")), "1");
}

/// As cjson writes it in the TypeScript original: another order of the fields, numbers in another form.
fn originals_lock(place: &Place, id: &LockId, expires_at: i64) {
    let value = format!(
        r#"{{"expiresAtMs":{expires_at},"fence":"000000000000007","key":"k","lockId":"{}","acquiredAtMs":1.7e+12}}"#,
        id.as_str()
    );
    place.run(&["SET", &place.name("k"), &value, "PX", "30000"]);
    place.run(&["SET", &place.index(id), &place.name("k"), "PX", "30000"]);
    place.run(&["SET", &place.counter("k"), "7"]);
}

fn server_time(place: &Place) -> i64 {
    let time = place.run(&["TIME"]).items();
    number(&time[0]) * 1000 + number(&time[1]) / 1000
}

#[tokio::test]
async fn a_lock_of_the_original_is_respected_extended_and_released() {
    let place = Place::new().await;
    let id = LockId::random();
    originals_lock(&place, &id, server_time(&place) + 30_000);

    assert!(attempt(&place.backend, &key("k"), Ttl::DEFAULT).await.unwrap().is_err());
    let info = place.backend.lookup(Lookup::LockId(&id)).await.unwrap().unwrap();
    assert_eq!((info.fence.get(), info.acquired_at.as_millis()), (7, 1_700_000_000_000));
    assert!(place.backend.extend(&id, ttl(50_000)).await.unwrap().is_extended());
    let stored: serde_json::Value = serde_json::from_str(&place.text(&place.name("k"))).unwrap();
    assert!(stored["expiresAtMs"].as_i64().unwrap() > server_time(&place) + 45_000);
    assert_eq!(stored["fence"], "000000000000007");
    assert!(place.backend.release(&id).await.unwrap().is_released());
    assert_eq!(take(&place.backend, &key("k")).await.fence.get(), 8);
}

#[tokio::test]
async fn taking_over_a_dead_lock_removes_the_old_index() {
    let place = Place::new().await;
    let dead = LockId::random();
    originals_lock(&place, &dead, server_time(&place) - 5_000);

    let held = take(&place.backend, &key("k")).await;

    assert_eq!(held.fence.get(), 8);
    assert_eq!(place.text(&place.index(&dead)), "");
    assert_eq!(place.text(&place.index(&held.id)), place.name("k"));
    assert!(!place.backend.release(&dead).await.unwrap().is_released());
}

#[tokio::test]
async fn an_id_that_died_can_be_acquired_with_again() {
    let place = Place::new().await;
    let id = LockId::random();
    originals_lock(&place, &id, server_time(&place) - 5_000);

    let k = key("k");
    let request = AcquireRequest::new(&k, &id, Ttl::DEFAULT);
    let AcquireOutcome::Acquired(lease) = place.backend.acquire(request).await.unwrap() else {
        panic!("the lock is free")
    };

    assert_eq!(lease.fence.get(), 8);
    assert!(place.backend.release(&id).await.unwrap().is_released());
}

#[tokio::test]
async fn keys_of_the_inner_namespaces_are_refused_and_others_keep_working() {
    let place = Place::new().await;
    let foo = take(&place.backend, &key("foo")).await;

    for reserved in [format!("id:{}", foo.id.as_str()), format!("fence:{}:foo", place.prefix)] {
        let reserved = key(&reserved);
        assert_eq!(refusal(&place.backend, &reserved).await, ErrorCode::InvalidArgument);
        assert_eq!(place.backend.is_locked(&reserved).await.unwrap_err().code(), ErrorCode::InvalidArgument);
        let looked = place.backend.lookup(Lookup::Key(&reserved)).await;
        assert_eq!(looked.unwrap_err().code(), ErrorCode::InvalidArgument);
    }

    assert!(place.backend.release(&foo.id).await.unwrap().is_released());
    assert_eq!(take(&place.backend, &key("foo")).await.fence.get(), 2);
}

#[tokio::test]
async fn a_key_that_begins_with_fence_and_meets_no_counter_is_a_key_like_any_other() {
    let place = Place::new().await;
    let foo = take(&place.backend, &key("foo")).await;
    for name in ["fence:x", "fence:", "fence:other:foo"] {
        let held = take(&place.backend, &key(name)).await;
        assert!(place.backend.lookup(Lookup::LockId(&held.id)).await.unwrap().is_some(), "{name}");
        assert!(place.backend.release(&held.id).await.unwrap().is_released(), "{name}");
        assert_eq!(take(&place.backend, &key(name)).await.fence.get(), 2, "{name}");
    }
    assert_eq!(place.text(&place.counter("foo")), "1");
    assert!(place.backend.release(&foo.id).await.unwrap().is_released());

    // Without a prefix every `fence:` may be a counter.
    let bare = RedisBackend::connect(&format!("{}?prefix=", redis_url())).await.unwrap();
    assert_eq!(refusal(&bare, &key("fence:x")).await, ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn numbers_that_are_no_json_are_not_a_lock_to_anybody() {
    let place = Place::new().await;
    for expiry in ["-Infinity", "Infinity", "NaN", "nan", "-inf", "0x10", "01", "1.5", "-9e300"] {
        let value = format!(r#"{{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":{expiry},"key":"k"}}"#);
        place.run(&["SET", &place.name("k"), &value]);
        assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::Internal, "{expiry}");
        assert_eq!(place.backend.is_locked(&key("k")).await.unwrap_err().code(), ErrorCode::Internal, "{expiry}");
        assert_eq!(place.text(&place.name("k")), value, "{expiry}: the value was changed");
    }
    // In any other field too: the two readers of a value must agree on what is JSON.
    let value = r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":0x10}"#;
    place.run(&["SET", &place.name("k"), value]);
    assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::Internal);
    // A text may hold any of it.
    let value = r#"{"expiresAtMs":1,"key":"NaN 0x10 \" inf 01"}"#;
    place.run(&["SET", &place.name("k"), value]);
    take(&place.backend, &key("k")).await;
}

#[tokio::test]
async fn a_counter_with_leading_zeros_is_named_as_what_it_is() {
    let place = Place::new().await;
    place.run(&["SET", &place.counter("k"), "000000000000007"]);

    let error = attempt(&place.backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::Internal, "{error}");
    assert!(error.to_string().contains("counter"), "{error}");
    assert!(error.hint().unwrap().contains("leading zeros"), "{error:?}");
    place.run(&["SET", &place.counter("k"), "7"]);
    assert_eq!(take(&place.backend, &key("k")).await.fence.get(), 8);
}

#[tokio::test]
async fn every_granted_lease_tells_the_servers_time() {
    let place = Place::new().await;
    let k = key("k");
    let id = place.backend.new_lock_id(&k);
    let request = AcquireRequest::new(&k, &id, ttl(30_000));
    let acquire = async || match place.backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired(lease) => lease.left().expect("the server's time"),
        AcquireOutcome::Contended(_) => panic!("the lock is ours"),
    };

    assert_eq!(acquire().await, Duration::from_secs(30));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(acquire().await < Duration::from_secs(30), "an owned-up lease is as old as it is");

    let other = LockId::random();
    originals_lock(&place, &other, server_time(&place) + 20_000);
    let request = AcquireRequest::new(&k, &other, ttl(30_000));
    let AcquireOutcome::Acquired(lease) = place.backend.acquire(request).await.unwrap() else { panic!("it is ours") };
    assert!(lease.left().expect("the server's time") <= Duration::from_secs(20));
}

#[tokio::test]
async fn what_is_not_a_lock_is_never_taken_for_a_free_one() {
    let place = Place::new().await;
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let big = format!(r#"{{"expiresAtMs":1,"lockId":"{}"}}"#, "x".repeat(1 << 20));
    for value in [
        "not json",
        "",
        "5",
        "\"text\"",
        "[1]",
        "null",
        "{}",
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA"}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":"1"}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":null}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1e308}"#,
        r#"{"lockId":5,"expiresAtMs":4102444800000}"#,
        r#"{"expiresAtMs":4102444800000}"#,
        // Ends like one of ours, does not begin like one.
        r#"x{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#,
        &deep,
        &big,
    ] {
        place.run(&["SET", &place.name("k"), value]);
        let shown: String = value.chars().take(60).collect();
        assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::Internal, "{shown}");
        let info = place.backend.lookup(Lookup::Key(&key("k"))).await;
        assert!(info.is_err(), "{shown}: {info:?}");
        assert_eq!(place.text(&place.name("k")), value, "the foreign value was changed");
    }
    // Nothing was counted, and the neighbours are unharmed.
    assert_eq!(place.text(&place.counter("k")), "");
    take(&place.backend, &key("other")).await;
}

#[tokio::test]
async fn a_value_that_expired_by_a_valid_number_is_taken_over_whatever_else_it_holds() {
    let place = Place::new().await;
    for value in [r#"{"expiresAtMs":-5}"#, r#"{"lockId":5,"expiresAtMs":1}"#, r#"{"lockId":"junk","expiresAtMs":1}"#] {
        place.run(&["SET", &place.name("k"), value]);
        let held = take(&place.backend, &key("k")).await;
        assert!(place.backend.release(&held.id).await.unwrap().is_released(), "{value}");
    }
}

#[tokio::test]
async fn a_value_of_another_type_is_an_invalid_argument() {
    let place = Place::new().await;
    place.run(&["RPUSH", &place.name("k"), "x"]);

    assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::InvalidArgument);
    assert_eq!(place.backend.is_locked(&key("k")).await.unwrap_err().code(), ErrorCode::InvalidArgument);

    // The lock was replaced under its holder.
    let held = take(&place.backend, &key("j")).await;
    place.run(&["DEL", &place.name("j")]);
    place.run(&["RPUSH", &place.name("j"), "x"]);
    assert_eq!(place.backend.release(&held.id).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    assert_eq!(place.backend.extend(&held.id, Ttl::DEFAULT).await.unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn a_damaged_counter_refuses_and_nothing_is_written() {
    let place = Place::new().await;
    let (k, counter) = (key("k"), place.counter("k"));
    for value in [
        "abc",
        "",
        "1.5",
        " 5",
        "0x10",
        "-5",
        "9007199254740993",
        "900000000000000",
        "900000000000001",
        "9223372036854775807",
    ] {
        place.run(&["SET", &counter, value]);
        assert_eq!(refusal(&place.backend, &k).await, ErrorCode::Internal, "{value:?}");
        assert_eq!(place.text(&counter), value, "the counter was changed");
        assert_eq!(number(&place.run(&["EXISTS", &place.name("k")])), 0, "a lock was left behind");
    }
    place.run(&["DEL", &counter]);
    place.run(&["RPUSH", &counter, "x"]);
    assert_eq!(refusal(&place.backend, &k).await, ErrorCode::Internal);
    assert_eq!(number(&place.run(&["EXISTS", &place.name("k")])), 0);

    // The last fence there is can still be given, once.
    place.run(&["DEL", &counter]);
    place.run(&["SET", &counter, "899999999999999"]);
    assert_eq!(take(&place.backend, &k).await.fence.to_string(), "900000000000000");
}

#[tokio::test]
async fn an_index_that_leads_elsewhere_deletes_nothing() {
    let place = Place::new().await;
    let held = take(&place.backend, &key("k")).await;
    place.run(&["SET", "stranger:key", "precious"]);
    for target in
        [place.name("missing"), place.name("k"), place.counter("k"), place.index(&held.id), "stranger:key".to_owned()]
    {
        let id = LockId::random();
        place.run(&["SET", &place.index(&id), &target]);
        assert!(!place.backend.release(&id).await.unwrap().is_released(), "{target}");
        assert!(!place.backend.extend(&id, Ttl::DEFAULT).await.unwrap().is_extended(), "{target}");
        assert!(place.backend.lookup(Lookup::LockId(&id)).await.unwrap().is_none(), "{target}");
    }
    assert_eq!(place.text("stranger:key"), "precious");
    assert_eq!(place.text(&place.counter("k")), "1");
    assert!(place.backend.release(&held.id).await.unwrap().is_released());
}

#[tokio::test]
async fn without_its_index_a_lock_cannot_be_released_and_ends_by_itself() {
    let place = Place::new().await;
    let held = take(&place.backend, &key("k")).await;
    place.run(&["DEL", &place.index(&held.id)]);

    assert!(!place.backend.release(&held.id).await.unwrap().is_released());
    assert!(place.backend.is_locked(&key("k")).await.unwrap());
    assert!(number(&place.run(&["PTTL", &place.name("k")])) > 0);
}

#[tokio::test]
async fn another_client_can_release_by_id_alone() {
    let place = Place::new().await;
    let Held { id, .. } = take(&place.backend, &key("k")).await;
    let elsewhere = RedisBackend::connect(&format!("{}?prefix={}", redis_url(), place.prefix)).await.unwrap();

    assert!(elsewhere.extend(&id, Ttl::DEFAULT).await.unwrap().is_extended());
    assert!(elsewhere.lookup(Lookup::LockId(&id)).await.unwrap().is_some());
    assert!(elsewhere.release(&id).await.unwrap().is_released());
    assert!(!place.backend.release(&id).await.unwrap().is_released());
}

#[tokio::test]
async fn cleanup_and_purge_remove_only_locks_that_are_long_dead() {
    let place = Place::with(|options| options.cleanup_in_is_locked(true)).await;
    let now = server_time(&place);
    let store = |name: &str, id: &LockId, expires_at: i64| {
        let value = format!(r#"{{"lockId":"{}","expiresAtMs":{expires_at}}}"#, id.as_str());
        place.run(&["SET", &place.name(name), &value]);
        place.run(&["SET", &place.index(id), &place.name(name)]);
    };
    let (dead, fresh, alive, looked_at) = (LockId::random(), LockId::random(), LockId::random(), LockId::random());
    store("dead", &dead, now - 60_000);
    store("fresh", &fresh, now + 300);
    store("alive", &alive, now + 60_000);
    store("looked-at", &looked_at, now - 60_000);
    place.run(&["SET", &place.name("foreign"), "not a lock"]);
    place.run(&["SET", &place.counter("dead"), "5"]);

    assert!(!place.backend.is_locked(&key("looked-at")).await.unwrap());
    crate::support::eventually("the cleanup", async || number(&place.run(&["EXISTS", &place.index(&looked_at)])) == 0)
        .await;
    assert_eq!(place.backend.purge_expired().await.unwrap(), 1);

    let left = |id: &LockId| number(&place.run(&["EXISTS", &place.index(id)]));
    assert_eq!((left(&dead), left(&fresh), left(&alive)), (0, 1, 1));
    assert_eq!(number(&place.run(&["EXISTS", &place.name("dead"), &place.name("looked-at")])), 0);
    assert_eq!(
        number(&place.run(&["EXISTS", &place.name("foreign"), &place.name("alive"), &place.counter("dead")])),
        3
    );
}

#[tokio::test]
async fn a_lock_costs_less_than_a_kilobyte() {
    let place = Place::new().await;
    let k = key(&"k".repeat(64));
    let held = take(&place.backend, &k).await;

    let size = |name: String| number(&place.run(&["MEMORY", "USAGE", &name]));
    let lock = size(place.name(k.as_str())) + size(place.index(&held.id));
    let counter = size(place.counter(k.as_str()));

    println!("a lock on a 64-byte key: {lock} bytes while held, {counter} bytes for its counter");
    assert!(lock + counter < 1024, "{lock} + {counter}");
}

#[tokio::test]
async fn a_clock_floored_fence_survives_the_loss_of_its_counter() {
    let place = Place::with(|options| options.fence_floor(true)).await;
    let before = server_time(&place);
    let first = take(&place.backend, &key("k")).await;
    assert!(i64::try_from(first.fence.get()).unwrap() >= before);
    place.backend.release(&first.id).await.unwrap();
    let second = take(&place.backend, &key("k")).await;
    assert!(second.fence > first.fence);
    place.backend.release(&second.id).await.unwrap();
    assert_eq!(place.text(&place.counter("k")), second.fence.get().to_string());

    place.run(&["DEL", &place.counter("k")]);
    tokio::time::sleep(Duration::from_millis(2)).await;

    assert!(take(&place.backend, &key("k")).await.fence > second.fence);
}

#[tokio::test]
async fn a_plain_counter_repeats_after_its_loss() {
    // The control of the test above: without the floor the loss shows.
    let place = Place::new().await;
    let first = take(&place.backend, &key("k")).await;
    place.backend.release(&first.id).await.unwrap();
    place.run(&["DEL", &place.counter("k")]);
    assert_eq!(take(&place.backend, &key("k")).await.fence, first.fence);
}

#[test]
fn every_key_a_script_touches_is_declared() {
    for file in ["acquire", "release", "extend", "lookup", "purge", "ask"] {
        let source = std::fs::read_to_string(format!("{}/scripts/{file}.lua", env!("CARGO_MANIFEST_DIR"))).unwrap();
        // `run` is what some of them call redis.pcall.
        let source = source.replace("redis.call(", "run(").replace("redis.pcall(", "run(");
        for line in source.lines().filter(|line| line.contains("run(")) {
            let first = line.split("run(").nth(1).unwrap();
            let declared = first.contains("KEYS[") || first.starts_with("'TIME'");
            assert!(declared, "{file}: {line}");
        }
    }
}
