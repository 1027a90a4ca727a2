//! How is a lock waited for, in sight of the person who waits?
//!
//! One try first, since most locks are free and then nothing is printed (cron mails any output). If it is held, a view
//! of the holder runs beside the wait: a spinner on a terminal, a line at once and then every 30 seconds in a log. A
//! signal to stop ends the wait and leaves no lock behind.

use std::cell::RefCell;
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::Signal;
use serde::Serialize;
use syncguard::{
    AnyBackend, BootTime, CancellationToken, Clock, ErrorCode, Guard, HashId, Key, Label, LockError, LockRequest,
    Locker, RedactedUrl, SystemClock, Ttl,
};

use crate::config::Backend;
use crate::exit::{Failure, Stage, from_signal};
use crate::holder::{self, Holder, LockObject};
use crate::messages::{self, Asking};
use crate::output::{Output, tenths};
use crate::signals::Signals;
use crate::values::Wait;

/// What is wanted.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
    pub(crate) keep_alive: bool,
    pub(crate) wait: Wait,
    pub(crate) asking: Asking,
}

/// A lock that was got, and how long it took.
pub(crate) struct Taken {
    pub(crate) guard: Guard,
    pub(crate) waited: Duration,
}

/// How long an undone attempt may hold up the exit. On a busy machine two commits to a disk take more than a second, and a lock
/// that is left behind blocks others for its whole lease.
const CLEAN_UP: Duration = Duration::from_secs(3);
/// What a request may take although nobody wants to wait: a slow answer is better than none.
const TO_BE_HEARD: Duration = Duration::from_secs(2);
/// Whoever says less than this wants no wait, rather than a wall.
const SHORT: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(30);
/// A spinner is read by one person; a thousand pods that wait must not read the backend every second.
const LOOK_FOR_SPINNER: Duration = Duration::from_secs(1);
const LOOK_FOR_LOG: Duration = Duration::from_secs(10);
/// Waiters are woken by releases; this bounds what a missed wake-up costs.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Opens the backend; inside the waiting time a backend that is not there yet is waited for.
pub(crate) async fn open(
    backend: &Backend,
    wait: Wait,
    signals: &mut Signals,
    output: Output,
) -> Result<AnyBackend, Failure> {
    let started = SystemClock.boot();
    let mut delay = Duration::from_millis(100);
    let mut next_line = Duration::ZERO;
    loop {
        let opened = tokio::select! {
            biased;
            signal = signals.next_stopping() => return Err(interrupted(signal)),
            opened = within(wait, started, backend.options.open(&backend.url)) => opened,
        };
        let error = match opened {
            Some(Ok(opened)) => return Ok(opened),
            Some(Err(error)) => error,
            None => return Err(no_answer(backend, started)),
        };
        let left = remaining(wait, started);
        if !error.is_transient() || left.is_some_and(|left| left.is_zero()) {
            return Err(Failure::from_lock(&error, Stage::Opening));
        }
        let waited = SystemClock.boot().since(started);
        if waited >= next_line {
            let shown = RedactedUrl::new(&backend.url);
            output.note_if_heard(&format!("waiting for the backend {shown}: {error} (waited {})", tenths(waited)));
            next_line = waited + LINE_EVERY;
        }
        tokio::select! {
            biased;
            signal = signals.next_stopping() => return Err(interrupted(signal)),
            () = tokio::time::sleep(left.map_or(delay, |left| left.min(delay))) => {}
        }
        delay = (delay * 2).min(MAX_DELAY);
    }
}

/// What one exchange may take: the waiting time is a wall, also in front of a server that does not answer. Without any
/// time to wait it still needs some to be heard.
async fn within<T>(wait: Wait, started: BootTime, exchange: impl Future<Output = T>) -> Option<T> {
    match wait {
        Wait::Forever => Some(exchange.await),
        Wait::AtMost(limit) => {
            let limit = if limit < SHORT { TO_BE_HEARD } else { limit };
            let left = limit.saturating_sub(SystemClock.boot().since(started));
            tokio::time::timeout(left, exchange).await.ok()
        }
    }
}

fn no_answer(backend: &Backend, started: BootTime) -> Failure {
    let waited = tenths(SystemClock.boot().since(started));
    let shown = RedactedUrl::new(&backend.url);
    Failure::new(crate::exit::UNAVAILABLE, "unavailable", format!("the backend {shown} did not answer within {waited}"))
        .hint("look at it: syncguard doctor")
}

/// Takes the lock, or says why not.
pub(crate) async fn take(
    locker: &Locker,
    wanted: &Wanted,
    signals: &mut Signals,
    output: Output,
) -> Result<Taken, Failure> {
    let started = SystemClock.boot();
    let cancel = CancellationToken::new();
    let result = tokio::select! {
        biased;
        signal = signals.next_stopping() => Err(interrupted(signal)),
        result = attempt(locker, wanted, &cancel, started, output) => result,
    };
    if result.is_err() {
        cancel.cancel();
        // What was in flight is undone in the background; without this the process would end before it.
        let _ = tokio::time::timeout(CLEAN_UP, locker.drain()).await;
    }
    result
}

pub(crate) fn interrupted(signal: Signal) -> Failure {
    let message = format!("interrupted by {} before the lock was acquired", messages::signal_name(signal));
    Failure::new(from_signal(signal.as_raw()), "interrupted", message).dying_from(signal)
}

