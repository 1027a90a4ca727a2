//! Acquire and release, by 1, 8 and 32 tasks on keys of their own.

use std::time::Instant;

use syncguard_core::{AcquireRequest, Key, LockBackend, LockId, Ttl};
use syncguard_postgres::{PostgresBackend, PostgresBuilder};
use syncguard_testkit::PostgresServer;
use syncguard_testkit::bench::{Figure, Report};

use crate::{Choice, naive, pgbench};

/// Who takes turns with us.
const OTHERS: [&str; 4] =
    ["pgbench, the same statements", "pgbench, 4 + 4 messages", "pgbench, bare writes", "8 + 5 round trips"];

pub(crate) async fn report(server: &PostgresServer, choice: Choice, report: &mut Report) {
    println!(
        "pairs per second (acquire + release), {} rounds of {} s, contenders in turn",
        choice.rounds, choice.seconds
    );
    let others = OTHERS.map(|name| format!("{name:>28}")).join("   ");
    println!("tasks      ours   {others}");
    for tasks in [1, 8, 32] {
        // With the connections of a default pool, as users have it. Figures of before 18 November 2026 had a third more
        // connections than tasks, and do not compare.
        let backend = PostgresBuilder::from_url(&server.url()).unwrap().connect().await.unwrap();
        let bench = |way| pgbench::pairs(server, tasks, choice, way, pgbench::Notify::IfWaited);
        let (mut ours, mut theirs) = (Vec::new(), [const { Vec::new() }; 4]);
        // The first round warms up.
        for round in 0..=choice.rounds {
            let own = run(&backend, tasks, choice).await;
            let others = [
                bench(pgbench::Way::OneStatement),
                bench(pgbench::Way::Transaction),
                bench(pgbench::Way::BareWrites),
                naive::run(server, tasks, choice).await,
            ];
            if round > 0 {
                ours.push(own);
                theirs.iter_mut().zip(others).for_each(|(theirs, other)| theirs.push(other));
            }
        }
        tell(tasks, choice, (&ours, &theirs), report);
    }
}

fn tell(tasks: usize, choice: Choice, (ours, theirs): (&[f64], &[Vec<f64>; 4]), report: &mut Report) {
    let figure = |name: &str, rates: &[f64]| {
        Figure::of("throughput", "pairs/s", name, rates).at("tasks", tasks).setting(choice.setting)
    };
    let (mut ours, mut ratios) = (figure("syncguard", ours), Vec::new());
    for (name, rates) in OTHERS.iter().zip(theirs) {
        ours = ours.beside(*name, rates);
        ratios.push(format!("{:>28}", ours.ratio().to_string()));
        report.note(figure(name, rates));
    }
    println!("{tasks:5} {:9.0}   {}", ours.median(), ratios.join("   "));
    report.note(ours);
}

pub(crate) async fn run(backend: &PostgresBackend, tasks: usize, choice: Choice) -> f64 {
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
