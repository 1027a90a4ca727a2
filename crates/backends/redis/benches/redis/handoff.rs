//! How long from a release to the next holder?
//!
//! Waiters of one process, and of as many processes as clients, go for one key; each holds it for a moment. Measured
//! from just before the release is sent to just after the next acquire is answered, beside a round trip of the same
//! minute. Attempts are counted by the server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use syncguard_core::{LockBackend, Locker};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::RedisServer;
use syncguard_testkit::bench::{Figure, Report, Spread, median, percentile};
use syncguard_testkit::redis::RespClient;

use crate::server;

const HOLD: Duration = Duration::from_millis(5);

struct Race {
    released: Mutex<Option<Instant>>,
    waits: Mutex<Vec<f64>>,
    /// How long each acquire took, queueing included.
    turns: Mutex<Vec<f64>>,
    sections: AtomicUsize,
    /// A port, if somebody who is dead is put in front of the line before each release.
    dead: Option<u16>,
}

/// What came of one race.
struct Figures {
    /// One round trip just before it.
    trip: f64,
    p50: f64,
    p99: f64,
    attempts: f64,
    /// The longest wait for a turn, against the mean.
    unfairness: f64,
}

/// Who waits for whom, and how they hear of it.
#[derive(Clone, Copy)]
struct Setting {
    waiters: usize,
    clients: usize,
    wake: bool,
    /// Whether somebody who is dead stands in front of the line at each release.
    dead: bool,
}

impl Setting {
    fn name(self) -> String {
        let Self { clients, wake, dead, .. } = self;
        let how = match (wake, dead) {
            (true, false) => "wake-ups on",
            (false, _) => "wake-ups off",
            (true, true) => "somebody dead in front",
        };
        format!("{clients} clients, {how}")
    }

    fn tell(self, races: &[Figures], report: &mut Report) {
        let of = |pick: fn(&Figures) -> f64| races.iter().map(pick).collect::<Vec<f64>>();
        let all = [
            ("round trip after a pause", "ms", of(|race| race.trip)),
            ("hand-off p50", "ms", of(|race| race.p50)),
            ("hand-off in round trips", "round trips", of(|race| race.p50 / race.trip)),
            ("hand-off p99", "ms", of(|race| race.p99)),
            ("attempts", "attempts/section", of(|race| race.attempts)),
            ("longest wait", "× the mean", of(|race| race.unfairness)),
        ];
        let name = self.name();
        let shown = all.each_ref().map(|(_, _, values)| median(values));
        let trips = Spread::of(&all[2].2).map(|trips| format!("{trips:.1}")).unwrap_or_default();
        println!(
            "  {:>3} waiters in {name}: a round trip {:.3}, p50 {:.3} = {trips} round trips, p99 {:.2}, {:.1} attempts per section, longest wait {:.1} × the mean",
            self.waiters, shown[0], shown[1], shown[3], shown[4], shown[5]
        );
        for (measure, unit, values) in all {
            report.note(Figure::of(measure, unit, "syncguard", &values).at("waiters", self.waiters).setting(&name));
        }
    }
}

pub(crate) async fn run(report: &mut Report, rounds: usize) {
    println!("\n== hand-off: release to next holder (ms), beside one round trip after a pause as long as a hold");
    let server = server();
    let on = |(waiters, clients)| Setting { waiters, clients, wake: true, dead: false };
    let settings = [(1, 1), (1, 2), (100, 1), (100, 20), (100, 100)].map(on);
    let all = settings
        .into_iter()
        .chain([on((1, 2)), on((100, 100))].map(|setting| Setting { dead: true, ..setting }))
        // A hundred waiters without wake-ups starve each other.
        .chain([on((1, 2)), on((100, 100))].map(|setting| Setting { wake: false, ..setting }));
    for setting in all {
        let mut races = Vec::new();
        for round in 0..rounds {
            let sections = if setting.wake && !setting.dead { 150 } else { 40 };
            races.push(race(&server, round, setting, sections).await);
        }
        setting.tell(&races, report);
    }
    println!(
        "  reach with wake-ups: ≤ 2 round trips with 1 waiter or 1 client, ≤ 5 and p99 ≤ 10 ms with 100; ≤ 4 attempts per section"
    );
}

