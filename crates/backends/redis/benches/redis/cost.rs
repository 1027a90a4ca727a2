//! What does a pair cost the server?
//!
//! The time it spends in scripts, by its own account (`INFO commandstats`), for the specification's scripts, ours, ours
//! without publishing, and the pair of commands that a lock without fence, index and owner's lookup needs.

use syncguard_testkit::RedisServer;
use syncguard_testkit::bench::{Figure, Report};

use crate::raw::{self, Pair};
use crate::{Effort, server};

pub(crate) async fn run(effort: Effort, report: &mut Report) {
    println!("\n== server time per pair (µs, median of {} rounds)", effort.rounds);
    let server = server();
    let (ours, specified) = (Pair::ours(&server), Pair::specified(&server));
    let mut cost = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        cost.0.push(measured(&server, &ours, effort).await);
        cost.1.push(measured(&server, &specified, effort).await);
    }
    let figure = |scripts: &str, cost: &[f64]| Figure::of("server time in scripts", "µs/pair", scripts, cost);
    let ours = figure("our scripts", &cost.0);
    let specified = figure("specification's scripts", &cost.1).beside("our scripts", &cost.0);
    println!("  specification's scripts  {:.1}", specified.median());
    println!("  our scripts              {:.1}", ours.median());
    println!("  specification / ours     {}   (reach: ≥ 1.25)", specified.ratio());
    report.extend([ours, specified]);
    memory(&server, report).await;
}

async fn measured(server: &RedisServer, pair: &Pair, effort: Effort) -> f64 {
    server.command(&["CONFIG", "RESETSTAT"]);
    raw::pairs(server, pair, 16, effort.slice).await;
    let info = server.command(&["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    let field = |name: &str| -> f64 {
        let value = line.split([':', ',']).find_map(|part| part.strip_prefix(name)?.strip_prefix('=')).unwrap();
        value.parse().unwrap()
    };
    field("usec") / (field("calls") / 2.0)
}

async fn memory(server: &RedisServer, report: &mut Report) {
    use syncguard_core::{AcquireRequest, Key, LockBackend, Ttl};
    let backend = syncguard_redis::RedisBackend::connect(&server.url()).await.unwrap();
    let key = Key::new("k".repeat(64)).unwrap();
    let id = backend.new_lock_id(&key);
    let _ = backend.acquire(AcquireRequest::new(&key, &id, Ttl::DEFAULT)).await.unwrap();
    let size = |name: String| server.command(&["MEMORY", "USAGE", &name]).parse::<u32>().unwrap();
    let lock = size(format!("syncguard:{}", key.as_str()));
    let index = size(format!("syncguard:id:{}", id.as_str()));
    let counter = size(format!("syncguard:fence:syncguard:{}", key.as_str()));
    println!(
        "  memory of a lock on a 64-byte key: lock {lock} + index {index} + counter {counter} bytes   (reach: < 1024)"
    );
    let all = f64::from(lock + index + counter);
    report.note(Figure::of("memory of the server", "bytes/lock", "syncguard", &[all]));
}
