//! What does a lock cost from here, and does it exclude?
//!
//! Three parts: one client alone, clients on a lock each, and all of them on one lock. In the last one each holder checks that
//! nobody else is inside and that its fence is the highest so far. The keys are the same every time, so that their counters,
//! which stay, do not grow in number.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Serialize;
use syncguard::{BootTime, Clock, Fence, Guard, LockError, Locker, RedactedUrl, SystemClock};

use crate::args::BenchArgs;
use crate::config::Backend;
use crate::exit::{self, Failure, Stage};
use crate::holder::millis;
use crate::output::{ERROR, Output, escape};

/// Nobody else's locks live below this name.
const PREFIX: &str = "syncguard:bench:";
const TTL: Duration = Duration::from_secs(30);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    ok: bool,
    backend: String,
    clients: u16,
    /// One client, one lock after the other.
    acquire: Percentiles,
    extend: Percentiles,
    release: Percentiles,
    pairs_per_second: u64,
    /// All clients on one lock.
    contended_pairs_per_second: u64,
    hand_over: Percentiles,
    overlaps: u64,
    fences_out_of_order: u64,
    counters_left: u32,
    counters_prefix: &'static str,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Percentiles {
    samples: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
}

impl Percentiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let at = |percent: usize| times.get(times.len().saturating_sub(1) * percent / 100).copied().map_or(0, micros);
        Self {
            samples: u64::try_from(times.len()).unwrap_or(u64::MAX),
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: at(100),
        }
    }
}

pub(crate) async fn bench(args: &BenchArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let failed = |error: LockError| Failure::from_lock(&error, Stage::Operating);
    let locker = super::open(backend).await?;
    // Two at once would measure each other.
    let only = locker.lock(format!("{PREFIX}running")).ttl(TTL).keep_alive().try_acquire().await.map_err(failed)?;
    let Some(only) = only else {
        return Err(Failure::new(exit::NOT_ACQUIRED, "locked", "another bench runs on this backend")
            .hint(format!("look at it: syncguard status {PREFIX}running")));
    };
    let measured = tokio::select! {
        measured = measure(args, backend, &locker) => measured.map_err(failed),
        stopped = tokio::signal::ctrl_c() => {
            drop(stopped);
            Err(Failure::new(exit::from_signal(2), "interrupted", "the bench was interrupted"))
        }
    };
    let _ = only.release().await;
    // What an interrupted part still holds is given back in the background.
    locker.shutdown(Duration::from_secs(5)).await;
    let report = measured?;
    let ok = report.ok;
    if output.json {
        output.object(&report);
    } else {
        output.data(&render(&report));
    }
    Ok(if ok { exit::OK } else { exit::NO })
}

async fn measure(args: &BenchArgs, backend: &Backend, locker: &Locker) -> Result<Report, LockError> {
    let part = args.duration / 3;
    let alone = alone(locker, part).await?;
    let pairs = each_its_own(locker, args.clients, part).await?;
    let crowd = all_on_one(locker, args.clients, part).await?;
    let overlaps = crowd.overlaps.get();
    let disorder = crowd.disorder.get();
    Ok(Report {
        ok: overlaps == 0 && disorder == 0,
        backend: RedactedUrl::new(&backend.url).to_string(),
        clients: args.clients,
        acquire: Percentiles::of(alone.acquire),
        extend: Percentiles::of(alone.extend),
        release: Percentiles::of(alone.release),
        pairs_per_second: per_second(pairs, part),
        contended_pairs_per_second: per_second(crowd.pairs.get(), part),
        hand_over: Percentiles::of(crowd.hand_overs.take()),
        overlaps,
        fences_out_of_order: disorder,
        counters_left: u32::from(args.clients) + 2,
        counters_prefix: PREFIX,
    })
}

fn per_second(count: u64, time: Duration) -> u64 {
    count.saturating_mul(1000) / millis(time).max(1)
}

fn since(start: BootTime) -> Duration {
    SystemClock.boot().since(start)
}

#[derive(Default)]
struct Alone {
    acquire: Vec<Duration>,
    extend: Vec<Duration>,
    release: Vec<Duration>,
}

async fn alone(locker: &Locker, part: Duration) -> Result<Alone, LockError> {
    let (mut times, start) = (Alone::default(), SystemClock.boot());
    while since(start) < part || times.acquire.is_empty() {
        let begun = SystemClock.boot();
        let guard = take(locker, &own_key(0)).await?;
        times.acquire.push(since(begun));
        let begun = SystemClock.boot();
        // A lock that was lost meanwhile is noticed by the release.
        let _ = guard.extend(TTL).await?;
        times.extend.push(since(begun));
        let begun = SystemClock.boot();
        let _ = guard.release().await?;
        times.release.push(since(begun));
    }
    Ok(times)
}

