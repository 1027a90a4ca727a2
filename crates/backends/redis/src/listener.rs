//! How does this process hear that a lock was released?
//!
//! One connection subscribes to the channels of all keys that somebody here waits for; a channel has the name of its lock. It is a
//! task that keeps what is subscribed equal to what is wanted, reconnects by itself, and feeds core's
//! [`WakeHub`]. Messages are hints: if they are lost, late or forbidden, waiters fall back to their schedule.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use syncguard_core::wake::Interest;
use syncguard_core::{WakeHint, WakeHub};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::router::Router;
use crate::spread;

/// How long a waiter waits for its subscription before it goes on without.
const CONFIRM: Duration = Duration::from_secs(1);
/// How long the server may take to confirm.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a quiet connection is asked whether it is alive.
const PING: Duration = Duration::from_secs(15);
/// The longest pause between two attempts to connect.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// The one listener of a backend.
pub(crate) struct Listener {
    hub: WakeHub,
    wanted: Arc<Wanted>,
    router: Arc<Router>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// What the waiters want and what the task has done about it.
#[derive(Default)]
struct Wanted {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    topics: HashMap<Arc<str>, Topic>,
    /// Topics whose subscription may have to change.
    dirty: Vec<Arc<str>>,
    /// The server forbids it: nobody need ask again.
    refused: bool,
}

#[derive(Default)]
struct Topic {
    confirmed: bool,
    callers: Vec<oneshot::Sender<()>>,
}

impl Wanted {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interest(&self, topic: &str, interest: Interest) {
        let topic: Arc<str> = Arc::from(topic);
        let mut state = self.state();
        match interest {
            Interest::Began => {
                state.topics.insert(topic.clone(), Topic::default());
            }
            Interest::Ended => {
                state.topics.remove(&topic);
            }
        }
        state.dirty.push(topic);
        drop(state);
        self.changed.notify_one();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

impl Listener {
    pub(crate) fn new(router: Arc<Router>) -> Self {
        let wanted = Arc::<Wanted>::default();
        let heard = wanted.clone();
        let hub = WakeHub::new(move |topic, interest| heard.interest(topic, interest));
        Self { hub, wanted, router, task: Mutex::default() }
    }

    /// Registers a waiter; resolves once the server has confirmed, or after a while without.
    pub(crate) async fn wake(&self, topic: &str) -> WakeHint {
        if self.wanted.state().refused {
            return WakeHint::never();
        }
        let hint = self.hub.subscribe(topic);
        self.ensure_task();
        let confirmation = {
            let mut state = self.wanted.state();
            match state.topics.get_mut(topic) {
                Some(known) if !known.confirmed => {
                    let (caller, confirmation) = oneshot::channel();
                    known.callers.push(caller);
                    Some(confirmation)
                }
                _ => None,
            }
        };
        if let Some(confirmation) = confirmation {
            let _ = timeout(CONFIRM, confirmation).await;
        }
        if self.wanted.state().refused { WakeHint::never() } else { hint }
    }

