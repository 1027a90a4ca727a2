//! What does an operator see of the locks on Redis, and what does it take?

use std::collections::HashSet;
use std::time::Duration;

use crate::support::{Held, attempt, eventually, fresh_prefix, key, raw, take, ttl};
use syncguard_core::{
    AcquireOutcome, AcquireRequest, AskOutcome, Cursor, ErrorCode, HealthStatus, Inspector, Key, Label, ListRequest,
    LockBackend, LockId, LockInfo, Locker, Lookup, Ttl,
};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::{RedisCluster, RedisOptions as Server, RedisServer, redis_cluster_url, redis_url};

pub(super) async fn client(url: &str, prefix: &str) -> RedisBackend {
    RedisBuilder::from_url(url).unwrap().prefix(prefix).connect().await.unwrap()
}

pub(super) fn port(url: &str) -> u16 {
    let digits = url.split("127.0.0.1:").nth(1).unwrap();
    digits.split(|character: char| !character.is_ascii_digit()).next().unwrap().parse().unwrap()
}

pub(super) fn inspector(backend: &RedisBackend) -> Inspector {
    backend.inspector().expect("a server can be inspected")
}

pub(super) async fn take_labelled(backend: &RedisBackend, key: &Key, label: &str) -> Held {
    let (id, label) = (backend.new_lock_id(key), Label::new(label).unwrap());
    let request = AcquireRequest::new(key, &id, ttl(600_000)).with_label(Some(&label));
    match backend.acquire(request).await.unwrap() {
        AcquireOutcome::Acquired(lease) => Held { id, fence: lease.fence, expires_at_ms: lease.expires_at.as_millis() },
        AcquireOutcome::Contended(_) => panic!("the lock is free"),
    }
}

/// Holds a lock for as long as the slowest machine may take.
async fn hold(backend: &RedisBackend, name: &str) -> Held {
    attempt(backend, &key(name), ttl(600_000)).await.unwrap().expect("the lock is free")
}

/// Everything that a listing shows, page by page. A lock may come twice.
pub(super) async fn all(inspector: &Inspector, beginning: &str, page_size: u32) -> Vec<LockInfo> {
    let (mut found, mut cursor) = (Vec::new(), None::<Cursor>);
    for _ in 0..100_000 {
        let request = ListRequest::new(beginning).page_size(page_size).after(cursor.as_ref());
        let page = inspector.list(request).await.unwrap();
        found.extend(page.locks);
        cursor = page.next;
        if cursor.is_none() {
            return found;
        }
    }
    panic!("the listing does not end");
}

fn keys(locks: &[LockInfo]) -> HashSet<String> {
    locks.iter().map(|lock| lock.reveal().key.as_str().to_owned()).collect()
}

pub(super) async fn look(backend: &RedisBackend, name: &str) -> LockInfo {
    backend.lookup(Lookup::Key(&key(name))).await.unwrap().expect("it is held")
}

#[tokio::test]
async fn a_listing_shows_live_locks_by_the_beginning_of_their_keys() {
    let (url, prefix) = (redis_url(), fresh_prefix());
    let backend = client(&url, &prefix).await;
    let stranger = client(&url, &format!("{prefix}-elsewhere")).await;
    hold(&stranger, "deploy:web").await;
    let mut expected = HashSet::new();
    for number in 0..40 {
        hold(&backend, &format!("deploy:{number}")).await;
        expected.insert(format!("deploy:{number}"));
    }
    // What a pattern could be taken for, what looks like an inner name, and what was given back.
    for name in ["deploy*", "dep[l]oy", "id:short", "fence:other:x", "é"] {
        hold(&backend, name).await;
    }
    let gone = hold(&backend, "deploy:gone").await;
    assert!(backend.release(&gone.id).await.unwrap().is_released());

    let inspector = inspector(&backend);
    for page_size in [1, 7, 10_000] {
        assert_eq!(keys(&all(&inspector, "deploy:", page_size).await), expected, "{page_size}");
    }
    assert_eq!(keys(&all(&inspector, "deploy*", 500).await), HashSet::from(["deploy*".to_owned()]));
    assert_eq!(keys(&all(&inspector, "dep[l]", 500).await), HashSet::from(["dep[l]oy".to_owned()]));
    assert_eq!(keys(&all(&inspector, "", 500).await).len(), 45);
    assert_eq!(keys(&all(&inspector, "nothing", 500).await), HashSet::new());

    let counts = inspector.count().await.unwrap();
    assert_eq!((counts.locks, counts.counters), (45, 46));
}