fn own_key(client: u16) -> String {
    format!("{PREFIX}{client}")
}

async fn take(locker: &Locker, key: &str) -> Result<Guard, LockError> {
    locker.lock(key).ttl(TTL).timeout(TTL).unlimited_retries().acquire().await
}

async fn each_its_own(locker: &Locker, clients: u16, part: Duration) -> Result<u64, LockError> {
    let (pairs, start) = (Cell::new(0_u64), SystemClock.boot());
    let work = (0..clients).map(|client| {
        let pairs = &pairs;
        async move {
            while since(start) < part {
                let _ = take(locker, &own_key(client)).await?.release().await?;
                pairs.set(pairs.get() + 1);
            }
            Ok::<_, LockError>(())
        }
    });
    try_join_all(work).await?;
    Ok(pairs.get())
}

/// What the clients of one lock share. They run in turns on one thread, so cells are enough.
#[derive(Default)]
struct Crowd {
    pairs: Cell<u64>,
    inside: Cell<u64>,
    overlaps: Cell<u64>,
    highest: Cell<Option<Fence>>,
    disorder: Cell<u64>,
    /// When the holder before began to let go, and who it was.
    let_go: Cell<Option<(u16, BootTime)>>,
    hand_overs: RefCell<Vec<Duration>>,
}

impl Crowd {
    fn enter(&self, client: u16, fence: Fence) {
        let others = self.inside.get();
        self.inside.set(others + 1);
        self.overlaps.set(self.overlaps.get() + u64::from(others > 0));
        let is_behind = self.highest.get().is_some_and(|highest| fence <= highest);
        self.disorder.set(self.disorder.get() + u64::from(is_behind));
        self.highest.set(self.highest.get().max(Some(fence)));
        if let Some((before, at)) = self.let_go.take()
            && before != client
        {
            self.hand_overs.borrow_mut().push(since(at));
        }
    }

    fn leave(&self, client: u16) {
        self.inside.set(self.inside.get().saturating_sub(1));
        self.let_go.set(Some((client, SystemClock.boot())));
        self.pairs.set(self.pairs.get() + 1);
    }
}

async fn all_on_one(locker: &Locker, clients: u16, part: Duration) -> Result<Crowd, LockError> {
    let (crowd, start) = (Crowd::default(), SystemClock.boot());
    let key = format!("{PREFIX}contended");
    let work = (0..clients).map(|client| {
        let (crowd, key) = (&crowd, &key);
        async move {
            while since(start) < part {
                let guard = take(locker, key).await?;
                crowd.enter(client, guard.fence());
                // Others get a turn while it is held: an overlap must have a chance to show.
                tokio::task::yield_now().await;
                crowd.leave(client);
                let _ = guard.release().await?;
            }
            Ok::<_, LockError>(())
        }
    });
    try_join_all(work).await?;
    Ok(crowd)
}

fn render(report: &Report) -> String {
    let line = |name: &str, times: Percentiles| {
        let ms = |micros: u64| format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10);
        let (p50, p90, p99, max) = (ms(times.p50), ms(times.p90), ms(times.p99), ms(times.max));
        format!("{name:<10}  {p50:>10}  {p90:>10}  {p99:>10}  {max:>10}  {:>8}", times.samples)
    };
    let verdict = if report.ok {
        "overlaps 0, every fence higher than the one before".to_owned()
    } else {
        let (overlaps, disorder) = (report.overlaps, report.fences_out_of_order);
        format!(
            "{ERROR}FAIL{ERROR:#} {overlaps} overlaps, {disorder} fences out of order: this backend does not exclude"
        )
    };
    [
        format!("backend {}", escape(&report.backend)),
        "                   50 %        90 %        99 %         max   samples".to_owned(),
        line("acquire", report.acquire),
        line("extend", report.extend),
        line("release", report.release),
        line("hand-over", report.hand_over),
        format!("{} clients, a lock each:  {} pairs per second", report.clients, report.pairs_per_second),
        format!("{} clients, one lock:     {} pairs per second", report.clients, report.contended_pairs_per_second),
        verdict,
        format!("all locks were released; {} fence counters stay below {PREFIX}", report.counters_left),
    ]
    .join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let times = (1..=1000).map(Duration::from_micros).collect();
        assert_eq!(Percentiles::of(times), Percentiles { samples: 1000, p50: 500, p90: 900, p99: 990, max: 1000 });
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn an_overlap_and_a_fence_that_does_not_grow_are_counted() {
        let crowd = Crowd::default();
        let fence = |number| Fence::new(number).unwrap();

        crowd.enter(0, fence(1));
        crowd.leave(0);
        crowd.enter(1, fence(2));
        crowd.enter(2, fence(2));

        assert_eq!((crowd.overlaps.get(), crowd.disorder.get(), crowd.hand_overs.borrow().len()), (1, 1, 1));
    }
}
