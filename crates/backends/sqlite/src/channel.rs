//! How does a task ask a thread, and what does it know when it stops waiting?
//!
//! A [`Ticket`] travels with the request, a [`Pending`] stays with the caller. Whoever moves the shared state first
//! decides: a request that its caller gave up *before* the thread took it is not done, and the caller knows that for
//! certain; after that, giving up is ambiguous.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use syncguard_core::{BootTime, Clock, ErrorCode, LockError, Result, SystemClock};
use tokio::sync::oneshot;
use tokio::time::Instant;

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const ABANDONED: u8 = 2;

/// How long one call may take: a queue of writers that does not move, or a disk that hangs, must not hang a task.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The thread's end of a call.
#[derive(Debug)]
pub(crate) struct Ticket<T> {
    reply: oneshot::Sender<Result<T>>,
    state: Arc<AtomicU8>,
}

/// The caller's end of a call.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    reply: oneshot::Receiver<Result<T>>,
    state: Arc<AtomicU8>,
    outlives_its_caller: bool,
}

/// Both ends of a call. One that outlives its caller is done even if nobody waits for the answer any more.
pub(crate) fn call<T>(outlives_its_caller: bool) -> (Ticket<T>, Pending<T>) {
    let (sender, receiver) = oneshot::channel();
    let state = Arc::new(AtomicU8::new(WAITING));
    let ticket = Ticket { reply: sender, state: state.clone() };
    (ticket, Pending { reply: receiver, state, outlives_its_caller })
}

impl<T> Ticket<T> {
    /// Takes the request, unless its caller gave it up. Taking it twice is fine.
    pub(crate) fn take(&self) -> bool {
        let taken = self.state.compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        taken.is_ok() || taken == Err(TAKEN)
    }

    pub(crate) fn answer(self, answer: Result<T>) {
        // A caller that left does not mind.
        let _ = self.reply.send(answer);
    }
}

impl<T> Pending<T> {
    /// Waits for the answer, at most for [`CALL_LIMIT`].
    ///
    /// # Cancel safety
    /// Dropping it gives the call up if the thread has not taken it yet.
    pub(crate) async fn answer(mut self) -> Result<T> {
        let begin = SystemClock.boot();
        let mut wait = Duration::from_millis(1);
        loop {
            let moment = Moment::now();
            tokio::select! {
                biased;
                answer = &mut self.reply => {
                    return answer.unwrap_or_else(|_| Err(thread_gone(self.was_taken())));
                }
                () = tokio::time::sleep(wait) => {}
            }
            let gone = SystemClock.boot().since(begin);
            if gone >= CALL_LIMIT {
                return Err(self.give_up());
            }
            if moment.is_of_paused_time() {
                slow_down_paused_time().await;
            } else {
                // In steps, so that a paused clock that was not noticed at first does not jump far.
                wait = (wait * 4).min(CALL_LIMIT.saturating_sub(gone));
            }
        }
    }

    fn was_taken(&self) -> bool {
        self.state.load(Ordering::Acquire) == TAKEN
    }

    fn give_up(&self) -> LockError {
        let certain = self.abandon();
        let error = LockError::new(ErrorCode::NetworkTimeout, "the lock file did not answer within 5 seconds")
            .with_hint("another process may be stopped in the middle of a write, or the disk hangs");
        if certain { error } else { error.ambiguous() }
    }

    /// Whether the request will certainly not be done.
    fn abandon(&self) -> bool {
        if self.outlives_its_caller {
            return false;
        }
        self.state.compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// A moment on tokio's clock, between two readings of the real one.
struct Moment {
    before: BootTime,
    at: Instant,
    after: BootTime,
}

impl Moment {
    fn now() -> Self {
        let (before, at) = (SystemClock.boot(), Instant::now());
        Self { before, at, after: SystemClock.boot() }
    }

    /// Whether tokio's clock has gone by more or less than the real one since: a test has paused it.
    fn is_of_paused_time(&self) -> bool {
        let now = Self::now();
        let gone = now.at - self.at;
        gone > now.after.since(self.before) || gone < now.before.since(self.after)
    }
}

/// Lets a millisecond of real time pass.
///
/// A test that has paused tokio's clock makes it jump from timer to timer while a thread works for us, and every bound
/// of the caller would end at once. The clock stands still while the runtime has blocking work; so it goes about as
/// real time does.
async fn slow_down_paused_time() {
    let pause = || std::thread::sleep(Duration::from_millis(1));
    // It fails only with the runtime.
    let _ = tokio::task::spawn_blocking(pause).await;
}

fn thread_gone(taken: bool) -> LockError {
    let error = LockError::new(ErrorCode::ServiceUnavailable, "the thread that serves the lock file has ended");
    if taken { error.ambiguous() } else { error }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_given_up_in_time_is_not_taken() {
        let (ticket, pending) = call::<()>(false);
        drop(pending);
        assert!(!ticket.take());
    }

    #[test]
    fn a_release_is_taken_even_if_its_caller_left() {
        let (ticket, pending) = call::<()>(true);
        drop(pending);
        assert!(ticket.take());
    }

    #[test]
    fn giving_up_is_certain_before_and_ambiguous_after_the_thread_took_it() {
        let (_ticket, pending) = call::<()>(false);
        assert!(!pending.give_up().is_ambiguous());

        let (ticket, pending) = call::<()>(false);
        assert!(ticket.take() && ticket.take());
        assert!(pending.give_up().is_ambiguous());
    }

    #[tokio::test]
    async fn a_thread_that_died_is_reported() {
        let (ticket, pending) = call::<()>(false);
        drop(ticket);
        let error = pending.answer().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
        assert!(!error.is_ambiguous());
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_does_not_end_a_bound_around_a_call() {
        let (ticket, pending) = call::<u8>(false);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            ticket.answer(Ok(7));
        });
        let bounded = tokio::time::timeout(Duration::from_secs(30), pending.answer()).await;
        assert_eq!(bounded.unwrap().unwrap(), 7);
        thread.join().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_does_not_end_a_call() {
        let (ticket, pending) = call::<u8>(false);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            ticket.answer(Ok(7));
        });
        assert_eq!(pending.answer().await.unwrap(), 7);
        thread.join().unwrap();
    }
}
