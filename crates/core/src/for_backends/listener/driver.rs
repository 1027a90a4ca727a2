//! How is one connection after another used, and on which runtime?
//!
//! A task that does what [`Subscriptions`] says: it connects while somebody waits, sends one order at a time while it
//! reads messages, asks a silent connection whether it lives, and begins again when it does not. The task lives on the
//! runtime of a waiter. When that runtime ends, the task is dropped with it and starts again on the runtime of another
//! waiter.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::subscriptions::{Order, Subscriptions, Topic};
use super::{ANSWER, Commands, Ended, Heard, Messages, PING, Settings, Source};
use crate::WakeHub;
use crate::sync::{Handle, Instant, JoinHandle, Mutex, MutexGuard, Notify, sleep, sleep_until};
use crate::wake::Interest;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// A process has one runtime, a test program one after the other: more than these are not remembered.
const MAX_RUNTIMES: usize = 8;

pub(super) struct Inner<S> {
    pub(super) hub: WakeHub,
    pub(super) settings: Settings,
    source: S,
    shared: Arc<Shared>,
    host: Mutex<Host>,
}

/// What waiters write and the task reads. Apart from [`Inner`], because the hub holds it too.
struct Shared {
    subscriptions: Mutex<Subscriptions>,
    /// Rings when `subscriptions` may have an order.
    changed: Notify,
}

/// Where the task lives. Never locked while something is spawned: a runtime that ends drops what it is given at once,
/// and that leads back in here.
#[derive(Default)]
struct Host {
    task: Option<JoinHandle<()>>,
    /// A task has claimed the work. Two may be spawned at once; the second finds this set and ends.
    claimed: bool,
    /// Runtimes that waiters came from: where the task can go when its own runtime ends. The newest last.
    runtimes: Vec<Handle>,
    /// The listener was dropped: nothing starts any more.
    stopped: bool,
}

impl<S: Source> Inner<S> {
    pub(super) fn new(source: S) -> Arc<Self> {
        let settings = source.settings();
        let shared =
            Arc::new(Shared { subscriptions: Mutex::new(Subscriptions::new(settings)), changed: Notify::new() });
        let heard = shared.clone();
        let hub = WakeHub::new(move |topic, interest| heard.interest(topic, interest));
        Arc::new(Self { hub, settings, source, shared, host: Mutex::default() })
    }

    pub(super) fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.shared.subscriptions()
    }

    /// Starts the task where the caller is, unless it runs.
    pub(super) fn keep_running(self: &Arc<Self>) {
        let Ok(here) = Handle::try_current() else { return };
        let mut host = self.host();
        if host.runtimes.last().is_none_or(|last| last.id() != here.id()) {
            host.runtimes.retain(|known| known.id() != here.id());
            if host.runtimes.len() == MAX_RUNTIMES {
                host.runtimes.remove(0);
            }
            host.runtimes.push(here.clone());
        }
        let runs = host.task.as_ref().is_some_and(|task| !task.is_finished());
        drop(host);
        if !runs {
            self.start(&here);
        }
    }

    fn start(self: &Arc<Self>, runtime: &Handle) {
        let task = runtime.spawn(run(self.clone(), MoveOn(Arc::downgrade(self))));
        let mut host = self.host();
        if host.stopped {
            drop(host);
            task.abort();
        } else if !task.is_finished() && host.task.as_ref().is_none_or(JoinHandle::is_finished) {
            host.task = Some(task);
        }
    }

    /// Whether this task is the one that does the work.
    fn claim(&self) -> bool {
        !std::mem::replace(&mut self.host().claimed, true)
    }

    /// Ends the task for good.
    pub(super) fn stop(&self) {
        let mut host = self.host();
        host.stopped = true;
        host.runtimes.clear();
        let task = host.task.take();
        drop(host);
        if let Some(task) = task {
            task.abort();
        }
    }

    /// The task was dropped with its runtime: somebody may still wait on another one.
    fn move_on(self: &Arc<Self>) {
        if self.subscriptions().is_refused() {
            return;
        }
        let next = {
            let mut host = self.host();
            if host.stopped { None } else { host.runtimes.pop() }
        };
        // The runtime that ended is tried as well, since nobody knows which one it was: it drops what it is given,
        // which leads here again with one runtime less.
        let Some(runtime) = next else { return };
        self.start(&runtime);
        let mut host = self.host();
        if !host.stopped && host.task.as_ref().is_some_and(|task| !task.is_finished()) {
            host.runtimes.push(runtime);
        }
    }

    fn wake(&self, topics: impl IntoIterator<Item = Topic>) {
        for topic in topics {
            self.hub.wake(&topic);
        }
    }

    fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    // Every change is one step: a panic elsewhere leaves the value right.
    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interest(&self, topic: &str, interest: Interest) {
        match interest {
            Interest::Began => self.subscriptions().wanted(topic),
            Interest::Ended => self.subscriptions().unwanted(topic, Instant::now()),
        }
        self.changed.notify_one();
    }
}

/// Moves the work on when the task that does it is dropped, also before its first step.
struct MoveOn<S: Source>(Weak<Inner<S>>);

impl<S: Source> Drop for MoveOn<S> {
    fn drop(&mut self) {
        let Some(inner) = self.0.upgrade() else { return };
        inner.host().claimed = false;
        // A task that panicked would panic again: the next waiter starts it, and nobody else.
        if !std::thread::panicking() {
            inner.move_on();
        }
    }
}

