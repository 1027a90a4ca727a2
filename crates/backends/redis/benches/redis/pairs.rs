//! How many pairs of acquire and release per second?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rslock::LockManager;
use syncguard_core::{AcquireOutcome, AcquireRequest, Key, LockBackend, Ttl};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::RedisServer;
use syncguard_testkit::bench::{Figure, Report};

use crate::raw::{self, Pair};
use crate::{Effort, server};

const OURS: &str = "syncguard";
const CONTENDERS: [&str; 7] = [
    "raw socket, our scripts",
    OURS,
    "syncguard, wake off",
    "syncguard, 1 connection",
    "SET NX + compare-delete",
    "rslock, 1 server",
    "rslock, 3 servers",
];

pub(crate) async fn run(effort: Effort, report: &mut Report) {
    let servers = [server(), server(), server()];
    let first = &servers[0];
    let pair = Pair::ours(first);
    let options = RedisBuilder::from_url(&first.url()).unwrap();
    let ours = options.clone().connect().await.unwrap();
    let quiet = options.clone().wake(false).connect().await.unwrap();
    let narrow = options.connections(1).connect().await.unwrap();
    let bare = redis::Client::open(first.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    let (one, three) = (LockManager::new(vec![urls[0].clone()]), LockManager::new(urls));
    for tasks in [1, 16, 64] {
        let mut results = vec![Vec::new(); CONTENDERS.len()];
        let slice = effort.slice;
        // The first round warms up.
        for round in 0..=effort.rounds {
            let figures = [
                with_cost(first, raw::pairs(first, &pair, tasks, slice)).await,
                with_cost(first, of_backend(&ours, tasks, slice)).await,
                with_cost(first, of_backend(&quiet, tasks, slice)).await,
                with_cost(first, of_backend(&narrow, tasks, slice)).await,
                with_cost(first, of_bare(&bare, tasks, slice)).await,
                with_cost(first, of_rslock(&one, tasks, slice)).await,
                with_cost(first, of_rslock(&three, tasks, slice)).await,
            ];
            if round > 0 {
                results.iter_mut().zip(figures).for_each(|(list, figure)| list.push(figure));
            }
        }
        tell(tasks, &results, report);
    }
}

/// What one contender did in one round.
#[derive(Clone, Copy)]
struct Turn {
    pairs_per_second: f64,
    /// Processor time of this process and of the (first) server: hardly disturbed by what else the machine does.
    client_micros: f64,
    server_micros: f64,
}

async fn with_cost(server: &RedisServer, run: impl Future<Output = f64>) -> Turn {
    let time_of = |process: &str| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
        stat.split(' ').next().and_then(|nanos| nanos.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1000.0
    };
    let server = server.pid().to_string();
    let (start, client_before, server_before) = (Instant::now(), time_of("self"), time_of(&server));
    let pairs_per_second = run.await;
    let pairs = pairs_per_second * start.elapsed().as_secs_f64();
    let (client, server) = (time_of("self") - client_before, time_of(&server) - server_before);
    Turn { pairs_per_second, client_micros: client / pairs, server_micros: server / pairs }
}

fn tell(tasks: usize, results: &[Vec<Turn>], report: &mut Report) {
    println!(
        "\n== {tasks} tasks: pairs per second, processor time of client and server per pair (medians), and syncguard's share of each (median and spread of the rounds)"
    );
    let of = |turns: &[Turn], field: fn(&Turn) -> f64| turns.iter().map(field).collect::<Vec<f64>>();
    let rates = |turns: &[Turn]| of(turns, |turn| turn.pairs_per_second);
    let mut ours = Figure::of("throughput", "pairs/s", OURS, &rates(&results[1])).at("tasks", tasks);
    for (name, turns) in CONTENDERS.iter().zip(results) {
        let figure = |measure: &str, unit: &'static str, values: &[f64]| {
            Figure::of(measure, unit, *name, values).at("tasks", tasks)
        };
        let throughput = figure("throughput", "pairs/s", &rates(turns));
        let client = figure("processor time of the client", "µs/pair", &of(turns, |turn| turn.client_micros));
        let server = figure("processor time of the server", "µs/pair", &of(turns, |turn| turn.server_micros));
        ours = ours.beside(*name, &rates(turns));
        println!(
            "  {name:<26} {:>8.0}   {:>5.1} + {:>5.1} µs   syncguard is {} of it",
            throughput.median(),
            client.median(),
            server.median(),
            ours.ratio()
        );
        // Ours is noted below, with what it is beside each of them.
        report.extend((*name != OURS).then_some(throughput).into_iter().chain([client, server]));
    }
    report.note(ours);
    let reach = if tasks == 1 { 0.8 } else { 0.9 };
    println!("  reach: ≥ {reach} of the raw socket; faster than rslock on three servers");
}

/// Runs `tasks` tasks for a while; each counts what it did.
async fn timed<F: Future<Output = u64> + Send + 'static>(
    tasks: usize,
    slice: Duration,
    task: impl Fn(usize, Arc<AtomicBool>) -> F,
) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let running: Vec<_> = (0..tasks).map(|number| tokio::spawn(task(number, stop.clone()))).collect();
    tokio::time::sleep(slice).await;
    stop.store(true, Ordering::Relaxed);
    let mut done = 0;
    for task in running {
        done += task.await.unwrap();
    }
    done as f64 / start.elapsed().as_secs_f64()
}

pub(crate) async fn of_backend(backend: &RedisBackend, tasks: usize, slice: Duration) -> f64 {
    timed(tasks, slice, |number, stop| {
        let backend = backend.clone();
        async move {
            let key = Key::new(format!("k{number}")).unwrap();
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                let id = backend.new_lock_id(&key);
                let request = AcquireRequest::new(&key, &id, Ttl::DEFAULT);
                assert!(matches!(backend.acquire(request).await.unwrap(), AcquireOutcome::Acquired(_)));
                assert!(backend.release(&id).await.unwrap().is_released());
                done += 1;
            }
            done
        }
    })
    .await
}

async fn of_bare(connection: &redis::aio::MultiplexedConnection, tasks: usize, slice: Duration) -> f64 {
    let release =
        redis::Script::new("if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0");
    let release = Arc::new(release);
    timed(tasks, slice, |number, stop| {
        let (mut connection, release) = (connection.clone(), release.clone());
        async move {
            let key = format!("bare:{number}");
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut set = redis::cmd("SET");
                set.arg(&key).arg("owner").arg("NX").arg("PX").arg(30_000);
                let _: () = set.query_async(&mut connection).await.unwrap();
                let freed: i64 = release.key(&key).arg("owner").invoke_async(&mut connection).await.unwrap();
                assert_eq!(freed, 1);
                done += 1;
            }
            done
        }
    })
    .await
}

async fn of_rslock(manager: &LockManager, tasks: usize, slice: Duration) -> f64 {
    timed(tasks, slice, |number, stop| {
        let manager = manager.clone();
        async move {
            let key = format!("rslock:{number}").into_bytes();
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                let lock = manager.lock(key.as_slice(), Duration::from_secs(30)).await.unwrap();
                manager.unlock(&lock).await;
                done += 1;
            }
            done
        }
    })
    .await
}
