//! Does the onlooker of the documentation see everything and change nothing?

use crate::support::{fresh_prefix, key, refusal, rights, take};
use syncguard_core::{ErrorCode, ListRequest, LockBackend, Lookup, Ttl};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::{RedisOptions, RedisServer};

#[tokio::test]
async fn the_documented_onlooker_sees_every_lock_and_changes_none() {
    let (server, prefix) = (RedisServer::start(RedisOptions::new()), fresh_prefix());
    let at = |url: &str| RedisBuilder::from_url(url).unwrap().prefix(prefix.as_str());
    let holder: RedisBackend = at(&server.url()).connect().await.unwrap();
    let held = take(&holder, &key("k")).await;
    let url = rights::user(server.port(), &rights::documented("onlooker"), &prefix);
    let onlooker = at(&url).connect().await.unwrap();

    let looks = onlooker.inspector().unwrap();
    assert_eq!(looks.list(ListRequest::new("")).await.unwrap().locks.len(), 1);
    assert_eq!(looks.count().await.unwrap().locks, 1);
    assert!(looks.changes().await.is_live());
    assert!(onlooker.is_locked(&key("k")).await.unwrap());
    assert!(onlooker.lookup(Lookup::Key(&key("k"))).await.unwrap().is_some());

    // By its id a lock is found by a script, and scripts are what the others lock with.
    assert_eq!(onlooker.lookup(Lookup::LockId(&held.id)).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert_eq!(refusal(&onlooker, &key("other")).await, ErrorCode::AuthFailed);
    assert_eq!(onlooker.extend(&held.id, Ttl::DEFAULT).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert_eq!(onlooker.release(&held.id).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert_eq!(looks.ask(&held.id).await.unwrap_err().code(), ErrorCode::AuthFailed);
    assert!(holder.release(&held.id).await.unwrap().is_released(), "the lock is as it was");
    assert!(!holder.is_locked(&key("other")).await.unwrap());
}

#[tokio::test]
async fn every_word_of_the_workers_line_is_a_command_that_redis_knows() {
    let (server, rules) = (RedisServer::start(RedisOptions::new()), rights::documented("worker"));
    // A misspelt word would be refused here, and one that grants a whole class would be found below.
    rights::user(server.port(), &rules, "syncguard");
    let smallest = rights::documented("lock");
    assert!(rules.starts_with("resetkeys ~syncguard:* resetchannels &syncguard:* -@all "), "{rules}");
    assert!(!rules.contains("+@") && !rules.contains("allcommands") && !rules.contains('|'), "{rules}");
    for word in smallest.split_whitespace() {
        assert!(rules.split_whitespace().any(|other| other == word), "the worker lacks {word}");
    }
}