    // Started by the first waiter, and again if the runtime it lived on has ended.
    fn ensure_task(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(run(self.router.clone(), self.hub.clone(), self.wanted.clone())));
        }
    }
}

/// Why a session ended.
enum End {
    Lost,
    Refused,
}

async fn run(router: Arc<Router>, hub: WakeHub, wanted: Arc<Wanted>) {
    let mut pause = Duration::from_millis(50);
    loop {
        wait_until_wanted(&wanted).await;
        if let Some(connector) = router.listening_server().await
            && let Ok(connection) = connector.subscribe().await
        {
            let (sink, stream) = connection.split();
            let mut session = Session::new(sink, &router, &hub, &wanted);
            match session.run(stream).await {
                End::Refused => return refuse(&wanted),
                End::Lost if session.confirmed_any => pause = Duration::from_millis(50),
                End::Lost => {}
            }
        }
        unconfirm_all(&wanted);
        // Releases may have been missed: one waiter of each key looks for itself.
        hub.wake_every_topic();
        sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

async fn wait_until_wanted(wanted: &Wanted) {
    while wanted.state().topics.is_empty() {
        wanted.changed.notified().await;
    }
}

fn unconfirm_all(wanted: &Wanted) {
    for topic in wanted.state().topics.values_mut() {
        topic.confirmed = false;
    }
}

fn refuse(wanted: &Wanted) {
    tracing::warn!(target: "syncguard", "redis does not permit this user to subscribe; waiters poll instead (grant &prefix:*)");
    let mut state = wanted.state();
    state.refused = true;
    for topic in state.topics.values_mut() {
        topic.callers.clear();
    }
}

/// One connection's life.
struct Session<'a> {
    sink: PubSubSink,
    router: &'a Router,
    hub: &'a WakeHub,
    wanted: &'a Wanted,
    /// With the number of processes that listened when we came: how far to spread.
    subscribed: HashMap<Arc<str>, u64>,
    /// Hints that are held back so that many processes do not act on one release.
    due: BTreeSet<(Instant, Arc<str>)>,
    confirmed_any: bool,
}

impl<'a> Session<'a> {
    fn new(sink: PubSubSink, router: &'a Router, hub: &'a WakeHub, wanted: &'a Wanted) -> Self {
        let mut state = wanted.state();
        let topics: Vec<_> = state.topics.keys().cloned().collect();
        state.dirty = topics;
        drop(state);
        Self { sink, router, hub, wanted, subscribed: HashMap::new(), due: BTreeSet::new(), confirmed_any: false }
    }

    async fn run(&mut self, mut messages: PubSubStream) -> End {
        let wanted = self.wanted;
        loop {
            if let Err(end) = self.reconcile().await {
                return end;
            }
            let next_due = self.due.first().map(|(at, _)| *at);
            tokio::select! {
                () = wanted.changed.notified() => {}
                message = messages.next() => match message {
                    Some(message) => self.hear(&message),
                    None => return End::Lost,
                },
                () = sleep_until(next_due.unwrap_or_else(Instant::now)), if next_due.is_some() => self.fire(),
                () = sleep(PING) => {
                    let pong = timeout(ANSWER, self.sink.ping::<redis::Value>()).await;
                    if !matches!(pong, Ok(Ok(_))) {
                        return End::Lost;
                    }
                }
            }
        }
    }

    /// Makes what is subscribed equal to what is wanted, for the topics that changed.
    async fn reconcile(&mut self) -> Result<(), End> {
        let (mut add, mut remove) = (HashSet::new(), HashSet::new());
        {
            let mut state = self.wanted.state();
            for topic in std::mem::take(&mut state.dirty) {
                match (state.topics.contains_key(&topic), self.subscribed.contains_key(&topic)) {
                    (true, false) => {
                        add.insert(topic);
                    }
                    (false, true) => {
                        remove.insert(topic);
                    }
                    // Left and came back before anything was sent.
                    (true, true) => confirm(&mut state, &topic),
                    (false, false) => {}
                }
            }
        }
        if !add.is_empty() {
            let names: Vec<&str> = add.iter().map(AsRef::as_ref).collect();
            answered(timeout(ANSWER, self.sink.subscribe(&names[..])).await)?;
            self.confirm_all(&add);
            self.confirmed_any = true;
            let mut listeners = self.router.listeners(&names, ANSWER).await.into_iter();
            self.subscribed.extend(names.iter().map(|name| (Arc::from(*name), listeners.next().unwrap_or(0))));
        }
        if !remove.is_empty() {
            let names: Vec<&str> = remove.iter().map(AsRef::as_ref).collect();
            answered(timeout(ANSWER, self.sink.unsubscribe(&names[..])).await)?;
            self.subscribed.retain(|topic, _| !remove.contains(topic));
        }
        Ok(())
    }

    fn confirm_all(&self, topics: &HashSet<Arc<str>>) {
        let mut state = self.wanted.state();
        for topic in topics {
            confirm(&mut state, topic);
        }
    }

    fn hear(&mut self, message: &redis::Msg) {
        let topic: Arc<str> = Arc::from(message.get_channel_name());
        // A newer release replaces a hint that is still held back.
        self.due.retain(|(_, waiting)| *waiting != topic);
        let listeners = self.subscribed.get(&topic).copied().unwrap_or(0);
        let delay = spread::delay(listeners, spread::random());
        if delay.is_zero() {
            self.hub.wake(&topic);
        } else {
            self.due.insert((Instant::now() + delay, topic));
        }
    }

    fn fire(&mut self) {
        let now = Instant::now();
        while let Some((at, topic)) = self.due.first() {
            if *at > now {
                return;
            }
            self.hub.wake(topic);
            self.due.pop_first();
        }
    }
}

fn confirm(state: &mut State, topic: &Arc<str>) {
    if let Some(known) = state.topics.get_mut(topic) {
        known.confirmed = true;
        for caller in known.callers.drain(..) {
            let _ = caller.send(());
        }
    }
}

fn answered(answer: Result<redis::RedisResult<()>, tokio::time::error::Elapsed>) -> Result<(), End> {
    match answer {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) if error.code() == Some("NOPERM") => Err(End::Refused),
        _ => Err(End::Lost),
    }
}
