//! How long do all the locks of one run last?
//!
//! As long as the first of them to end: `--also` takes several, and the loss of one is the loss of all.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use syncguard::{Guard, LossReason};

/// The locks of one run, in the order in which they were taken.
pub(crate) struct Locks {
    guards: Vec<Guard>,
    /// Where the lock of KEY stands among them.
    main: usize,
}

impl Locks {
    pub(crate) fn new(guards: Vec<Guard>, main: usize) -> Self {
        Self { guards, main }
    }

    /// The lock of KEY.
    pub(crate) fn main(&self) -> &Guard {
        &self.guards[self.main]
    }

    pub(crate) fn all(&self) -> &[Guard] {
        &self.guards
    }

    pub(crate) fn into_all(self) -> Vec<Guard> {
        self.guards
    }

    /// What is left of the shortest lease.
    pub(crate) fn remaining(&self) -> Duration {
        self.guards.iter().map(|guard| guard.remaining()).min().unwrap_or(Duration::ZERO)
    }

    pub(crate) fn are_held(&self) -> bool {
        self.guards.iter().all(|guard| guard.is_held())
    }

    /// Resolves to the first lock that somebody asks for.
    pub(crate) async fn asked_to_release(&self) -> &Guard {
        let waits = self.guards.iter().map(|guard| guard.asked_to_release());
        &self.guards[first(waits).await]
    }

    /// Resolves to the first lock that has no more than this left, or is lost.
    pub(crate) async fn remaining_below(&self, threshold: Duration) -> (&Guard, Option<LossReason>) {
        let waits = self.guards.iter().map(|guard| guard.remaining_below(threshold));
        let guard = &self.guards[first(waits).await];
        (guard, guard.loss())
    }
}

/// Which of them is ready first.
async fn first<F: Future<Output = ()>>(waits: impl Iterator<Item = F>) -> usize {
    let mut waits: Vec<Pin<Box<F>>> = waits.map(Box::pin).collect();
    poll_fn(|context| {
        let first = waits.iter_mut().position(|wait| wait.as_mut().poll(context).is_ready());
        first.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
