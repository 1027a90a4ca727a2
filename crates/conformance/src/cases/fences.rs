//! Do fences only rise?

use std::collections::HashSet;
use std::sync::Arc;

use tokio::task::JoinSet;

use syncguard_core::{ErrorCode, Fence, LockBackend, Lookup};

use crate::Harness;
use crate::runner::skip;
use crate::support::{
    BackendClock, LONG, after, assert_contended, attempt, extend, give_back, is_locked, key, ms, take, ttl,
};

/// A key that was never locked starts at 1.
pub async fn the_first_fence_is_one<H: Harness>(h: &H) {
    let backend = h.backend().await;
    assert_eq!(take(&backend, &key("first"), LONG).await.fence, Fence::FIRST);
    assert_eq!(take(&backend, &key("another first"), LONG).await.fence, Fence::FIRST, "each key has its own counter");
}

/// 1 000 acquisitions and releases, one after another.
pub async fn fences_rise_strictly_over_many_cycles<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("cycles"));
    let mut last = None;
    for _ in 0..h.budget().serial_cycles {
        let held = take(&backend, &key, LONG).await;
        assert!(Some(held.fence) > last, "{:?} does not come after {last:?}", held.fence);
        last = Some(held.fence);
        give_back(&backend, &held).await;
    }
}

/// Who does not get the lock leaves no trace in the counter.
pub async fn a_contended_acquire_consumes_no_fence<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("contended"));
    let first = take(&backend, &key, LONG).await;
    for _ in 0..5 {
        assert_contended(&backend, &key).await;
    }
    give_back(&backend, &first).await;

    let second = take(&backend, &key, LONG).await;

    assert_eq!(second.fence.get(), first.fence.get() + 1);
}

/// A dead holder's fence is not given again.
pub async fn fences_rise_over_expiry_and_takeover<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("taken over"));
    let first = take(&backend, &key, ttl(100)).await;
    h.pass(ms(1_600)).await;

    let second = take(&backend, &key, ttl(100)).await;
    h.pass(ms(1_600)).await;
    let third = take(&backend, &key, LONG).await;

    assert!(first.fence < second.fence && second.fence < third.fence, "{first:?} {second:?} {third:?}");
}

/// Purging the dead does not forget how far their keys had counted.
pub async fn fences_rise_over_cleanup<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("cleaned"));
    let clock = BackendClock::start(&backend).await;
    let first = take(&backend, &key, ttl(1)).await;
    clock.wait_until(h, &backend, after(first.expires_at, 2_100)).await;

    backend.purge_expired().await.expect("purge answers");

    assert!(take(&backend, &key, LONG).await.fence > first.fence);
}

/// The next deployment sets the storage up once more.
pub async fn fences_rise_over_another_set_up<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("set up"));
    let first = take(&backend, &key, LONG).await;

    h.set_up_again().await;

    assert!(is_locked(&backend, &key).await, "setting up again lost a lock");
    give_back(&backend, &first).await;
    assert!(take(&h.backend().await, &key, LONG).await.fence > first.fence);
}

/// An orderly restart of the storage.
pub async fn fences_rise_over_a_restart<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("restarted"));
    let first = take(&backend, &key, LONG).await;
    give_back(&backend, &first).await;

    if let Err(reason) = h.restart().await {
        return skip("fences_rise_over_a_restart", &reason);
    }

    assert!(take(&h.backend().await, &key, LONG).await.fence > first.fence);
}

/// The counter belongs to the storage, not to a client.
pub async fn fences_rise_from_client_to_client<H: Harness>(h: &H) {
    let key = key("clients");
    let mut last = None;
    for _ in 0..5 {
        let client = h.backend().await;
        let held = take(&client, &key, LONG).await;
        assert!(Some(held.fence) > last, "{:?} does not come after {last:?}", held.fence);
        last = Some(held.fence);
        give_back(&client, &held).await;
    }
}

/// Many clients count on many keys at once: no fence of a key is given twice.
pub async fn no_fence_is_given_twice_under_load<H: Harness>(h: &H) {
    let backend = Arc::new(h.backend().await);
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let backend = backend.clone();
        tasks.spawn(async move {
            let key = key(&format!("load {}", task % 4));
            let mut seen = Vec::new();
            for _ in 0..15 {
                if let Ok(held) = attempt(&*backend, &key, LONG).await.expect("acquire answers") {
                    seen.push((task % 4, held.fence));
                    tokio::task::yield_now().await;
                    give_back(&*backend, &held).await;
                }
                tokio::task::yield_now().await;
            }
            seen
        });
    }
    let all: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();

    assert!(all.len() >= 4);
    let distinct: HashSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "a fence was given twice");
}

/// A renewal keeps its fence and moves no counter.
pub async fn extend_and_release_move_no_counter<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let first = take(&backend, &key, LONG).await;
    for _ in 0..3 {
        assert!(extend(&backend, &first, LONG).await);
    }
    give_back(&backend, &first).await;
    assert!(!backend.release(&first.lock_id).await.expect("release answers").is_released());

    assert_eq!(take(&backend, &key, LONG).await.fence.get(), first.fence.get() + 1);
}