#[tokio::test]
async fn what_is_not_a_lock_is_passed_over_by_a_listing() {
    let (url, prefix) = (redis_url(), fresh_prefix());
    let backend = client(&url, &prefix).await;
    let port = port(&url);
    take_labelled(&backend, &key("whole"), "ada").await;
    let value = raw(port, &["GET", &format!("{prefix}:whole")]).to_string();
    let set = |name: &str, value: &str| raw(port, &["SET", &format!("{prefix}:{name}"), value]);
    set("text", "not json");
    set("empty", "");
    set("object", "{}");
    set("numbers", r#"{"expiresAtMs":4102444800000}"#);
    set("dead", &value.replace("expiresAtMs\":", "expiresAtMs\":0,\"x\":").replace("whole", "dead"));
    // A copy under another name: nobody could release it there.
    set("copy", &value);
    raw(port, &["RPUSH", &format!("{prefix}:list"), "x"]);
    // A damaged label makes nothing foreign.
    set("odd", &value.replace("whole", "odd").replace("\"ada\"", "7"));

    let inspector = inspector(&backend);
    let listed = all(&inspector, "", 500).await;

    assert_eq!(keys(&listed), HashSet::from(["whole".to_owned(), "odd".to_owned()]));
    assert!(listed.iter().any(|lock| lock.label().is_none()));
    assert_eq!(inspector.count().await.unwrap().locks, 2);
}

#[tokio::test]
async fn a_listing_of_a_cluster_reaches_every_master() {
    for prefix in [fresh_prefix(), format!("{{{}}}", fresh_prefix())] {
        let backend = client(&redis_cluster_url(), &prefix).await;
        let mut expected = HashSet::new();
        for number in 0..64 {
            take_labelled(&backend, &key(&format!("job{number}")), &format!("holder {number}")).await;
            expected.insert(format!("job{number}"));
        }
        let inspector = inspector(&backend);
        for page_size in [5, 500] {
            let listed = all(&inspector, "", page_size).await;
            assert_eq!(keys(&listed), expected);
            assert!(listed.iter().all(|lock| lock.label().is_some()));
        }
        let counts = inspector.count().await.unwrap();
        assert_eq!((counts.locks, counts.counters), (64, 64));
        let held = look(&backend, "job7").await;
        assert_eq!(inspector.ask(held.reveal().lock_id).await.unwrap(), AskOutcome::Asked);
        assert!(look(&backend, "job7").await.is_asked_for());
    }
}

#[tokio::test]
async fn a_listing_goes_on_after_a_restart_and_misses_nothing() {
    let mut server = RedisServer::start(Server::new().appendonly(syncguard_testkit::redis::Appendonly::Always));
    let backend = client(&server.url(), "app").await;
    let mut expected = HashSet::new();
    for number in 0..200 {
        hold(&backend, &format!("k{number}")).await;
        expected.insert(format!("k{number}"));
    }
    let inspector = inspector(&backend);
    let first = inspector.list(ListRequest::new("").page_size(100)).await.unwrap();
    let mut cursor = first.next;
    let mut found = keys(&first.locks);
    assert!(cursor.is_some() && found.len() < 200, "one page held it all");

    // The names are in another order afterwards.
    server.restart();
    let mut pages = 0;
    while let Some(at) = cursor {
        match inspector.list(ListRequest::new("").page_size(100).after(Some(&at))).await {
            Ok(page) => {
                found.extend(keys(&page.locks));
                cursor = page.next;
            }
            // The lost connection is noticed by the first who uses it.
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                cursor = Some(at);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        pages += 1;
        assert!(pages < 1000, "the listing does not end");
    }

    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_cursor_of_somebody_else_is_refused() {
    let backend = client(&redis_url(), &fresh_prefix()).await;
    for text in ["", "x", "0", "1 2", "x 0 127.0.0.1:1", "1 x 127.0.0.1:1", "0) 0 127.0.0.1:1"] {
        let cursor = Cursor::new(text);
        let error = inspector(&backend).list(ListRequest::new("").after(Some(&cursor))).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{text:?}");
    }
}

#[tokio::test]
async fn being_asked_reaches_the_holder_and_ends_with_the_lock() {
    let backend = client(&redis_url(), &fresh_prefix()).await;
    let locker = Locker::new(backend.clone());
    let inspector = inspector(&backend);
    let guard = locker.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();

    assert_eq!(inspector.ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    assert_eq!(inspector.ask(guard.lock_id()).await.unwrap(), AskOutcome::Asked);
    let expires_at = look(&backend, "k").await.expires_at;
    assert!(look(&backend, "k").await.is_asked_for() && !guard.is_asked_for());
    assert!(guard.extend(Duration::from_secs(60)).await.unwrap().is_extended());
    assert!(guard.is_asked_for());
    tokio::time::timeout(Duration::from_secs(30), guard.asked_to_release()).await.expect("it was asked");
    assert!(look(&backend, "k").await.expires_at >= expires_at);

    let id = guard.lock_id().clone();
    guard.release().await.unwrap();
    assert_eq!(inspector.ask(&id).await.unwrap(), AskOutcome::Absent);
    assert_eq!(inspector.ask(&LockId::random()).await.unwrap(), AskOutcome::Absent);
    let next = locker.lock("k").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    assert!(!look(&backend, "k").await.is_asked_for());
    assert!(next.extend(Duration::from_secs(60)).await.unwrap().is_extended());
    assert!(!next.is_asked_for());
}

#[tokio::test]
async fn asking_changes_neither_the_expiry_nor_what_others_wrote() {
    let (url, prefix) = (redis_url(), fresh_prefix());
    let backend = client(&url, &prefix).await;
    let held = take(&backend, &key("k")).await;
    let name = format!("{prefix}:k");
    let words = |words: &[&str]| raw(port(&url), words).to_string();
    let value = words(&["GET", &name]);
    let ours = value.replace("\"key\":\"k\"", r#""key":"k","theirs":[1.50,{"asked\"":true}]"#);
    words(&["SET", &name, &format!("{ours} "), "PX", "77000"]);

    assert_eq!(inspector(&backend).ask(&held.id).await.unwrap(), AskOutcome::Asked);

    let expected = format!("{},\"asked\":true}}", ours.strip_suffix('}').unwrap());
    assert_eq!(words(&["GET", &name]), expected);
    assert!((60_000..=77_000).contains(&words(&["PTTL", &name]).parse::<i64>().unwrap()));
}

#[tokio::test]
async fn a_release_is_a_change_that_watchers_hear() {
    for url in [redis_url(), redis_cluster_url()] {
        let prefix = fresh_prefix();
        let (watching, other) = (client(&url, &prefix).await, client(&url, &prefix).await);
        let hint = inspector(&watching).changes().await;
        assert!(hint.is_live());
        // Confirming may itself have been a hint.
        let _ = tokio::time::timeout(Duration::from_millis(200), hint.woken()).await;

        let held = take(&other, &key("some key")).await;
        other.release(&held.id).await.unwrap();

        tokio::time::timeout(Duration::from_secs(30), hint.woken()).await.expect("the release was heard");
    }
}

/// As the documentation gives it to an onlooker.
const ONLOOKER: &str = "resetkeys %R~syncguard:* resetchannels &syncguard:* -@all \
                        +scan +get +mget +time +psubscribe +punsubscribe +ping +auth";

#[tokio::test]
async fn an_onlooker_needs_the_documented_rights_and_can_change_nothing() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/redis.md");
    let line = ONLOOKER.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(std::fs::read_to_string(docs).unwrap().contains(&line), "docs/backends/redis.md does not show: {line}");

    let server = RedisServer::start(Server::new());
    let mut words = vec!["ACL", "SETUSER", "onlooker", "on", ">pw"];
    words.extend(ONLOOKER.split_whitespace());
    server.command(&words);
    let holder = client(&server.url(), "syncguard").await;
    let held = take_labelled(&holder, &key("k"), "ada").await;
    let onlooker = client(&format!("redis://onlooker:pw@127.0.0.1:{}/", server.port()), "syncguard").await;

    let inspector = inspector(&onlooker);
    assert_eq!(keys(&all(&inspector, "", 500).await), HashSet::from(["k".to_owned()]));
    assert_eq!(inspector.count().await.unwrap().locks, 1);
    assert_eq!(look(&onlooker, "k").await.label().map(Label::as_str), Some("ada"));
    assert!(inspector.changes().await.is_live());
    assert_eq!(inspector.ask(&held.id).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert!(onlooker.release(&held.id).await.is_err());
    assert!(attempt(&onlooker, &key("other"), Ttl::DEFAULT).await.is_err());
    // Whoever may not hear all releases still hears that of a single lock.
    server.command(&["ACL", "SETUSER", "onlooker", "-psubscribe", "+subscribe", "+unsubscribe"]);
    let narrow = client(&format!("redis://onlooker:pw@127.0.0.1:{}/", server.port()), "syncguard").await;
    let narrow_inspector = narrow.inspector().unwrap();
    eventually("the refusal", async || !narrow_inspector.changes().await.is_live()).await;
    assert!(narrow.subscribe(&key("k")).await.is_live());
}

#[tokio::test]
async fn a_counter_that_expires_is_found_by_the_health_check() {
    let server = RedisServer::start(Server::new());
    let backend = client(&server.url(), "app").await;
    for name in ["a", "b"] {
        take(&backend, &key(name)).await;
    }
    let counters = async || {
        let report = backend.health().await;
        report.checks.into_iter().find(|check| check.name == "counters").expect("a line about counters")
    };
    let line = counters().await;
    assert_eq!((line.status, line.detail.as_str()), (HealthStatus::Pass, "2 fence counters, none expires"));

    server.command(&["PEXPIRE", "app:fence:app:a", "100000000"]);

    let line = counters().await;
    assert_eq!(line.status, HealthStatus::Fail, "{}", line.detail);
    assert!(line.detail.contains("1 of 2") && line.hint.unwrap().contains("PERSIST"));
    let clock = backend.health().await.checks.into_iter().find(|check| check.name == "clock").unwrap();
    assert!(clock.detail.contains('±'), "{}", clock.detail);
}

#[cfg(feature = "client")]
#[tokio::test]
async fn a_connection_that_was_brought_along_cannot_be_inspected() {
    let url = redis_url();
    let connection = redis::Client::open(url.as_str()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let options = RedisBuilder::from_url(&url).unwrap().prefix(fresh_prefix());
    let backend = RedisBackend::from_connection(connection, &options).unwrap();
    assert!(backend.inspector().is_none());
    eventually("a lock", async || attempt(&backend, &key("k"), Ttl::DEFAULT).await.is_ok()).await;
    assert!(look(&backend, "k").await.ttl().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_finds_the_successor_of_a_dead_master_by_itself() {
    let mut cluster = RedisCluster::start(3, 1);
    let (holder, onlooker) = (client(&cluster.url(), "app").await, client(&cluster.url(), "app").await);
    let mut expected = HashSet::new();
    for number in 0..48 {
        hold(&holder, &format!("k{number}")).await;
        expected.insert(format!("k{number}"));
    }
    let inspector = inspector(&onlooker);
    assert_eq!(keys(&all(&inspector, "", 500).await), expected);
    for node in 0..3 {
        let (master, replica) = (cluster.node(node), cluster.node(3 + node));
        eventually("the replica in step", async || master.command(&["DBSIZE"]) == replica.command(&["DBSIZE"])).await;
    }

    cluster.node_mut(0).kill_hard();
    cluster.wait_promoted(3).unwrap();

    // Nobody but the listing itself uses this client.
    eventually("the whole listing", async || {
        let (mut found, mut cursor) = (HashSet::new(), None::<Cursor>);
        for _ in 0..1000 {
            let page = inspector.list(ListRequest::new("").after(cursor.as_ref())).await;
            let Ok(page) = page else { return false };
            found.extend(keys(&page.locks));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        found == expected
    })
    .await;
}
