//! The primitives of `sync` as shuttle schedules them.
//!
//! Every look at a mutex and every notification is a place where another task may go on. Time is a number that moves
//! only when a test says so, to the next moment that somebody sleeps for; so a test can let it stand still, and whoever
//! would need a timer to be saved waits for ever, which shuttle reports.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Add;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::sync::atomic::{AtomicBool, Ordering};

use crate::time::Clock;
use crate::{BootTime, Timestamp};

pub(crate) use shuttle::future::{JoinHandle, spawn};

struct Time {
    now: Duration,
    next: u64,
    sleepers: BTreeMap<(Duration, u64), Waker>,
}

impl Default for Time {
    fn default() -> Self {
        // Not at zero, where a moment before it would saturate.
        Self { now: Duration::from_secs(1_000_000), next: 0, sleepers: BTreeMap::new() }
    }
}

// All tasks of one schedule run on one thread of the system.
thread_local! {
    static TIME: RefCell<Time> = RefCell::default();
}

/// Begins a schedule: nobody sleeps.
pub(super) fn begin() {
    TIME.take();
}

/// Moves time to the next moment that somebody sleeps for. `false` when nobody sleeps.
pub(super) fn pass_time() -> bool {
    let woken: Vec<Waker> = TIME.with_borrow_mut(|time| {
        let Some(((at, _), _)) = time.sleepers.first_key_value() else { return Vec::new() };
        time.now = time.now.max(*at);
        let later = time.sleepers.split_off(&(time.now, u64::MAX));
        std::mem::replace(&mut time.sleepers, later).into_values().collect()
    });
    let any = !woken.is_empty();
    woken.into_iter().for_each(Waker::wake);
    any
}

/// A place where another task may go on.
pub(super) fn point() {
    AtomicBool::new(false).load(Ordering::SeqCst);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(TIME.with_borrow(|time| time.now))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn checked_add(self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

#[derive(Debug)]
pub(super) struct VirtualClock;

impl Clock for VirtualClock {
    fn boot(&self) -> BootTime {
        BootTime::from_start(Instant::now().0)
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(i64::try_from(Instant::now().0.as_millis()).unwrap_or(i64::MAX))
    }
}

pub(crate) struct Sleep {
    at: Duration,
    number: Option<u64>,
}

pub(crate) fn sleep(duration: Duration) -> Sleep {
    Sleep { at: Instant::now().0.saturating_add(duration), number: None }
}

pub(crate) fn sleep_until(at: Instant) -> Sleep {
    Sleep { at: at.0, number: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        TIME.with_borrow_mut(|time| {
            if time.now >= self.at {
                return Poll::Ready(());
            }
            let number = *self.number.get_or_insert_with(|| {
                time.next += 1;
                time.next
            });
            time.sleepers.insert((self.at, number), context.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let _ = TIME.try_with(|time| time.borrow_mut().sleepers.remove(&(self.at, number)));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Elapsed;

pub(crate) async fn timeout<T>(bound: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    let at = Instant::now().checked_add(bound).unwrap_or(Instant(Duration::MAX));
    timeout_at(at, work).await
}

pub(crate) async fn timeout_at<T>(at: Instant, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    let (mut work, mut end) = (pin!(work), pin!(sleep_until(at)));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        end.as_mut().poll(context).map(|()| Err(Elapsed))
    })
    .await
}

/// tokio's own, which tokio checks itself, with a place before each step.
#[derive(Debug, Default)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        point();
        self.0.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        point();
        self.0.notify_waiters();
    }

    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        point();
        self.0.notified()
    }
}

/// The one runtime of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Handle;

impl Handle {
    #[allow(clippy::unnecessary_wraps, reason = "as tokio's")]
    pub(crate) fn try_current() -> Result<Self, ()> {
        Ok(Self)
    }

    #[allow(clippy::unused_self, reason = "as tokio's")]
    pub(crate) fn id(&self) -> u8 {
        0
    }

    #[allow(clippy::unused_self, reason = "as tokio's")]
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        spawn(task)
    }
}
