//! Does everybody who waits get a turn, whoever else gives up, hangs or asks again at once?

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::fresh_prefix;
use syncguard_core::{Guard, LockError, Locker};
use syncguard_redis::RedisBuilder;
use syncguard_testkit::{redis_cluster_url, redis_url};
use tokio::time::sleep;

/// Clients of one prefix, each as a process of its own has it.
struct Crowd(RedisBuilder);

impl Crowd {
    fn at(url: &str) -> Self {
        Self(RedisBuilder::from_url(url).unwrap().prefix(fresh_prefix()))
    }

    async fn process(&self) -> Locker {
        Locker::new(self.0.clone().connect().await.unwrap())
    }
}

async fn acquire(locker: &Locker) -> Result<Guard, LockError> {
    locker.lock("k").ttl(Duration::from_secs(600)).timeout(Duration::from_secs(60)).acquire().await
}

/// How many turns of others each turn was waited for, while `tasks` asked again and again, each after its release. Turns
/// and not time: a busy machine may stand still for a while.
async fn greedy(tasks: Vec<Locker>, time: Duration) -> Vec<Vec<usize>> {
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = tasks
        .into_iter()
        .map(|locker| {
            let (stop, turns) = (stop.clone(), turns.clone());
            tokio::spawn(async move {
                let mut waits = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let asked = turns.load(Ordering::Relaxed);
                    let guard = acquire(&locker).await.unwrap();
                    waits.push(turns.fetch_add(1, Ordering::Relaxed) - asked);
                    guard.release().await.unwrap();
                }
                waits
            })
        })
        .collect();
    sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    futures_util::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn of_many_who_ask_again_at_once_nobody_waits_for_long() {
    let crowd = Crowd::at(&redis_url());
    let mut processes = Vec::new();
    for _ in 0..60 {
        processes.push(crowd.process().await);
    }

    let waits = greedy(processes, Duration::from_secs(5)).await;

    let longest = waits.iter().flatten().max().unwrap();
    let turns = || waits.iter().map(Vec::len);
    println!("turns {:?}..{:?}, the longest wait was {longest} turns", turns().min(), turns().max());
    assert!(*longest <= 10 * 60, "{longest} turns: more than ten times as many as there are processes");
}

#[tokio::test]
async fn one_task_gets_its_share_beside_a_process_of_many() {
    let crowd = Crowd::at(&redis_url());
    let (many, single) = (crowd.process().await, crowd.process().await);
    let tasks = std::iter::once(single).chain(std::iter::repeat_n(many, 31)).collect();

    let waits = greedy(tasks, Duration::from_secs(2)).await;

    let all: usize = waits.iter().map(Vec::len).sum();
    println!("the one had {} of {all} turns, its longest wait {:?} turns", waits[0].len(), waits[0].iter().max());
    assert!(waits[0].len() > all / 10, "{} of {all} turns", waits[0].len());
}

/// Ten processes that come, hold the lock for 20 ms each, and go. Answers how many of them gave up after a second.
async fn wave(options: RedisBuilder) -> usize {
    let process = async || {
        let locker = Locker::new(options.clone().connect().await.unwrap());
        let Ok(guard) = locker.lock("k").timeout(Duration::from_secs(1)).acquire().await else { return 1 };
        sleep(Duration::from_millis(20)).await;
        guard.release().await.unwrap();
        0
    };
    futures_util::future::join_all((0..10).map(|_| process())).await.into_iter().sum()
}

#[tokio::test]
async fn who_gave_up_during_a_stall_does_not_make_others_give_up_after_it() {
    for url in [redis_url(), redis_cluster_url()] {
        let crowd = Crowd::at(&url);
        let mut stall = Some(acquire(&crowd.process().await).await.unwrap());
        let (mut waves, mut gave_up) = (VecDeque::new(), Vec::new());
        for number in 0..40 {
            waves.push_back(tokio::spawn(wave(crowd.0.clone())));
            sleep(Duration::from_millis(600)).await;
            if number == 4 {
                // Everybody gave up who came in its first two seconds.
                stall.take().unwrap().release().await.unwrap();
            }
            if waves.len() > 2 {
                gave_up.push(waves.pop_front().unwrap().await.unwrap());
            }
            if number > 4 && gave_up.ends_with(&[0, 0, 0]) {
                break;
            }
        }
        println!("{gave_up:?} gave up of ten each");
        assert!(gave_up.iter().sum::<usize>() >= 20, "the stall was not felt");
        assert!(gave_up.ends_with(&[0, 0, 0]), "somebody still gives up 20 s after the stall: {gave_up:?}");
    }
}
