//! Is there ever more than one holder?

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use syncguard_core::time::{TOLERANCE_MS, free_in};
use syncguard_core::{Clock, Contention, Fence, Key, LockBackend, Lookup, Result, SystemClock, Timestamp, Ttl};

use crate::Harness;
use crate::history::{History, Hold, Witness};
use crate::support::{
    BackendClock, Held, LONG, after, attempt, attempt_as, extend, give_back, is_locked, key, ms, release, take, ttl,
};

/// All racers start in one moment; the answers of those that won.
async fn race<H: Harness>(h: &H, key: &Key, ttl: Ttl) -> Vec<Held> {
    let racers = usize::try_from(h.budget().racers).expect("a number of tasks");
    let barrier = Arc::new(Barrier::new(racers));
    // Two clients, so that a lock inside one client cannot stand in for the storage's.
    let clients = [Arc::new(h.backend().await), Arc::new(h.backend().await)];
    let mut tasks = JoinSet::new();
    for number in 0..racers {
        let (client, barrier, key) = (clients[number % 2].clone(), barrier.clone(), key.clone());
        tasks.spawn(async move {
            barrier.wait().await;
            attempt(&*client, &key, ttl).await
        });
    }
    let mut winners = Vec::new();
    for answer in tasks.join_all().await {
        winners.extend(answer.expect("every racer gets an answer").ok());
    }
    winners
}

/// 64 go for a key that was never locked.
pub async fn one_of_many_acquirers_of_an_absent_key_wins<H: Harness>(h: &H) {
    let winners = race(h, &key("absent"), LONG).await;
    assert_eq!(winners.len(), 1, "{winners:?}");
}

/// 64 go for a key that was just released.
pub async fn one_of_many_acquirers_of_a_released_key_wins<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("released"));
    let before = take(&backend, &key, LONG).await;
    give_back(&backend, &before).await;

    let winners = race(h, &key, LONG).await;

    assert_eq!(winners.len(), 1, "{winners:?}");
    assert!(winners[0].fence > before.fence);
}

/// 64 go for a key whose holder died.
pub async fn one_of_many_acquirers_of_an_expired_key_wins<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("expired"));
    let before = take(&backend, &key, ttl(100)).await;
    h.pass(ms(1_600)).await;

    let winners = race(h, &key, LONG).await;

    assert_eq!(winners.len(), 1, "{winners:?}");
    assert!(winners[0].fence > before.fence);
}

/// Locks that have nothing to do with one another do not stand in each other's way.
pub async fn acquirers_of_different_keys_all_win<H: Harness>(h: &H) {
    let backend = Arc::new(h.backend().await);
    let mut tasks = JoinSet::new();
    for number in 0..h.budget().racers {
        let backend = backend.clone();
        tasks.spawn(async move { take(&*backend, &key(&format!("key {number}")), LONG).await });
    }
    let winners = tasks.join_all().await;
    assert!(winners.iter().all(|held| held.fence == Fence::FIRST));
}

/// One owner that asks many times at once holds one lock.
pub async fn many_requests_of_one_id_are_one_acquisition<H: Harness>(h: &H) {
    let (backend, key) = (Arc::new(h.backend().await), key("k"));
    let lock_id = backend.new_lock_id(&key);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (backend, key, lock_id) = (backend.clone(), key.clone(), lock_id.clone());
        tasks.spawn(async move { attempt_as(&*backend, &key, &lock_id, LONG).await });
    }
    for answer in tasks.join_all().await {
        let held = answer.expect("acquire answers").expect("an owner is not contended by itself");
        assert_eq!(held.fence, Fence::FIRST);
    }
    assert!(backend.release(&lock_id).await.expect("release answers").is_released());
    assert!(!is_locked(&*backend, &key).await);
}

/// Who asks again after its own lease ended, while another takes over, is told of one lock: its new one or the other's.
pub async fn a_dead_id_and_another_that_ask_at_once_are_never_both_granted<H: Harness>(h: &H) {
    let (owner, rival) = (Arc::new(h.backend().await), Arc::new(h.backend().await));
    at_dead_locks(h, &owner, async |key, old, later| {
        let again = async {
            later.await;
            attempt_as(&*owner, &key, &old.lock_id, LONG).await
        };
        let (again, taken) = tokio::join!(again, attempt(&*rival, &key, LONG));
        match (again.expect("acquire answers"), taken.expect("acquire answers")) {
            (Ok(one), Ok(other)) => panic!("both were granted: {one:?} and {other:?}"),
            (Ok(held), _) | (_, Ok(held)) => {
                assert!(held.fence > old.fence, "a new acquisition with an old fence");
                give_back(&*owner, &held).await;
            }
            (Err(_), Err(_)) => panic!("a dead lock was left to nobody"),
        }
    })
    .await;
}

