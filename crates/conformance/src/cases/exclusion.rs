//! Is there ever more than one holder?

use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use syncguard_core::{Key, Ttl};

use crate::Harness;
use crate::support::{Held, LONG, attempt, give_back, key, ms, take, ttl};

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