/// The number is the same wherever it is seen, and its text has 15 digits.
pub async fn a_fence_is_the_same_everywhere_it_is_seen<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    let by_key = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("held");
    let by_id = backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").expect("held");

    let text = held.fence.to_string();

    assert_eq!((by_key.fence, by_id.fence), (held.fence, held.fence));
    assert_eq!(text, "000000000000001");
    assert_eq!(text.parse::<Fence>().expect("a fence's text is a fence"), held.fence);
    let json = serde_json::to_value(&by_key).expect("an info is JSON");
    assert_eq!(json["fence"], text.as_str());
    assert_eq!(serde_json::from_value::<Fence>(json["fence"].clone()).expect("a fence's JSON is a fence"), held.fence);
}

/// Storages and logs sort text: 9 comes before 10.
pub async fn the_text_order_of_fences_is_their_order<H: Harness>(h: &H) {
    let backend = h.backend().await;
    for edge in [9, 99, 999_999_999, 9_007_199_254_740, 89_999_999_999_998] {
        let key = key(&format!("edge {edge}"));
        if let Err(reason) = h.set_counter(&key, edge - 1).await {
            return skip("the_text_order_of_fences_is_their_order", &reason);
        }
        let before = take(&backend, &key, LONG).await;
        give_back(&backend, &before).await;
        let behind = take(&backend, &key, LONG).await;
        assert_eq!((before.fence.get(), behind.fence.get()), (edge, edge + 1), "digits were lost");
        assert!(before.fence.to_string() < behind.fence.to_string());
    }
}

/// The last fence is given; after it acquire fails and leaves nothing behind.
pub async fn a_counter_at_its_limit_refuses_and_leaves_no_lock<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("full"));
    if let Err(reason) = h.set_counter(&key, Fence::MAX.get() - 1).await {
        return skip("a_counter_at_its_limit_refuses_and_leaves_no_lock", &reason);
    }
    let last = take(&backend, &key, LONG).await;
    assert_eq!(last.fence, Fence::MAX);
    give_back(&backend, &last).await;

    assert_refused_without_trace(h, &backend, "full", Fence::MAX.get()).await;
}

/// A counter that a bad restore left beyond every limit.
pub async fn a_counter_past_its_limit_refuses_and_leaves_no_lock<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let beyond = [Fence::MAX.get() + 1, 999_999_999_999_999, 1_000_000_000_000_000, 1 << 53, i64::MAX.unsigned_abs()];
    for value in beyond {
        let name = format!("beyond {value}");
        if let Err(reason) = h.set_counter(&key(&name), value).await {
            return skip("a_counter_past_its_limit_refuses_and_leaves_no_lock", &reason);
        }
        assert_refused_without_trace(h, &backend, &name, value).await;
    }
}

async fn assert_refused_without_trace<H: Harness>(h: &H, backend: &H::Backend, name: &str, counter: u64) {
    let key = key(name);
    let lock_id = backend.new_lock_id(&key);
    for _ in 0..2 {
        let answer = crate::support::attempt_as(backend, &key, &lock_id, LONG).await;
        let error = answer.expect_err("a fence past its limit is refused");
        assert_eq!(error.code(), ErrorCode::Internal, "{error:?}");
        assert!(!error.is_transient());
    }
    assert!(!is_locked(backend, &key).await, "a refused acquire left a lock");
    assert!(
        backend.lookup(Lookup::LockId(&lock_id)).await.expect("lookup answers").is_none(),
        "a refused acquire left an owner"
    );
    if let Ok(stored) = h.counter(&key).await {
        assert_eq!(stored, Some(counter), "a refused acquire moved the counter");
    }
}

/// Near the limit there is a warning, and a lock.
pub async fn a_counter_above_the_warning_still_grants<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("near"));
    if let Err(reason) = h.set_counter(&key, Fence::WARN.get()).await {
        return skip("a_counter_above_the_warning_still_grants", &reason);
    }

    let held = take(&backend, &key, LONG).await;

    assert_eq!(held.fence.get(), Fence::WARN.get() + 1);
    assert!(held.fence.is_near_limit());
    give_back(&backend, &held).await;
}

/// What is stored is what was given: a new client reads on from there.
pub async fn the_stored_counter_is_the_last_fence<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("stored"));
    for _ in 0..3 {
        let held = take(&backend, &key, LONG).await;
        match h.counter(&key).await {
            Ok(stored) => assert_eq!(stored, Some(held.fence.get())),
            Err(reason) => return skip("the_stored_counter_is_the_last_fence", &reason),
        }
        give_back(&backend, &held).await;
        assert_eq!(h.counter(&key).await.expect("read before"), Some(held.fence.get()), "release moved the counter");
    }
}

/// Looking at, releasing or extending what is not there counts nothing.
pub async fn only_acquire_makes_a_counter<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("untouched"));
    let stranger = backend.new_lock_id(&key);
    assert!(!is_locked(&backend, &key).await);
    backend.lookup(Lookup::Key(&key)).await.expect("lookup answers");
    backend.lookup(Lookup::LockId(&stranger)).await.expect("lookup answers");
    backend.release(&stranger).await.expect("release answers");
    let _ = backend.extend(&stranger, LONG).await.expect("extend answers");

    match h.counter(&key).await {
        Ok(stored) => assert_eq!(stored.unwrap_or(0), 0),
        Err(reason) => return skip("only_acquire_makes_a_counter", &reason),
    }
    assert_eq!(take(&backend, &key, LONG).await.fence, Fence::FIRST);
}