/// One id that asks twice at once for another's dead lock gets it twice, the same.
pub async fn one_id_twice_at_once_over_a_dead_lock_is_one_acquisition<H: Harness>(h: &H) {
    let (here, there) = (Arc::new(h.backend().await), Arc::new(h.backend().await));
    at_dead_locks(h, &here, async |key, _, later| {
        let id = here.new_lock_id(&key);
        let again = async {
            later.await;
            attempt_as(&*there, &key, &id, LONG).await
        };
        let (one, other) = tokio::join!(attempt_as(&*here, &key, &id, LONG), again);
        let held = |answer: Result<Result<Held, Contention>>| {
            let held = answer.expect("acquire answers").expect("an owner is not contended by itself");
            (held.fence, held.expires_at)
        };
        assert_eq!(held(one), held(other));
        assert!(here.release(&id).await.expect("release answers").is_released());
    })
    .await;
}

/// A story for each of many locks whose leases ended, with a moment that is a little longer each time: a flaw shows only to
/// a request that comes just before the other one's answer.
async fn at_dead_locks<H: Harness>(h: &H, backend: &H::Backend, story: impl AsyncFn(Key, Held, Moment)) {
    let clock = BackendClock::start(backend).await;
    let mut dead = Vec::new();
    for number in 0..h.budget().boundary_trials.max(100) {
        let key = key(&format!("dead {number}"));
        dead.push((take(backend, &key, ttl(20)).await, key));
    }
    let last = dead.last().map(|(held, _)| held.expires_at).expect("there are trials");
    clock.wait_until(h, backend, after(last, 1_100)).await;
    let mut moment = Duration::ZERO;
    for (held, key) in dead {
        story(key, held, Box::pin(pass_exactly(moment))).await;
        moment = if moment < ms(1) { moment + Duration::from_micros(11) } else { Duration::ZERO };
    }
}

type Moment = Pin<Box<dyn Future<Output = ()> + Send>>;

/// tokio's timer counts whole milliseconds.
async fn pass_exactly(moment: Duration) {
    let started = SystemClock.boot();
    while SystemClock.boot().since(started) < moment {
        tokio::task::yield_now().await;
    }
}

/// A lease is granted for its whole length from after the request, however crowded it is.
pub async fn a_lease_granted_in_a_crowd_is_whole<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let clock = BackendClock::start(&backend).await;
    let key = key("crowd");
    for _ in 0..3 {
        let before = clock.now(&backend).await;
        let winners = race(h, &key, ttl(10_000)).await;
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert!(winners[0].expires_at >= after(before, 10_000), "the lease was partly over when it was granted");
        give_back(&backend, &winners[0]).await;
    }
}

/// Release against acquire: the lock changes hands or it does not, and fences tell which.
pub async fn a_release_and_an_acquire_at_once_leave_at_most_one_holder<H: Harness>(h: &H) {
    let (backend, other) = (Arc::new(h.backend().await), Arc::new(h.backend().await));
    for round in 0..50 {
        let key = key(&format!("handover {round}"));
        let old = take(&*backend, &key, LONG).await;
        let (released, next) = tokio::join!(release(&*backend, &old), attempt(&*other, &key, LONG));
        assert!(released);
        let seen = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers");
        match next.expect("acquire answers") {
            Ok(new) => assert_eq!(seen.expect("the new owner holds it").reveal().lock_id, &new.lock_id),
            Err(_) => assert!(seen.is_none(), "a released lock is still there"),
        }
    }
}

/// Release against extend: whatever the order, the lock is gone afterwards.
pub async fn an_extend_never_brings_back_a_released_lock<H: Harness>(h: &H) {
    let (backend, other) = (Arc::new(h.backend().await), Arc::new(h.backend().await));
    for round in 0..50 {
        let key = key(&format!("renewal on the wire {round}"));
        let held = take(&*backend, &key, LONG).await;
        let (released, _) = tokio::join!(release(&*backend, &held), extend(&*other, &held, LONG));
        assert!(released);
        assert!(!is_locked(&*backend, &key).await, "an extend brought a released lock back");
    }
}

