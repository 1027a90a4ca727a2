//! What remains when a caller walks away in the middle of a call?
//!
//! Each call is polled k times and then dropped, for every k until it completes by itself. Afterwards the client still
//! works, answers belong to their own questions, and a lock nobody waited for is gone by its lease.

use std::pin::pin;
use std::task::Poll;

use syncguard_core::{AcquireRequest, Fence, LockBackend, LockId, Lookup};

use crate::Harness;
use crate::support::{BackendClock, LONG, after, attempt_as, give_back, is_locked, key, take, ttl};

// No call of a sane driver needs more polls than this; a call that never completes must not loop for ever.
const MOST_POLLS: u32 = 200;

/// Polls at most `polls` times, each after a wake-up. Whether the call completed.
pub(super) async fn dropped_after<T>(polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let mut done = 0;
    std::future::poll_fn(move |context| {
        if done == polls {
            return Poll::Ready(None);
        }
        done += 1;
        match call.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if done == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A full cycle on a key of its own, every answer checked: nothing is out of step.
async fn assert_in_step<B: LockBackend>(backend: &B, name: &str) {
    let key = key(name);
    let held = take(backend, &key, LONG).await;
    let info = backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").expect("held");
    assert_eq!((info.reveal().key, info.fence), (&key, held.fence), "an answer belongs to another question");
    give_back(backend, &held).await;
}

/// Acquire, dropped at every poll: within the lease and the tolerance the key is free again.
pub async fn dropping_acquire_at_every_poll_leaves_no_lock_beyond_its_lease<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    let mut polls = 0;
    loop {
        polls += 1;
        assert!(polls < MOST_POLLS, "acquire never completes");
        let key = key(&format!("dropped {polls}"));
        let lock_id = backend.new_lock_id(&key);
        let request = AcquireRequest::new(&key, &lock_id, ttl(200));
        if dropped_after(polls, backend.acquire(request)).await.is_some() {
            break;
        }
        assert_in_step(&backend, &format!("beside {polls}")).await;
    }
    // The server may still be acting on the last one; its lease starts when it does.
    let last = clock.now(&backend).await;
    clock.wait_until(h, &backend, after(last, 200 + 1_000 + 400)).await;
    for polls in 1..=polls {
        assert!(!is_locked(&backend, &key(&format!("dropped {polls}"))).await, "orphan after {polls} polls");
    }
}

/// Who walked away from acquire can come back with the same id: it owns up or acquires, once.
pub async fn an_acquire_dropped_at_any_poll_can_be_asked_again<H: Harness>(h: &H) {
    let backend = h.backend().await;
    for polls in 1..MOST_POLLS {
        let key = key(&format!("again {polls}"));
        let lock_id = backend.new_lock_id(&key);
        let request = AcquireRequest::new(&key, &lock_id, LONG);
        let completed = dropped_after(polls, backend.acquire(request)).await.is_some();

        let held = attempt_as(&backend, &key, &lock_id, LONG).await.expect("acquire answers");
        let held = held.expect("an id is not contended by itself");

        assert_eq!(held.fence, Fence::FIRST, "one acquisition took two fences");
        give_back(&backend, &held).await;
        if completed {
            return;
        }
    }
    panic!("acquire never completes");
}

/// Release, dropped at every poll: asking again ends it, and nobody else is harmed.
pub async fn a_release_dropped_at_any_poll_can_be_asked_again<H: Harness>(h: &H) {
    let backend = h.backend().await;
    for polls in 1..MOST_POLLS {
        let key = key(&format!("release {polls}"));
        let held = take(&backend, &key, LONG).await;
        let completed = dropped_after(polls, backend.release(&held.lock_id)).await.is_some();

        // Released now or already.
        backend.release(&held.lock_id).await.expect("release answers");

        assert!(!is_locked(&backend, &key).await);
        assert_in_step(&backend, &format!("beside {polls}")).await;
        if completed {
            return;
        }
    }
    panic!("release never completes");
}

/// Extend, dropped at every poll: the lock is still its owner's, with the old lease or the new.
pub async fn an_extend_dropped_at_any_poll_leaves_the_lock_with_its_owner<H: Harness>(h: &H) {
    let backend = h.backend().await;
    for polls in 1..MOST_POLLS {
        let key = key(&format!("extend {polls}"));
        let held = take(&backend, &key, LONG).await;
        let completed = dropped_after(polls, backend.extend(&held.lock_id, ttl(60_000))).await.is_some();

        let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("still held");

        assert_eq!((info.reveal().lock_id, info.fence), (&held.lock_id, held.fence));
        give_back(&backend, &held).await;
        if completed {
            return;
        }
    }
    panic!("extend never completes");
}

/// Looks, dropped at every poll: the next answer belongs to the next question.
pub async fn looks_dropped_at_any_poll_leave_the_client_in_step<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let taken = key("taken");
    let held = take(&backend, &taken, LONG).await;
    for polls in 1..MOST_POLLS {
        let seen = dropped_after(polls, backend.is_locked(&taken)).await.is_some();
        assert!(!is_locked(&backend, &key("free")).await, "an answer belongs to another question");
        let found = dropped_after(polls, backend.lookup(Lookup::Key(&taken))).await.is_some();
        assert!(backend.lookup(Lookup::Key(&key("free"))).await.expect("lookup answers").is_none());
        if seen && found {
            give_back(&backend, &held).await;
            return;
        }
    }
    panic!("looking never completes");
}

/// Many calls cut off at once do not use up connections, permits or threads.
pub async fn a_crowd_of_dropped_calls_leaves_the_client_usable<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let ids: Vec<LockId> = (0..40).map(|number| backend.new_lock_id(&key(&format!("crowd {number}")))).collect();
    for (number, lock_id) in ids.iter().enumerate() {
        let key = key(&format!("crowd {number}"));
        let request = AcquireRequest::new(&key, lock_id, ttl(100));
        dropped_after(1, backend.acquire(request)).await;
    }

    assert_in_step(&backend, "afterwards").await;
}
