//! What does a pair cost the server?
//!
//! The time it spends in scripts, by its own account (`INFO commandstats`), for the specification's scripts, ours, ours
//! without publishing, and the pair of commands that a lock without fence, index and owner's lookup needs.

use syncguard_testkit::RedisServer;

use crate::raw::{self, Pair};
use crate::{Effort, median, server, spread};

pub(crate) async fn run(effort: Effort) {
    println!("\n== server time per pair (µs, median of {} rounds)", effort.rounds);
    let server = server();
    let (ours, specified) = (Pair::ours(&server), Pair::specified(&server));
    let (mut cost, mut ratios) = ((Vec::new(), Vec::new()), Vec::new());
    for _ in 0..effort.rounds {
        let of_ours = measured(&server, &ours, effort).await;
        let of_specified = measured(&server, &specified, effort).await;
        ratios.push(of_specified / of_ours);
        cost.0.push(of_ours);
        cost.1.push(of_specified);
    }
    println!("  specification's scripts  {:.1}", median(cost.1));
    println!("  our scripts              {:.1}", median(cost.0));
    println!("  specification / ours     {}   (reach: ≥ 1.25)", spread(ratios));
    memory(&server).await;
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

async fn memory(server: &RedisServer) {
    use syncguard_core::{AcquireRequest, Key, LockBackend, Ttl};
    let backend = syncguard_redis::RedisBackend::connect(&server.url()).await.unwrap();
    let key = Key::new("k".repeat(64)).unwrap();
    let id = backend.new_lock_id(&key);
    let _ = backend.acquire(AcquireRequest::new(&key, &id, Ttl::DEFAULT)).await.unwrap();
    let size = |name: String| server.command(&["MEMORY", "USAGE", &name]).parse::<u64>().unwrap();
    let lock = size(format!("syncguard:{}", key.as_str()));
    let index = size(format!("syncguard:id:{}", id.as_str()));
    let counter = size(format!("syncguard:fence:syncguard:{}", key.as_str()));
    println!(
        "  memory of a lock on a 64-byte key: lock {lock} + index {index} + counter {counter} bytes   (reach: < 1024)"
    );
}
