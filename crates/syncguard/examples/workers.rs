//! Workers of which one leads, and a successor when it steps down or dies.
//!
//! The term of a leader is its fence. What it writes carries the term, so that the place refuses a leader that was
//! deposed and does not know it yet. `cargo run -p syncguard --features fenced --example workers`

use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard::fenced::{HighWater, MemoryMarks};
use syncguard::{CancellationToken, Fence, LockError, LockHandle, Locker};

/// Where leaders write: who, in which term. A database, in a real program, with one of the guards for it.
#[derive(Clone, Default)]
pub(crate) struct Outbox {
    marks: Arc<MemoryMarks>,
    pub(crate) lines: Arc<Mutex<Vec<(u32, Fence)>>>,
}

impl Outbox {
    async fn write(&self, worker: u32, lock: &LockHandle) -> bool {
        let accepted = self.marks.advance(lock.key(), lock.fence()).await.is_ok();
        if accepted && let Ok(mut lines) = self.lines.lock() {
            lines.push((worker, lock.fence()));
        }
        accepted
    }
}

/// Leads whenever it is its turn, until it is told to stop.
pub(crate) async fn worker(
    name: u32,
    locker: Locker,
    outbox: Outbox,
    stop: CancellationToken,
) -> Result<(), LockError> {
    let election = locker.elect("leader:mailer").ttl(Duration::from_secs(3)).label(format!("worker-{name}"));
    let campaign = election.cancel(stop.clone());
    let led = campaign.lead(async |lock| {
        // Dropped when the leadership is lost, and begun anew in the next term of this worker.
        while !stop.is_cancelled() && outbox.write(name, &lock).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    match led.await {
        Err(error) if stop.is_cancelled() && error.code() == syncguard::ErrorCode::Aborted => Ok(()),
        led => led,
    }
}

/// Three workers; whoever leads is told to stop, one after the other. Returns who led, in order.
pub(crate) async fn story(url: &str) -> Result<Vec<u32>, Box<dyn std::error::Error>> {
    let (locker, outbox) = (syncguard::connect(url).await?, Outbox::default());
    let start = |name| {
        let stop = CancellationToken::new();
        (name, stop.clone(), tokio::spawn(worker(name, locker.clone(), outbox.clone(), stop)))
    };
    let mut workers: Vec<_> = (1..=3).map(start).collect();
    let mut led = Vec::new();
    while !workers.is_empty() {
        let leader = outbox.lines.lock().ok().and_then(|lines| lines.last().map(|(name, _)| *name));
        if let Some(at) = workers.iter().position(|(name, ..)| Some(*name) == leader) {
            let (name, stop, task) = workers.swap_remove(at);
            led.push(name);
            stop.cancel();
            task.await??;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(led)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("SYNCGUARD_URL").unwrap_or_else(|_| "memory:".to_owned());
    println!("they led in this order: {:?}", story(&url).await?);
    Ok(())
}