/// Many workers on few keys, each hold seen by a witness at the door and checked again in the history.
pub async fn no_two_holders_at_once_over_many_contended_cycles<H: Harness>(h: &H) {
    const WORKERS: usize = 8;
    const KEYS: usize = 2;
    let doors: Arc<[Witness; KEYS]> = Arc::default();
    let history = History::default();
    let left = Arc::new(AtomicU32::new(h.budget().contended_cycles));
    let mut tasks = JoinSet::new();
    for number in 0..WORKERS {
        let worker = Worker {
            backend: h.backend().await,
            key: key(&format!("door {}", number % KEYS)),
            door: number % KEYS,
            doors: doors.clone(),
            history: history.clone(),
            left: left.clone(),
        };
        tasks.spawn(worker.work());
    }
    tasks.join_all().await;

    assert!(history.len() >= usize::try_from(h.budget().contended_cycles).expect("fits"), "too few cycles");
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
    println!("{} contended cycles, 0 overlaps", history.len());
}

struct Worker<B> {
    backend: B,
    key: Key,
    door: usize,
    doors: Arc<[Witness; 2]>,
    history: History,
    left: Arc<AtomicU32>,
}

impl<B: LockBackend> Worker<B> {
    async fn work(self) {
        let mut misses = 0;
        while self.left.load(Ordering::SeqCst) > 0 {
            match attempt(&self.backend, &self.key, LONG).await.expect("acquire answers") {
                Ok(held) => {
                    misses = 0;
                    self.hold(held).await;
                }
                // A short, growing pause: long enough for the holder to get through, short enough to stay contended.
                Err(_) => {
                    misses = (misses + 1).min(8);
                    tokio::time::sleep(std::time::Duration::from_micros(200) * misses).await;
                }
            }
        }
    }

    async fn hold(&self, held: Held) {
        let from = self.history.now();
        self.doors[self.door].enter(held.fence);
        tokio::task::yield_now().await;
        self.doors[self.door].leave();
        let until = self.history.now();
        self.history.add(Hold { key: self.key.clone(), fence: held.fence, from, until });
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1))).ok();
        give_back(&self.backend, &held).await;
    }
}

/// The owner renews and another acquires in the moment in which the tolerance ends: one of them at most.
pub async fn an_extend_and_an_acquire_at_the_end_never_both_succeed<H: Harness>(h: &H) {
    const AT_ONCE: u32 = 100;
    let (owner, rival) = (Arc::new(h.backend().await), Arc::new(h.backend().await));
    let clock = BackendClock::start(&*owner).await;
    let (mut extended, mut taken, mut trial) = (0, 0, 0);
    while trial < h.budget().boundary_trials {
        let mut tasks = JoinSet::new();
        for _ in 0..AT_ONCE.min(h.budget().boundary_trials - trial) {
            let boundary = Boundary { owner: owner.clone(), rival: rival.clone(), trial };
            let key = key(&format!("boundary {trial}"));
            let held = take(&*owner, &key, ttl(60)).await;
            let now = clock.now(&*owner).await;
            tasks.spawn(boundary.fire(key, held, now));
            trial += 1;
        }
        for (extend_won, acquire_won) in tasks.join_all().await {
            extended += u32::from(extend_won);
            taken += u32::from(acquire_won);
        }
    }
    println!("{trial} trials: {extended} extended, {taken} taken over, 0 both");
    assert!(extended > 0 && taken > 0, "the aim was off: {extended} extended, {taken} taken over");
}

struct Boundary<B> {
    owner: Arc<B>,
    rival: Arc<B>,
    trial: u32,
}

impl<B: LockBackend> Boundary<B> {
    /// Fires both requests around the end; whether extend and whether acquire succeeded.
    async fn fire(self, key: Key, held: Held, now: Timestamp) -> (bool, bool) {
        let end = free_in(held.expires_at, now);
        // Spread over the last 60 ms before the end and the first 20 ms after it, the two in differing order.
        let spread = |step: u32| end.saturating_sub(ms(60)) + ms(u64::from(self.trial * step % 81));
        let renew = async {
            tokio::time::sleep(spread(7)).await;
            extend(&*self.owner, &held, LONG).await
        };
        let take_over = async {
            tokio::time::sleep(spread(11)).await;
            let mut answer = attempt(&*self.rival, &key, LONG).await.expect("acquire answers");
            // The rival stays for the end if it came before it.
            for _ in 0..40 {
                match answer {
                    Err(contention) if contention.free_in.is_none_or(|wait| wait < ms(TOLERANCE_MS.unsigned_abs())) => {
                        tokio::time::sleep(ms(2)).await;
                        answer = attempt(&*self.rival, &key, LONG).await.expect("acquire answers");
                    }
                    _ => break,
                }
            }
            answer.is_ok()
        };
        let (extended, taken) = tokio::join!(renew, take_over);
        assert!(!(extended && taken), "trial {}: extended and taken over", self.trial);
        (extended, taken)
    }
}
