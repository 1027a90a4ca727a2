//! Does a lock get slower when many keys have been locked before?
//!
//! Two pairs of tables, one almost empty and one full, take turns key by key, so that whatever else the machine does
//! hits both.

use std::time::Instant;

use syncguard_core::{Key, LockId};
use syncguard_postgres::{PostgresBackend, PostgresBuilder};
use syncguard_testkit::PostgresServer;
use syncguard_testkit::bench::{Figure, Report, percentile};

use crate::{Choice, pairs};

pub(crate) async fn report(server: &PostgresServer, counters: u64, choice: Choice, report: &mut Report) {
    let few = PostgresBuilder::from_url(&server.url())
        .unwrap()
        .table("few_locks")
        .fence_table("few_counters")
        .connect()
        .await
        .unwrap();
    let many = PostgresBuilder::from_url(&server.url())
        .unwrap()
        .table("many_locks")
        .fence_table("many_counters")
        .connect()
        .await
        .unwrap();
    fill(server, counters).await;
    let (mut few_times, mut many_times) = (Vec::new(), Vec::new());
    for round in 0..3_000 {
        // Anywhere in the index, not at its end.
        let key = Key::new(format!("job:{}", LockId::random().hash())).unwrap();
        let (first, second) = (timed(&few, &key).await, timed(&many, &key).await);
        // The first ones warm up.
        if round >= 500 {
            few_times.push(first);
            many_times.push(second);
        }
    }
    println!("\nlatency of a pair by the number of counters, in turn");
    let mut line = |counters: u64, times: &mut [f64]| {
        let [half, slow] = [50.0, 99.0].map(|percent| percentile(times, percent).unwrap());
        println!("{counters:>10} counters   p50 {half:.3} ms   p99 {slow:.3} ms");
        for (measure, time) in [("counters p50", half), ("counters p99", slow)] {
            let figure = Figure::of(measure, "ms", "syncguard", &[time]).setting(choice.setting);
            report.note(figure.at("counters", usize::try_from(counters).unwrap()));
        }
        half
    };
    let (before, after) = (line(0, &mut few_times), line(counters, &mut many_times));
    println!("p50 with {counters} counters is {:.2} of p50 with almost none", after / before);
}

async fn fill(server: &PostgresServer, rows: u64) {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let insert = format!(
        "INSERT INTO many_counters (fence_key, fence) SELECT 'fence:job:' || md5(n::text), 1 FROM generate_series(1, {rows}) AS n"
    );
    for sql in [insert.as_str(), "VACUUM ANALYZE many_counters", "CHECKPOINT"] {
        client.batch_execute(sql).await.unwrap();
    }
}

async fn timed(backend: &PostgresBackend, key: &Key) -> f64 {
    let start = Instant::now();
    pairs::pair(backend, key).await;
    start.elapsed().as_secs_f64() * 1e3
}
