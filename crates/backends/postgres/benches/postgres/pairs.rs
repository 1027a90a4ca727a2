//! Acquire and release, by 1, 8 and 32 tasks on keys of their own.

use std::time::Instant;

use syncguard_core::{AcquireRequest, Key, LockBackend, LockId, Ttl};
use syncguard_postgres::{PostgresBackend, PostgresBuilder};
use syncguard_testkit::PostgresServer;

use crate::{Choice, median, naive, pgbench};

pub(crate) async fn report(server: &PostgresServer, choice: Choice) {
    println!(
        "pairs per second (acquire + release), {} rounds of {} s, contenders in turn",
        choice.rounds, choice.seconds
    );
    println!("tasks      ours   pgbench     naive   ours/pgbench          ours/naive");
    for tasks in [1, 8, 32] {
        let backend = PostgresBuilder::from_url(&server.url())
            .unwrap()
            .pool_size(tasks.max(2) * 4 / 3 + 1)
            .connect()
            .await
            .unwrap();
        let (mut ours, mut bench, mut slow) = (Vec::new(), Vec::new(), Vec::new());
        // The first round warms up.
        for round in 0..=choice.rounds {
            let rates = (
                run(&backend, tasks, choice).await,
                pgbench::pairs(server, tasks, choice, pgbench::Notify::IfWaited),
                naive::run(server, tasks, choice).await,
            );
            if round > 0 {
                ours.push(rates.0);
                bench.push(rates.1);
                slow.push(rates.2);
            }
        }
        let mut to_bench: Vec<f64> = ours.iter().zip(&bench).map(|(ours, other)| ours / other).collect();
        let mut to_slow: Vec<f64> = ours.iter().zip(&slow).map(|(ours, other)| ours / other).collect();
        let (bench_ratio, low, high) = median(&mut to_bench);
        let (slow_ratio, slow_low, slow_high) = median(&mut to_slow);
        println!(
            "{tasks:5} {:9.0} {:9.0} {:9.0}   {bench_ratio:.2} ({low:.2}..{high:.2})     {slow_ratio:.2} ({slow_low:.2}..{slow_high:.2})",
            median(&mut ours).0,
            median(&mut bench).0,
            median(&mut slow).0,
        );
    }
}

async fn run(backend: &PostgresBackend, tasks: usize, choice: Choice) -> f64 {
    let (start, mut running) = (Instant::now(), tokio::task::JoinSet::new());
    for task in 0..tasks {
        let backend = backend.clone();
        running.spawn(async move {
            let key = Key::new(format!("ours-{task}")).unwrap();
            let mut pairs = 0_u64;
            while start.elapsed() < choice.time() {
                pair(&backend, &key).await;
                pairs += 1;
            }
            pairs
        });
    }
    let mut pairs = 0;
    while let Some(done) = running.join_next().await {
        pairs += done.unwrap();
    }
    pairs as f64 / start.elapsed().as_secs_f64()
}

pub(crate) async fn pair(backend: &PostgresBackend, key: &Key) {
    let lock_id = LockId::random();
    let request = AcquireRequest::new(key, &lock_id, Ttl::DEFAULT);
    let _ = backend.acquire(request).await.unwrap();
    assert!(backend.release(&lock_id).await.unwrap().is_released());
}
