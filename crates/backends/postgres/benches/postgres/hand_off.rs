//! From one holder's release to the next holder's start, in another process's shoes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use syncguard_core::{AcquireRequest, Key, LockBackend, LockId, Locker, Ttl};
use syncguard_postgres::PostgresBuilder;
use syncguard_testkit::PostgresServer;
use syncguard_testkit::bench::{Figure, Report, median, percentile};
use tokio::sync::Mutex;

use crate::Choice;

const HOLD: Duration = Duration::from_millis(30);

pub(crate) async fn report(server: &PostgresServer, choice: Choice, report: &mut Report) {
    println!("\nhand-off with {} ms holds", HOLD.as_millis());
    let mut note = |measure: &str, contender: &str, value: f64, waiters: Option<usize>| {
        let figure = Figure::of(measure, "ms", contender, &[value]).setting(choice.setting);
        report.note(match waiters {
            Some(waiters) => figure.at("waiters", waiters),
            None => figure,
        });
    };
    // Whoever waits has rested for as long as the lock was held, and so has the server: processes that must be woken and
    // caches that others used since make the same question several times dearer than in a row.
    for (name, rest) in [("in a row", Duration::ZERO), ("after a rest as long as a hold", HOLD)] {
        let (round_trip, commit) = floor(server, rest).await;
        // One commit makes the lock free and one gives it away; both are between the call of release and the return of
        // acquire.
        let sum = 4.0 * round_trip + 2.0 * commit;
        println!("{name}: a round trip {round_trip:.2} ms, a commit {commit:.2} ms; 4 and 2 of them {sum:.2} ms");
        note("round trip", name, round_trip, None);
        note("commit", name, commit, None);
    }
    for (part, time) in ["answer of release", "hint", "acquire after the hint"].into_iter().zip(anatomy(server).await) {
        note("parts of a hand-off", part, time, None);
    }
    for (name, listen) in [("woken", true), ("polling", false)] {
        for waiters in [1, 4] {
            let mut times = run(server, waiters, listen, 60 * choice.rounds).await;
            let [half, slow] = [50.0, 99.0].map(|percent| percentile(&mut times, percent).unwrap());
            println!(
                "{name:8} {waiters} waiters   p50 {half:7.2} ms   p99 {slow:7.2} ms   ({} hand-offs)",
                times.len()
            );
            note("hand-off p50", name, half, Some(waiters));
            note("hand-off p99", name, slow, Some(waiters));
        }
    }
}

/// Where the time of one hand-off goes: to the answer of release, to the waiter's hint, and to acquire after the hint.
async fn anatomy(server: &PostgresServer) -> [f64; 3] {
    let connect = async || PostgresBuilder::from_url(&server.url()).unwrap().pool_size(2).connect().await.unwrap();
    let (holder, waiter) = (connect().await, connect().await);
    let key = Key::new("anatomy").unwrap();
    let hint = waiter.subscribe(&key).await;
    let (mut answers, mut hints, mut acquires) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..200 {
        let id = LockId::random();
        let request = AcquireRequest::new(&key, &id, Ttl::DEFAULT);
        let start = Instant::now();
        let _ = waiter.acquire(request).await.unwrap();
        acquires.push(start.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(HOLD).await;
        let start = Instant::now();
        let since = || start.elapsed().as_secs_f64() * 1e3;
        let (answered, hinted) = tokio::join!(
            async {
                holder.release(&id).await.unwrap();
                since()
            },
            async {
                hint.woken().await;
                since()
            }
        );
        answers.push(answered);
        hints.push(hinted);
    }
    let [answer, hint, acquire] = [answers, hints, acquires].map(|times| median(&times));
    println!(
        "release answers after {answer:.2} ms, the waiter's hint comes after {hint:.2} ms, its acquire takes {acquire:.2} ms"
    );
    [answer, hint, acquire]
}

/// The median time of a question, and what a commit adds to it.
async fn floor(server: &PostgresServer, rest: Duration) -> (f64, f64) {
    let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("CREATE TABLE IF NOT EXISTS floor (a INT); INSERT INTO floor VALUES (0)").await.unwrap();
    let ask = client.prepare("SELECT 1").await.unwrap();
    let write = client.prepare("UPDATE floor SET a = a + 1").await.unwrap();
    let (mut asked, mut written) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        tokio::time::sleep(rest).await;
        let start = Instant::now();
        client.query(&ask, &[]).await.unwrap();
        asked.push(start.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(rest).await;
        let start = Instant::now();
        client.execute(&write, &[]).await.unwrap();
        written.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let round_trip = median(&asked);
    (round_trip, median(&written) - round_trip)
}

/// The players pass one lock around; each hand-off is timed from the call of release to the return of acquire.
async fn run(server: &PostgresServer, waiters: usize, listen: bool, hand_offs: usize) -> Vec<f64> {
    let released: Arc<Mutex<Option<Instant>>> = Arc::default();
    let times: Arc<Mutex<Vec<f64>>> = Arc::default();
    let mut players = tokio::task::JoinSet::new();
    for _ in 0..=waiters {
        let backend =
            PostgresBuilder::from_url(&server.url()).unwrap().pool_size(2).wake(listen).connect().await.unwrap();
        let (locker, released, times) = (Locker::new(backend), released.clone(), times.clone());
        players.spawn(async move {
            while times.lock().await.len() < hand_offs {
                let request = locker.lock("baton").timeout(Duration::from_secs(30)).unlimited_retries();
                let guard = request.acquire().await.unwrap();
                if let Some(at) = released.lock().await.take() {
                    times.lock().await.push(at.elapsed().as_secs_f64() * 1e3);
                }
                tokio::time::sleep(HOLD).await;
                *released.lock().await = Some(Instant::now());
                guard.release().await.unwrap();
                // The next holder is to be one that waited.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }
    while let Some(done) = players.join_next().await {
        done.unwrap();
    }
    let times = times.lock().await;
    times.clone()
}
