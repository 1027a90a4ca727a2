//! How does an event reach a sink that must not be able to do harm?
//!
//! Through a bounded queue to a thread of its own. The lock operation only ever tries to enqueue.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use super::deny::is_sensitive;
use super::event::LockEvent;

/// Events that may wait for a slow sink before the next ones are lost.
const QUEUE: usize = 4096;

enum Message {
    Event(LockEvent),
    Flush(SyncSender<()>),
}

pub(super) struct Pipe {
    queue: SyncSender<Message>,
    lost: AtomicU64,
}

impl Pipe {
    pub(super) fn start(
        reveal: impl FnMut(&LockEvent) -> bool + Send + 'static,
        sink: impl FnMut(&LockEvent) + Send + 'static,
    ) -> Self {
        let (queue, messages) = sync_channel(QUEUE);
        // Without a thread the queue has no reader: every event counts as lost and nothing else changes.
        let _ =
            thread::Builder::new().name("syncguard-telemetry".into()).spawn(move || deliver(&messages, reveal, sink));
        Self { queue, lost: AtomicU64::new(0) }
    }

    pub(super) fn send(&self, event: LockEvent) {
        if self.queue.try_send(Message::Event(event)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn flush(&self, patience: Duration) -> bool {
        const NAP: Duration = Duration::from_millis(1);
        let (done, wait) = sync_channel(1);
        let mut message = Message::Flush(done);
        let mut left = patience;
        loop {
            message = match self.queue.try_send(message) {
                Ok(()) => return wait.recv_timeout(left).is_ok(),
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(message)) => message,
            };
            if left.is_zero() {
                return false;
            }
            thread::sleep(NAP);
            left = left.saturating_sub(NAP);
        }
    }
}

fn deliver(messages: &Receiver<Message>, mut reveal: impl FnMut(&LockEvent) -> bool, mut sink: impl FnMut(&LockEvent)) {
    for message in messages {
        match message {
            Message::Event(event) => {
                let public = event.without_names();
                // A panic costs this event. State that the closures left half-changed is theirs to bear.
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let shown = if reveal(&public) { with_allowed_names(event) } else { public };
                    sink(&shown);
                }));
            }
            Message::Flush(done) => {
                let _ = done.try_send(());
            }
        }
    }
}

/// Release and extend name no key, so whether their lock id belongs to a deny-listed one cannot be told: it stays
/// hidden.
fn with_allowed_names(event: LockEvent) -> LockEvent {
    if event.key.as_deref().is_some_and(|key| !is_sensitive(key)) { event } else { event.without_names() }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipe({} lost)", self.lost())
    }
}