async fn run<S: Source>(inner: Arc<Inner<S>>, move_on: MoveOn<S>) {
    if !inner.claim() {
        // Another task has the work.
        std::mem::forget(move_on);
        return;
    }
    let _move_on = move_on;
    let mut pause = FIRST_PAUSE;
    loop {
        // Also at the start: the task may have moved here without having seen the end of its connection.
        let woken = inner.subscriptions().lost();
        inner.wake(woken);
        while !inner.subscriptions().has_waiters() {
            inner.shared.changed.notified().await;
        }
        let ended = match inner.source.connect().await {
            Ok((commands, messages)) => {
                inner.subscriptions().connected();
                let ended = Session::new(&inner, commands, messages).run().await;
                if inner.subscriptions().has_worked() {
                    pause = FIRST_PAUSE;
                }
                ended
            }
            Err(Ended::Lost) => {
                inner.subscriptions().unreachable();
                Some(Ended::Lost)
            }
            Err(Ended::Refused) => Some(Ended::Refused),
        };
        match ended {
            None => {}
            Some(Ended::Lost) => {
                sleep(pause).await;
                pause = (pause * 2).min(inner.settings.longest_pause);
            }
            Some(Ended::Refused) => {
                let woken = inner.subscriptions().refuse();
                inner.wake(woken);
                return;
            }
        }
    }
}

/// One connection's life.
struct Session<'a, S: Source> {
    inner: &'a Inner<S>,
    commands: S::Commands,
    messages: S::Messages,
    /// When the server was last heard.
    heard_at: Instant,
}

impl<'a, S: Source> Session<'a, S> {
    fn new(inner: &'a Inner<S>, commands: S::Commands, messages: S::Messages) -> Self {
        Self { inner, commands, messages, heard_at: Instant::now() }
    }

    /// Listens until the connection ends, or (`None`) until nobody waits any more.
    async fn run(mut self) -> Option<Ended> {
        loop {
            let order = self.inner.subscriptions().next_order(Instant::now());
            let idle = order.is_none() && self.inner.subscriptions().is_idle();
            if idle && self.inner.settings.close_when_idle {
                return None;
            }
            let silent = self.heard_at.elapsed() >= PING;
            let outcome = match order {
                Some(order) => self.send(order).await,
                None if silent => self.ping().await,
                None => self.listen().await,
            };
            if let Err(ended) = outcome {
                return Some(ended);
            }
        }
    }

    /// Sends an order, and hears messages until it is answered.
    async fn send(&mut self, order: Order) -> Result<(), Ended> {
        let Self { inner, commands, messages, heard_at } = self;
        match order {
            Order::Subscribe(topics) => {
                let command = commands.subscribe(&topics);
                let confirmed = converse(inner, command, messages, heard_at).await?;
                let woken: Vec<Topic> = {
                    let mut subscriptions = inner.subscriptions();
                    confirmed.iter().filter_map(|topic| subscriptions.confirmed(topic)).collect()
                };
                inner.wake(woken);
            }
            Order::Unsubscribe(topics) => {
                converse(inner, commands.unsubscribe(&topics), messages, heard_at).await?;
                inner.subscriptions().unsubscribed(&topics);
            }
        }
        Ok(())
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        let Self { inner, commands, messages, heard_at } = self;
        converse(inner, commands.ping(), messages, heard_at).await
    }

    /// Hears one message, or returns because something else is to be done.
    async fn listen(&mut self) -> Result<(), Ended> {
        let Self { inner, messages, heard_at, .. } = self;
        let (moment, answer_due) = {
            let mut subscriptions = inner.subscriptions();
            (subscriptions.next_moment(), subscriptions.answer_due())
        };
        let ping_at = *heard_at + PING;
        tokio::select! {
            heard = messages.next() => {
                *heard_at = Instant::now();
                hear(inner, heard?);
            }
            () = inner.shared.changed.notified() => {}
            () = sleep_until(moment.map_or(ping_at, |moment| moment.min(ping_at))) => fire(inner),
            () = sleep_until(answer_due.unwrap_or(ping_at)), if answer_due.is_some() => return Err(Ended::Lost),
        }
        Ok(())
    }
}

/// Waits for the answer to a command, and hears messages meanwhile: some drivers answer nothing unless messages are
/// read.
async fn converse<S: Source, T>(
    inner: &Inner<S>,
    command: impl Future<Output = Result<T, Ended>>,
    messages: &mut S::Messages,
    heard_at: &mut Instant,
) -> Result<T, Ended> {
    let deadline = Instant::now() + ANSWER;
    let mut command = std::pin::pin!(command);
    loop {
        let due = inner.subscriptions().next_due();
        tokio::select! {
            answer = &mut command => {
                *heard_at = Instant::now();
                return answer;
            }
            heard = messages.next() => {
                *heard_at = Instant::now();
                hear(inner, heard?);
            }
            () = sleep_until(due.unwrap_or(deadline)), if due.is_some_and(|at| at < deadline) => fire(inner),
            () = sleep_until(deadline) => return Err(Ended::Lost),
        }
    }
}

fn hear<S: Source>(inner: &Inner<S>, heard: Heard) {
    let mut subscriptions = inner.subscriptions();
    let woken: Vec<Topic> = match heard {
        Heard::Confirmed(topics) => topics.iter().filter_map(|topic| subscriptions.confirmed(topic)).collect(),
        Heard::Released { topic, hold_back } => {
            let due = (!hold_back.is_zero()).then(|| Instant::now() + hold_back);
            subscriptions.released(&topic, due).into_iter().collect()
        }
        Heard::Taken(topic) => {
            subscriptions.taken(&topic);
            Vec::new()
        }
        Heard::Nothing => Vec::new(),
    };
    drop(subscriptions);
    inner.wake(woken);
}

fn fire<S: Source>(inner: &Inner<S>) {
    let woken = inner.subscriptions().due(Instant::now());
    inner.wake(woken);
}
