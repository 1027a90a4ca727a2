//! What is still being done that nobody awaits?
//!
//! Releases of dropped guards and clean-up after abandoned attempts. A drain waits for what was there when it was
//! called: what is started later does not keep it, so a drain ends under steady traffic, and any number of drains may
//! run at once.

use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use crate::sync::{Handle, Mutex};

/// The tasks of one locker that nobody awaits.
#[derive(Default)]
pub(crate) struct Background(Mutex<Generations>);

/// Tasks are counted in generations: a drain closes the present one and waits for all that are closed.
struct Generations {
    /// Every running task of the present generation holds a clone; the last clone that is dropped ends it.
    present: Arc<watch::Sender<()>>,
    /// Generations that a drain closed and that had not ended when last looked at.
    closed: Vec<watch::Receiver<()>>,
}

impl Default for Generations {
    fn default() -> Self {
        Self { present: Arc::new(watch::Sender::new(())), closed: Vec::new() }
    }
}

impl Background {
    /// Runs a task on the runtime that the caller was made on. Without one nothing runs, and the lease ends the lock.
    pub(crate) fn spawn(&self, runtime: Option<&Handle>, task: impl Future<Output = ()> + Send + 'static) {
        let Some(runtime) = runtime else { return };
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner).present.clone();
        // A runtime that is shutting down drops the task, and with it its share of the generation.
        runtime.spawn(async move {
            task.await;
            drop(counted);
        });
    }

    /// Waits for every task that was started before the call.
    pub(crate) async fn drain(&self) {
        for mut generation in self.close() {
            // It never changes; the error says that the last task is gone.
            while generation.changed().await.is_ok() {}
        }
    }

    fn close(&self) -> Vec<watch::Receiver<()>> {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present = std::mem::replace(&mut generations.present, Arc::new(watch::Sender::new(()))).subscribe();
        generations.closed.retain(|closed| closed.has_changed().is_ok());
        generations.closed.push(present);
        generations.closed.clone()
    }
}

#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    fn start(background: &Background) -> oneshot::Sender<()> {
        let (end, ended) = oneshot::channel::<()>();
        background.spawn(Some(&Handle::current()), async {
            let _ = ended.await;
        });
        end
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_what_was_there_and_for_nothing_later() {
        let background = Arc::new(Background::default());
        let early = start(&background);
        let drained = tokio::spawn({
            let background = background.clone();
            async move { background.drain().await }
        });
        tokio::task::yield_now().await;
        let _later = start(&background);
        assert!(!drained.is_finished());

        drop(early);

        timeout(Duration::from_secs(1), drained).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn drains_at_the_same_time_all_wait_and_all_end() {
        let background = Arc::new(Background::default());
        let task = start(&background);
        let drains: Vec<_> = (0..8)
            .map(|_| {
                let background = background.clone();
                tokio::spawn(async move { background.drain().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(drains.iter().all(|drain| !drain.is_finished()), "a second drain waits as the first does");

        drop(task);

        for drain in drains {
            timeout(Duration::from_secs(1), drain).await.unwrap().unwrap();
        }
        timeout(Duration::from_secs(1), background.drain()).await.unwrap();
    }
}
