//! What is asked of a backend before and after its connections went silent?

use std::fmt;
use std::time::{Duration, Instant};

use syncguard::{Guard, Locker, Timestamp};
use syncguard_testkit::bench::Figure;
use tokio::time::sleep;

use crate::worlds::World;
use crate::{AT_MOST, HEARD, LEASES, LOCKS};

/// The locks that one process keeps alive all the time.
pub(crate) struct Held(Vec<Guard>);

impl Held {
    pub(crate) async fn take(far: &Locker) -> Self {
        let mut guards = Vec::new();
        for ttl in LEASES {
            for number in 0..LOCKS {
                let request = far.lock(format!("held:{}:{number}", ttl.as_secs())).ttl(ttl).keep_alive();
                guards.push(request.acquire().await.unwrap());
                // Renewals must not all be due in the same moment.
                sleep(Duration::from_millis(300)).await;
            }
        }
        Self(guards)
    }

    pub(crate) async fn release(self) {
        for guard in self.0 {
            drop(guard.release().await);
        }
    }
}

/// What one silence cost.
pub(crate) struct Round {
    /// Until the first question, and the first lock taken and released, were answered.
    operations: Duration,
    /// By how much the latest renewal of each kind of lease came after the moment when it was due.
    late: [Duration; LEASES.len()],
    /// Until releases were heard of again; `None` if they were not while it was waited for.
    heard_again: Option<Duration>,
    before: Duration,
    after: Duration,
    kept: usize,
    lost: usize,
}

impl Round {
    pub(crate) async fn run(world: &World, far: &Locker, held: &Held) -> Self {
        let near = world.near().await;
        let before = hand_over(far, &near).await.min(hand_over(far, &near).await);
        let leases: Vec<Timestamp> = held.0.iter().map(|guard| guard.expires_at()).collect();
        world.silence();
        let silent = Instant::now();
        // Those that it hands over to were silenced; it was not.
        let near = world.near().await;
        let (operations, (heard_again, after), late) = tokio::join!(
            operations(far, silent),
            hand_overs(far, &near, silent, HEARD.max(before * 4)),
            renewals(held, &leases)
        );
        let lost = held.0.iter().filter(|guard| !guard.is_held()).count();
        Self { operations, late, heard_again, before, after, kept: held.0.len() - lost, lost }
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let bound = |ttl: Duration| (ttl / 3).min(AT_MOST);
        let mut failures = Vec::new();
        // A lock of the default length is what the operations ask for.
        if self.operations > bound(Duration::from_secs(30)) {
            failures.push(format!("operations took {:?} to recover", self.operations));
        }
        for (ttl, late) in LEASES.iter().zip(self.late) {
            if late > bound(*ttl) {
                failures.push(format!("a renewal of a lease of {ttl:?} came {late:?} late"));
            }
        }
        if self.heard_again.is_none_or(|time| time > AT_MOST) {
            failures.push(format!("releases were heard again after {:?}", self.heard_again));
        }
        if self.lost > 0 {
            failures.push(format!("{} locks were lost", self.lost));
        }
        failures
    }
}

/// What all rounds of one kind of server come to. When releases were never heard again is no number, so that is counted.
pub(crate) fn figures(server: &str, rounds: &[Round]) -> Vec<Figure> {
    let seconds = |measure: &str, time: fn(&Round) -> Option<Duration>| {
        let times: Vec<f64> =
            rounds.iter().map(|round| time(round).map_or(f64::NAN, |time| time.as_secs_f64())).collect();
        Figure::of(measure, "s", server, &times)
    };
    let counts = |count: fn(&Round) -> usize| -> Vec<f64> {
        rounds.iter().filter_map(|round| u32::try_from(count(round)).ok()).map(f64::from).collect()
    };
    vec![
        seconds("operations again", |round| Some(round.operations)),
        seconds("renewal late, leases of 15 s", |round| Some(round.late[0])),
        seconds("renewal late, leases of 30 s", |round| Some(round.late[1])),
        seconds("heard again", |round| round.heard_again),
        Figure::of("never heard again", "rounds", server, &counts(|round| usize::from(round.heard_again.is_none()))),
        seconds("hand-over before", |round| Some(round.before)),
        seconds("hand-over after", |round| Some(round.after)),
        Figure::of("locks kept", "locks", server, &counts(|round| round.kept)),
        Figure::of("locks lost", "locks", server, &counts(|round| round.lost)),
    ]
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let millis = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
        let heard_again = self.heard_again.map_or_else(|| "never".to_owned(), seconds);
        write!(
            f,
            "{:>10}  {:>14}  {:>6}  {heard_again:>11}  {:>16}  {:>8}  {} of {}",
            seconds(self.operations),
            seconds(self.late[0]),
            seconds(self.late[1]),
            millis(self.before),
            millis(self.after),
            self.kept,
            self.kept + self.lost,
        )
    }
}

/// By how much the latest of the first renewals since then came after it was due, for each kind of lease. Counted on
/// the server's clock. It watches for as long as the longest lease, so that every loss is seen.
async fn renewals(held: &Held, leases: &[Timestamp]) -> [Duration; LEASES.len()] {
    let mut late = vec![None; leases.len()];
    let watching = Instant::now();
    while watching.elapsed() < LEASES[1] + Duration::from_secs(1) {
        for ((guard, before), late) in held.0.iter().zip(leases).zip(&mut late) {
            let moved = guard.expires_at().since(*before);
            if late.is_none() && !moved.is_zero() {
                *late = Some(moved.saturating_sub(guard.ttl().duration() / 3));
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    LEASES.map(|ttl| {
        let of_this_length = held.0.iter().zip(&late).filter(|(guard, _)| guard.ttl().duration() == ttl);
        of_this_length.map(|(_, late)| late.unwrap_or(Duration::MAX)).max().unwrap_or_default()
    })
}

/// Asks until there is an answer, then takes a lock and gives it back.
async fn operations(far: &Locker, silent: Instant) -> Duration {
    while far.is_locked("asked").await.is_err() {}
    loop {
        if let Ok(Some(guard)) = far.lock("taken").try_acquire().await
            && guard.release().await.is_ok()
        {
            return silent.elapsed();
        }
    }
}

/// Hands over until three in a row were heard of, that is, took no longer than `at_once`. Returns when the first of those
/// began, and how long the last took.
async fn hand_overs(far: &Locker, near: &Locker, silent: Instant, at_once: Duration) -> (Option<Duration>, Duration) {
    let (mut began, mut heard) = (silent.elapsed(), 0);
    loop {
        let started = silent.elapsed();
        if started > 3 * AT_MOST {
            return (None, Duration::ZERO);
        }
        let took = hand_over(far, near).await;
        if took > at_once {
            (began, heard) = (silent.elapsed(), 0);
            continue;
        }
        heard += 1;
        if heard == 3 {
            return (Some(began), took);
        }
    }
}

/// How long it takes from a release until the waiter has the lock.
async fn hand_over(far: &Locker, near: &Locker) -> Duration {
    let guard = near.lock("handed").timeout(Duration::from_secs(60)).unlimited_retries().acquire().await.unwrap();
    let waiter = far.lock("handed").timeout(Duration::from_secs(60)).unlimited_retries();
    let waiting = tokio::spawn(async move {
        let guard = waiter.acquire().await.unwrap();
        let got = Instant::now();
        drop(guard.release().await);
        got
    });
    // Long enough to ask and to listen, and different enough from the schedule of a waiter that hears nothing.
    sleep(Duration::from_millis(730)).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    waiting.await.unwrap().saturating_duration_since(released)
}
