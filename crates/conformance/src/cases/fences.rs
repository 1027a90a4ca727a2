//! Do fences only rise?

use syncguard_core::Fence;

use crate::Harness;
use crate::support::{LONG, assert_contended, give_back, key, ms, take, ttl};

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
