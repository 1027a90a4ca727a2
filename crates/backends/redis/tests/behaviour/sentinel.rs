//! Is the master found, lost and found again?

use crate::support::{attempt, eventually, key, take};
use syncguard_core::{ErrorCode, LockBackend, ReleaseOutcome, Ttl};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{RedisSentinel, free_port, redis_sentinel_url};

#[tokio::test]
async fn an_unknown_master_is_an_invalid_argument_and_dead_sentinels_are_passed_over() {
    let url = redis_sentinel_url();
    let unknown = RedisBackend::connect(&url.replace("/mymaster", "/nobody")).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::InvalidArgument, "{unknown}");

    let dead = format!("redis+sentinel://127.0.0.1:{},", free_port());
    let backend = RedisBackend::connect(&url.replace("redis+sentinel://", &dead)).await.unwrap();
    assert!(!backend.is_locked(&key("k")).await.unwrap());

    let none = RedisBackend::connect(&format!("{}/mymaster", dead.trim_end_matches(','))).await.unwrap_err();
    assert_eq!(none.code(), ErrorCode::ServiceUnavailable, "{none}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_survived_with_locks_in_step_and_a_fence_above_all_earlier_ones() {
    let mut sentinel = RedisSentinel::start(1);
    let backend = RedisBackend::connect(&format!("{}?timeout=1s&fence_floor=clock", sentinel.url())).await.unwrap();
    let careful =
        RedisBackend::connect(&format!("{}?fence_floor=clock&wait_replicas=1", sentinel.url())).await.unwrap();
    let mut highest = Vec::new();
    for number in 0..20 {
        let k = key(&format!("k{number}"));
        let held = take(&backend, &k).await;
        backend.release(&held.id).await.unwrap();
        highest.push((k, held.fence));
    }
    let held = take(&careful, &key("held")).await;

    let old = sentinel.kill_master();
    let error = attempt(&backend, &key("meanwhile"), Ttl::DEFAULT).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let new = sentinel.wait_for_new_master(old);
    assert_ne!(old, new);

    // What a replica had acknowledged is still held; what was counted is never counted again.
    eventually("the new master", async || backend.is_locked(&key("held")).await.is_ok()).await;
    assert!(backend.is_locked(&key("held")).await.unwrap());
    eventually("the release", async || backend.release(&held.id).await.is_ok_and(ReleaseOutcome::is_released)).await;
    for (k, fence) in highest {
        let again = take(&backend, &k).await;
        assert!(again.fence > fence, "a fence fell");
    }
}