async fn attempt(
    locker: &Locker,
    wanted: &Wanted,
    cancel: &CancellationToken,
    started: BootTime,
    output: Output,
) -> Result<Taken, Failure> {
    let no_wait = wanted.wait == Wait::AtMost(Duration::ZERO);
    let first = within(wanted.wait, started, request(locker, wanted, cancel).try_acquire()).await;
    let first = first.ok_or_else(|| {
        let time = tenths(SystemClock.boot().since(started));
        Failure::new(crate::exit::UNAVAILABLE, "unavailable", format!("the backend did not answer within {time}"))
            .hint("look at it: syncguard doctor")
    })?;
    match first {
        Ok(Some(guard)) => return Ok(Taken { guard, waited: Duration::ZERO }),
        Ok(None) if no_wait => {
            let holder = look(locker, &wanted.key, None).await;
            return Err(messages::locked(&wanted.key, holder.as_ref(), None, wanted.asking));
        }
        Ok(None) => {}
        Err(error) if error.is_transient() && !no_wait => {}
        Err(error) => return Err(Failure::from_lock(&error, Stage::Operating)),
    }
    let seen = RefCell::new(None);
    let mut watching = pin!(watch(locker, &wanted.key, started, &seen, output));
    let acquired = tokio::select! {
        biased;
        acquired = patiently(locker, wanted, cancel, started) => acquired,
        () = &mut watching => return Err(Failure::new(crate::exit::INTERNAL, "internal", "the view of the wait ended")),
    };
    let elapsed = SystemClock.boot().since(started);
    match acquired {
        Ok(guard) => Ok(Taken { guard, waited: elapsed }),
        Err(error) if error.code() == ErrorCode::AcquisitionTimeout => {
            let before = seen.borrow().clone();
            let holder = look(locker, &wanted.key, before.as_ref()).await.or(before);
            Err(messages::locked(&wanted.key, holder.as_ref(), Some(elapsed), wanted.asking))
        }
        Err(error) => Err(Failure::from_lock(&error, Stage::Operating)),
    }
}

fn request(locker: &Locker, wanted: &Wanted, cancel: &CancellationToken) -> LockRequest {
    let request = locker
        .lock(wanted.key.as_str())
        .ttl(wanted.ttl.duration())
        .label(wanted.label.as_str())
        .unlimited_retries()
        .max_delay(MAX_DELAY)
        .cancel(cancel.clone());
    if wanted.keep_alive { request.keep_alive() } else { request }
}

async fn patiently(
    locker: &Locker,
    wanted: &Wanted,
    cancel: &CancellationToken,
    started: BootTime,
) -> Result<Guard, LockError> {
    let request = request(locker, wanted, cancel);
    let request = match remaining(wanted.wait, started) {
        Some(left) => request.timeout(left),
        None => request.wait_forever(),
    };
    request.acquire().await
}

fn remaining(wait: Wait, started: BootTime) -> Option<Duration> {
    match wait {
        Wait::AtMost(limit) => Some(limit.saturating_sub(SystemClock.boot().since(started))),
        Wait::Forever => None,
    }
}

/// Looks at the holder, and remembers whether the lease moved since the last look. A failure to look is no failure to
/// wait.
async fn look(locker: &Locker, key: &Key, before: Option<&Holder>) -> Option<Holder> {
    let look = tokio::time::timeout(Duration::from_secs(2), locker.inspect(key.as_str()));
    let info = look.await.ok()?.ok()??;
    let same = before.filter(|before| before.info.fence == info.fence);
    let renewed = same.is_some_and(|before| before.renewed || before.info.expires_at < info.expires_at);
    Some(Holder { info, renewed })
}

/// Shows who is waited for, until the wait ends and this is dropped.
async fn watch(locker: &Locker, key: &Key, started: BootTime, holder: &RefCell<Option<Holder>>, output: Output) {
    let spinner = output.is_watched().then(spinner);
    let pause = if spinner.is_some() { LOOK_FOR_SPINNER } else { LOOK_FOR_LOG };
    let mut next_line = Duration::ZERO;
    loop {
        let before = holder.borrow().clone();
        let seen = look(locker, key, before.as_ref()).await;
        let waited = SystemClock.boot().since(started);
        match &spinner {
            Some(spinner) => spinner.set_message(holder::waiting_briefly(key, seen.as_ref(), waited)),
            None if waited >= next_line => {
                say_waiting(key, seen.as_ref(), waited, output);
                next_line = waited + LINE_EVERY;
            }
            None => {}
        }
        *holder.borrow_mut() = seen.or(before);
        tokio::time::sleep(pause).await;
    }
}

/// A wait for machines; the answer itself comes later, as another object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WaitingEvent {
    event: &'static str,
    key_hash: HashId,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<LockObject>,
    waited_ms: u64,
}

fn say_waiting(key: &Key, seen: Option<&Holder>, waited: Duration, output: Output) {
    if !output.json {
        output.note_if_heard(&holder::waiting(key, seen, waited));
    } else if output.stdout_is_the_childs {
        let holder = seen.map(|seen| LockObject::new(&seen.info, false));
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        output.object(&WaitingEvent { event: "waiting", key_hash: key.hash(), holder, waited_ms });
    }
}

/// A spinner that takes its line away when the wait ends, however it ends.
fn spinner() -> Spinner {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    Spinner(bar)
}

struct Spinner(ProgressBar);

impl Spinner {
    fn set_message(&self, line: String) {
        self.0.set_message(line);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