async fn round_trip(server: &RedisServer) -> f64 {
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let key = syncguard_core::Key::new("nobody").unwrap();
    let mut trips = Vec::new();
    for _ in 0..100 {
        // Server and client sleep between two sections, too: waking them is part of the trip.
        tokio::time::sleep(HOLD).await;
        let start = Instant::now();
        backend.is_locked(&key).await.unwrap();
        trips.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    median(&trips)
}

async fn race(server: &RedisServer, round: usize, setting: Setting, sections: usize) -> Figures {
    let Setting { waiters, clients, wake, dead } = setting;
    let trip = round_trip(server).await;
    let race = Arc::new(Race {
        released: Mutex::default(),
        waits: Mutex::default(),
        turns: Mutex::default(),
        sections: AtomicUsize::new(0),
        dead: dead.then(|| server.port()),
    });
    let mut lockers = Vec::new();
    for _ in 0..clients {
        let options = RedisBuilder::from_url(&server.url())
            .unwrap()
            .wake(wake)
            .prefix(format!("r{round}-{waiters}-{clients}-{wake}-{dead}"));
        lockers.push(Locker::new(options.connect().await.unwrap()));
    }
    server.command(&["CONFIG", "RESETSTAT"]);
    // One more than the waiters: somebody holds it.
    let tasks: Vec<_> = (0..=waiters)
        .map(|number| tokio::spawn(one(lockers[number % clients].clone(), race.clone(), sections)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let done = race.sections.load(Ordering::SeqCst);
    let calls = calls(server);
    let (mut waits, mut turns) = (race.waits.lock().unwrap().clone(), race.turns.lock().unwrap().clone());
    // The first holders come while the others still arrive.
    waits.drain(..waits.len().min(10));
    let mean = turns.iter().sum::<f64>() / turns.len() as f64;
    Figures {
        trip,
        p50: percentile(&mut waits, 50.0).unwrap(),
        p99: percentile(&mut waits, 99.0).unwrap(),
        attempts: calls / done as f64 - 1.0,
        unfairness: percentile(&mut turns, 100.0).unwrap() / mean,
    }
}

async fn one(locker: Locker, race: Arc<Race>, sections: usize) {
    while race.sections.load(Ordering::SeqCst) < sections {
        let start = Instant::now();
        let guard = locker.lock("k").ttl(Duration::from_secs(60)).wait_forever().acquire().await.unwrap();
        race.turns.lock().unwrap().push(start.elapsed().as_secs_f64() * 1000.0);
        if let Some(released) = race.released.lock().unwrap().take() {
            race.waits.lock().unwrap().push(released.elapsed().as_secs_f64() * 1000.0);
        }
        let section = race.sections.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(HOLD).await;
        if let Some(port) = race.dead {
            put_somebody_dead_in_front(port);
        }
        *race.released.lock().unwrap() = Some(Instant::now());
        guard.release().await.unwrap();
        // Whoever held it stands back until somebody else does, so that a waiter and not the holder is measured.
        for _ in 0..2000 {
            if race.sections.load(Ordering::SeqCst) > section || section >= sections {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A line is told from an index by what it holds: names of eight characters and no colon.
fn put_somebody_dead_in_front(port: u16) {
    let script = "for _, name in ipairs(redis.call('KEYS', '*-true:id:*')) do \
        local line = redis.call('GET', name) \
        if #line % 8 == 0 and not string.find(line, ':', 1, true) then redis.call('PSETEX', name, 30000, 'deadDEAD' .. line) end \
        end";
    RespClient::connect(port).unwrap().command_raw(&["EVAL", script, "0"]).unwrap();
}

fn calls(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    line.split([':', ',']).find_map(|part| part.strip_prefix("calls=")).unwrap().parse().unwrap()
}
