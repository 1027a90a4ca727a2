//! Does a lock get slower when many keys have been locked before?

use std::time::Instant;

use syncguard_core::Key;
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::PostgresServer;

use crate::{Choice, pairs};

pub(crate) async fn report(server: &PostgresServer, choice: Choice) {
    println!("\nlatency of a pair by the number of counters");
    let builder = || PostgresBackend::builder().table("many_locks").fence_table("many_counters");
    let backend = builder().connect(&server.url()).await.unwrap();
    let before = measure(&backend, "before").await;
    println!("{:>10} counters   p50 {:.3} ms   p99 {:.3} ms", 0, before.0, before.1);
    let rows = choice.counters;
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let fill = format!(
        "INSERT INTO many_counters (fence_key, fence) SELECT 'fence:job:' || n, 1 FROM generate_series(1, {rows}) AS n"
    );
    for sql in [fill.as_str(), "VACUUM ANALYZE many_counters", "CHECKPOINT"] {
        client.batch_execute(sql).await.unwrap();
    }
    let after = measure(&backend, "after").await;
    println!(
        "{rows:>10} counters   p50 {:.3} ms   p99 {:.3} ms   p50 ratio {:.2}",
        after.0,
        after.1,
        after.0 / before.0
    );
}

/// p50 and p99 in milliseconds, over keys that are new each time.
async fn measure(backend: &PostgresBackend, name: &str) -> (f64, f64) {
    let mut times = Vec::new();
    for number in 0..2_000 {
        let key = Key::new(format!("{name}:{number}")).unwrap();
        let start = Instant::now();
        pairs::pair(backend, &key).await;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
