//! Does Redis refuse what it should, and in one round trip?

use redis::Value;
use redis::aio::MultiplexedConnection;
use syncguard_core::{ErrorCode, Fence};
use syncguard_fenced::redis::{FencedScript, announce, fenced_set, mark_key};
use syncguard_fenced::{FenceError, StaleFence};
use syncguard_testkit::{RedisCluster, RedisOptions, RedisServer};

fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

async fn connect(server: &RedisServer) -> MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

#[tokio::test]
async fn a_stale_holder_cannot_set() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    fenced_set(&mut connection, "ledger", "new", fence(42)).await.unwrap();

    let late = fenced_set(&mut connection, "ledger", "old", fence(41)).await.unwrap_err();

    assert_eq!(late.stale(), Some(StaleFence { offered: fence(41), seen: fence(42) }));
    assert_eq!(server.command(&["GET", "ledger"]), "new");
    assert_eq!(server.command(&["GET", "syncguard:mark:{ledger}"]), fence(42).to_string());
    fenced_set(&mut connection, "ledger", "newer", fence(42)).await.unwrap();
    assert_eq!(server.command(&["GET", "ledger"]), "newer");
}

#[tokio::test]
async fn two_keys_have_two_marks_though_they_share_a_slot() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    fenced_set(&mut connection, "ledger", "new", fence(42)).await.unwrap();

    fenced_set(&mut connection, "{ledger}", "another", fence(41)).await.unwrap();
}

#[tokio::test]
async fn an_announced_fence_refuses_older_holders_before_anything_is_written() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    announce(&mut connection, "ledger", fence(42)).await.unwrap();

    assert!(fenced_set(&mut connection, "ledger", "old", fence(41)).await.unwrap_err().stale().is_some());
    assert_eq!(server.command(&["EXISTS", "ledger"]), "0");
}

#[tokio::test]
async fn a_script_sees_its_own_keys_and_arguments_and_answers_anything() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    let script = FencedScript::new("return {#KEYS, #ARGV, KEYS[1], KEYS[2], ARGV[1], ARGV[2]}");
    let call = script.key("{k}a").key("{k}b").arg("x").arg(7);

    let answer: (i64, i64, String, String, String, i64) =
        redis::FromRedisValue::from_redis_value(call.run(&mut connection, fence(1)).await.unwrap()).unwrap();
    let nothing = FencedScript::new("").key("k").run(&mut connection, fence(1)).await.unwrap();
    let falsehood = FencedScript::new("return false").key("k").run(&mut connection, fence(1)).await.unwrap();
    let comment = FencedScript::new("return 5 -- at the end").key("k").run(&mut connection, fence(1)).await.unwrap();

    assert_eq!(answer, (2, 2, "{k}a".into(), "{k}b".into(), "x".into(), 7));
    assert_eq!((nothing, falsehood, comment), (Value::Nil, Value::Nil, Value::Int(5)));
}

#[tokio::test]
async fn a_script_that_fails_halfway_keeps_older_holders_out() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    let half = FencedScript::new("redis.call('SET', KEYS[1], 'half') error('stop')");

    let failed = half.key("k").run(&mut connection, fence(42)).await.unwrap_err();
    let late = fenced_set(&mut connection, "k", "old", fence(41)).await.unwrap_err();

    assert!(failed.stale().is_none());
    assert!(late.stale().is_some());
    assert_eq!(server.command(&["GET", "k"]), "half");
}

#[tokio::test]
async fn a_fenced_write_is_one_command() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    fenced_set(&mut connection, "k", "warm", fence(1)).await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]);

    for number in 2..12 {
        fenced_set(&mut connection, "k", "v", fence(number)).await.unwrap();
    }

    // What the script itself calls is counted under its own names.
    let stats = server.command(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_evalsha:calls=10,"), "{stats}");
    assert!(!stats.contains("cmdstat_eval:") && !stats.contains("cmdstat_script"), "{stats}");
}

#[tokio::test]
async fn a_mark_that_is_no_fence_refuses_everybody() {
    let server = RedisServer::start(RedisOptions::new());
    let mut connection = connect(&server).await;
    server.command(&["SET", &mark_key("k").unwrap(), "nonsense"]);

    let error = fenced_set(&mut connection, "k", "v", Fence::MAX).await.unwrap_err();

    let FenceError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.code(), ErrorCode::Internal);
    assert_eq!(server.command(&["EXISTS", "k"]), "0");
}

#[test]
fn in_a_cluster_the_mark_is_in_the_slot_of_its_key() {
    let cluster = RedisCluster::start(3, 0);
    let node = &cluster.nodes()[0];
    let slot = |key: &str| node.command(&["CLUSTER", "KEYSLOT", key]);
    for key in ["ledger", "a", "{a}:b", "x{tag}{b}", "a{b", "{", "with space", "caf\u{e9}", "{{a}}", "{ledger}"] {
        assert_eq!(slot(key), slot(&mark_key(key).unwrap()), "{key}");
    }
    assert_ne!(slot("ledger"), slot("a"), "all slots look the same: the test would see nothing");
}
