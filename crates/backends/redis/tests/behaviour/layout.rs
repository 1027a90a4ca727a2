//! What lies in Redis, and what did the original put there?

use std::time::Duration;

use crate::support::place::{Place, number, server_time};
use crate::support::{Held, attempt, eventually, key, refusal, take, ttl};
use syncguard_core::{
    AbsentReason, AcquireOutcome, AcquireRequest, ErrorCode, ExtendOutcome, LockBackend, LockId, Lookup,
    ReleaseOutcome, Ttl,
};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{RedisOptions, RedisServer, redis_url};

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
    eventually("the cleanup", async || number(&place.run(&["EXISTS", &place.index(&looked_at)])) == 0).await;
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
async fn looks_at_dead_locks_start_one_removal_at_a_time() {
    let server = RedisServer::start(RedisOptions::new());
    let url = format!("{}?connections=1&timeout=60s&cleanup_in_is_locked=true", server.url());
    let backend = RedisBackend::connect(&url).await.unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("dead{number}")).collect();
    for name in &names {
        let value = format!(r#"{{"lockId":"{}","expiresAtMs":1}}"#, LockId::random().as_str());
        server.command(&["SET", &format!("syncguard:{name}"), &value]);
    }
    // Reads pass and scripts wait, so a removal that has begun does not end.
    server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);

    let keys: Vec<_> = names.iter().map(|name| key(name)).collect();
    let looks = futures_util::future::join_all(keys.iter().map(|key| backend.is_locked(key))).await;
    assert!(looks.into_iter().all(|locked| !locked.unwrap()), "a look does not wait for the removal");
    server.command(&["CLIENT", "UNPAUSE"]);

    let left = || server.command(&["DBSIZE"]).parse::<usize>().unwrap();
    eventually("a removal", async || left() < 10).await;
    // On the one connection this is answered after everything that the looks have started.
    assert!(!backend.is_locked(&key("nobody's")).await.unwrap());
    assert_eq!(left(), 9, "ten looks started more than one removal");
    // The next look starts the next one.
    eventually("another removal", async || {
        for key in &keys {
            assert!(!backend.is_locked(key).await.unwrap());
        }
        left() < 9
    })
    .await;
}

#[tokio::test]
async fn a_lock_whose_lease_is_over_is_told_from_one_that_is_not_there() {
    let place = Place::new().await;
    let (expired, absent) = (Some(AbsentReason::Expired), Some(AbsentReason::NotFound));
    for release in [true, false] {
        let dead = LockId::random();
        originals_lock(&place, &dead, server_time(&place) - 5_000);
        for (id, reason) in [(&LockId::random(), absent), (&dead, expired), (&dead, absent)] {
            if release {
                assert_eq!(place.backend.release(id).await.unwrap(), ReleaseOutcome::Absent(reason));
            } else {
                let outcome = place.backend.extend(id, Ttl::DEFAULT).await.unwrap();
                assert_eq!(outcome, ExtendOutcome::Absent(reason));
            }
        }
    }
    // Somebody else's lock is not there for this id, whatever its index says.
    let (id, stranger) = (LockId::random(), LockId::random());
    originals_lock(&place, &id, server_time(&place) + 30_000);
    place.run(&["SET", &place.index(&stranger), &place.name("k")]);
    assert_eq!(place.backend.release(&stranger).await.unwrap(), ReleaseOutcome::Absent(absent));
    assert_eq!(place.backend.extend(&stranger, Ttl::DEFAULT).await.unwrap(), ExtendOutcome::Absent(absent));
    assert!(place.backend.release(&id).await.unwrap().is_released());
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
    for file in ["acquire", "release", "extend", "lookup", "purge", "ask", "own", "line"] {
        let source = std::fs::read_to_string(format!("{}/scripts/{file}.lua", env!("CARGO_MANIFEST_DIR"))).unwrap();
        // `run` is what some of them call redis.pcall.
        let source = source.replace("redis.call(", "run(").replace("redis.pcall(", "run(");
        for line in source.lines().filter(|line| line.contains("run(")) {
            let first = line.split("run(").nth(1).unwrap();
            let declared = first.contains("KEYS")
                || ["'TIME'", "'PUBSUB'", "'PUBLISH'"].iter().any(|word| first.starts_with(word));
            assert!(declared, "{file}: {line}");
        }
    }
}
