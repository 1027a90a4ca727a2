//! What is a contender, and how is any of them measured?
//!
//! A [`Lock`] takes and gives back; [`Taken`] turns every one of them into a [`Contender`] that runs pairs, hands a key
//! from waiter to waiter, and holds many locks at once. Who cannot be a `Lock` is a `Contender` itself.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::task::JoinSet;

/// How long a lease lasts: longer than any measurement, so that none ends by itself.
pub(crate) const LEASE: Duration = Duration::from_mins(10);

/// How long a holder keeps the lock that is handed on.
pub(crate) const HOLD: Duration = Duration::from_millis(2);

pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;

/// A lock as its users see it.
pub(crate) trait Lock: Send + Sync + 'static {
    type Held: Send + 'static;

    /// Takes a lock that nobody holds.
    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Held>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;

    /// Waits for a lock that somebody may hold, as the contender's documentation says.
    fn wait(&self, key: &str) -> impl Future<Output = Result<Self::Held>> + Send {
        self.acquire(key)
    }
}

/// What `tasks` did in a slice of time.
pub(crate) struct Pairs {
    pub(crate) per_second: f64,
    /// How long each pair took, in ms.
    pub(crate) took: Vec<f64>,
}

/// Anything that can be measured.
pub(crate) trait Contender {
    /// Takes and gives back, each task a key of its own.
    fn pairs(&self, tasks: usize, slice: Duration) -> Boxed<'_, Pairs>;

    /// Hands one key from waiter to waiter; how long from each release to the next holder, in ms.
    fn hand_offs(&self, _race: Race) -> Option<Boxed<'_, Vec<f64>>> {
        None
    }

    /// Takes this many locks and keeps them as long as the value lives.
    fn hold(&self, _count: usize) -> Option<Boxed<'_, Box<dyn Any>>> {
        None
    }
}

/// How long a key is handed from waiter to waiter.
#[derive(Clone, Copy)]
pub(crate) struct Race {
    pub(crate) waiters: usize,
    pub(crate) hand_offs: usize,
    pub(crate) at_most: Duration,
    pub(crate) number: usize,
}

/// A [`Lock`] as a contender.
pub(crate) struct Taken<L>(pub(crate) Arc<L>);

impl<L: Lock> Taken<L> {
    pub(crate) fn boxed(lock: L) -> Box<dyn Contender> {
        Box::new(Self(Arc::new(lock)))
    }
}

impl<L: Lock> Contender for Taken<L> {
    fn pairs(&self, tasks: usize, slice: Duration) -> Boxed<'_, Pairs> {
        Box::pin(async move {
            let (start, mut all) = (Instant::now(), JoinSet::new());
            for task in 0..tasks {
                all.spawn(pairs_of_one(self.0.clone(), format!("task:{task}"), start + slice));
            }
            let mut took = Vec::new();
            while let Some(one) = all.join_next().await {
                took.extend(one??);
            }
            Ok(Pairs { per_second: took.len() as f64 / start.elapsed().as_secs_f64(), took })
        })
    }

    fn hand_offs(&self, race: Race) -> Option<Boxed<'_, Vec<f64>>> {
        Some(Box::pin(async move {
            let track = Arc::new(Track::new(race));
            let key = format!("race:{}:{}", race.waiters, race.number);
            let mut all = JoinSet::new();
            // One more than the waiters: somebody holds it.
            for _ in 0..=race.waiters {
                all.spawn(run(self.0.clone(), key.clone(), track.clone()));
            }
            let over = tokio::time::timeout(Duration::from_mins(1), async {
                while let Some(one) = all.join_next().await {
                    one??;
                }
                Ok::<_, anyhow::Error>(())
            });
            over.await.context("the race does not end")??;
            Ok(track.waits())
        }))
    }

    fn hold(&self, count: usize) -> Option<Boxed<'_, Box<dyn Any>>> {
        // Nobody gives them back: each call takes others.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        Some(Box::pin(async move {
            let (next, mut all) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
            for _ in 0..16 {
                let (lock, next) = (self.0.clone(), next.clone());
                all.spawn(async move {
                    let mut held = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return Ok::<_, anyhow::Error>(held);
                        }
                        held.push(lock.acquire(&format!("held:{call}:{number}")).await?);
                    }
                });
            }
            let mut held: Vec<L::Held> = Vec::with_capacity(count);
            while let Some(one) = all.join_next().await {
                held.extend(one??);
            }
            Ok(Box::new(held) as Box<dyn Any>)
        }))
    }
}

async fn pairs_of_one<L: Lock>(lock: Arc<L>, key: String, until: Instant) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    loop {
        let start = Instant::now();
        if start >= until {
            return Ok(took);
        }
        let held = lock.acquire(&key).await?;
        lock.release(held).await?;
        took.push(millis(start.elapsed()));
    }
}

/// What the racers share.
pub(crate) struct Track {
    race: Race,
    start: Instant,
    released: Mutex<Option<Instant>>,
    waits: Mutex<Vec<f64>>,
    sections: AtomicUsize,
}

impl Track {
    pub(crate) fn new(race: Race) -> Self {
        let (released, waits, sections) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
        Self { race, start: Instant::now(), released, waits, sections }
    }

    pub(crate) fn over(&self) -> bool {
        self.sections.load(Ordering::SeqCst) >= self.race.hand_offs || self.start.elapsed() >= self.race.at_most
    }

    /// Somebody has the lock: returns the number of its turn.
    pub(crate) fn taken(&self) -> usize {
        if let Some(released) = self.released.lock().expect("nobody panics").take() {
            self.waits.lock().expect("nobody panics").push(millis(released.elapsed()));
        }
        self.sections.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// It is about to be released.
    pub(crate) fn releasing(&self) {
        *self.released.lock().expect("nobody panics") = Some(Instant::now());
    }

    /// Whether somebody else had the lock after this turn.
    pub(crate) fn passed(&self, turn: usize) -> bool {
        self.sections.load(Ordering::SeqCst) > turn || self.over()
    }

    /// Without the first ones, who come while the others still arrive.
    pub(crate) fn waits(&self) -> Vec<f64> {
        let mut waits = self.waits.lock().expect("nobody panics").clone();
        let arriving = (waits.len() / 10).min(5);
        waits.drain(..arriving);
        waits
    }
}

async fn run<L: Lock>(lock: Arc<L>, key: String, track: Arc<Track>) -> Result<()> {
    while !track.over() {
        let held = lock.wait(&key).await?;
        if track.over() {
            return lock.release(held).await;
        }
        let turn = track.taken();
        tokio::time::sleep(HOLD).await;
        track.releasing();
        lock.release(held).await?;
        // Whoever held it stands back until somebody else does, so that a waiter and not the holder is measured.
        for _ in 0..5000 {
            if track.passed(turn) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    Ok(())
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The answer of a lock that should have been free.
pub(crate) fn free<T>(taken: Option<T>) -> Result<T> {
    let Some(taken) = taken else { bail!("a free lock was refused") };
    Ok(taken)
}
