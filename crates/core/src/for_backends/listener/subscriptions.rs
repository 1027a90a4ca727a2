//! Which topics should the server know, which does it know, and who must be woken?
//!
//! A value with pure methods: no connection, no sleep, no clock. The loop in [`listener`](super) tells it what happened
//! and does what it answers. Methods that return topics return those whose waiters must be woken **after** the lock on
//! this value is given back, because the hub calls in here with its own lock held.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{ANSWER, Settings};
use crate::sync::Instant;

/// A name that waiters wait for.
pub(super) type Topic = Arc<str>;

/// What the server must be told next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    Subscribe(Vec<Topic>),
    Unsubscribe(Vec<Topic>),
}

/// What a new waiter does.
pub(super) enum Entry {
    /// Releases are noticed already.
    Confirmed,
    /// Resolves when they are.
    Wait(oneshot::Receiver<()>),
    /// There is no connection now: it goes on at once, and is woken when there is one.
    GoOn,
    /// There will be no hints for it.
    Never,
}

#[allow(clippy::struct_excessive_bools, reason = "independent facts, each with one writer")]
pub(super) struct Subscriptions {
    settings: Settings,
    /// Topics that somebody waits for, and topics that the server has not been told to forget yet.
    topics: HashMap<Topic, State>,
    /// Topics whose `wanted` and `stage` may disagree: the only ones that an order must look at.
    changed: VecDeque<Topic>,
    /// Topics without waiters, by the moment at which the server is told.
    lingering: BTreeSet<(Instant, Topic)>,
    /// Topics in the order in which the server was asked. Entries may be outdated; `stage` decides.
    asked: VecDeque<(Instant, Topic)>,
    /// Hints that are held back so that not all processes act on one release, by the moment at which they are due.
    held_back: BTreeSet<(Instant, Topic)>,
    /// How many topics the server knows or is being told: never more than the settings allow.
    on_server: usize,
    /// Somebody found no room: when a topic leaves, all must be looked at again.
    crowded: bool,
    /// The last attempt to connect failed and none has succeeded since: nobody need wait for a confirmation.
    down: bool,
    /// The present connection has confirmed a topic: after its end the next attempt comes soon.
    worked: bool,
    /// The server forbids it: nobody need ask again.
    refused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The server does not know the topic.
    Absent,
    /// It was told, and has not confirmed.
    Asked,
    /// From here on releases are noticed.
    Confirmed,
    /// It is being told to forget the topic; nothing else may be sent about it until that is done.
    Leaving,
}

struct State {
    wanted: bool,
    stage: Stage,
    /// A waiter stopped waiting for the confirmation, several wait for it, or a confirmed subscription was lost: a
    /// release in between was heard by nobody, so the confirmation itself is a hint.
    wake_when_confirmed: bool,
    /// Waiters that wait for the confirmation.
    waiting: Vec<oneshot::Sender<()>>,
    /// Its entry in `held_back`.
    due: Option<Instant>,
}

impl State {
    fn new() -> Self {
        Self { wanted: true, stage: Stage::Absent, wake_when_confirmed: false, waiting: Vec::new(), due: None }
    }
}

impl Subscriptions {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            topics: HashMap::new(),
            changed: VecDeque::new(),
            lingering: BTreeSet::new(),
            asked: VecDeque::new(),
            held_back: BTreeSet::new(),
            on_server: 0,
            crowded: false,
            down: false,
            worked: false,
            refused: false,
        }
    }

    /// The first waiter of a topic arrived.
    pub(super) fn wanted(&mut self, topic: &str) {
        let topic: Topic = Arc::from(topic);
        self.topics.entry(topic.clone()).or_insert_with(State::new).wanted = true;
        self.changed.push_back(topic);
    }

    /// The last waiter of a topic left.
    pub(super) fn unwanted(&mut self, topic: &str, now: Instant) {
        let Some((topic, state)) = self.topics.get_key_value(topic) else { return };
        let (topic, known) = (topic.clone(), state.stage != Stage::Absent);
        if known {
            self.lingering.insert((now + self.settings.linger, topic.clone()));
        } else {
            self.changed.push_back(topic.clone());
        }
        if let Some(state) = self.topics.get_mut(&topic) {
            state.wanted = false;
            state.waiting.clear();
        }
    }

    /// A waiter of a wanted topic asks whether it must wait for the confirmation.
    pub(super) fn enter(&mut self, topic: &str) -> Entry {
        let room = self.on_server < self.settings.max_topics;
        let Some(state) = self.topics.get_mut(topic).filter(|_| !self.refused) else { return Entry::Never };
        match state.stage {
            Stage::Confirmed => Entry::Confirmed,
            Stage::Absent if !room => Entry::Never,
            _ if self.down => {
                state.wake_when_confirmed = true;
                Entry::GoOn
            }
            _ => {
                // Only the first waiter looks again by itself, and it may leave before the confirmation comes.
                state.wake_when_confirmed |= !state.waiting.is_empty();
                let (caller, confirmation) = oneshot::channel();
                state.waiting.push(caller);
                Entry::Wait(confirmation)
            }
        }
    }

    /// A waiter stopped waiting for the confirmation.
    pub(super) fn went_on(&mut self, topic: &str) {
        if let Some(state) = self.topics.get_mut(topic)
            && state.stage != Stage::Confirmed
        {
            state.wake_when_confirmed = true;
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether there is anything to listen for, or still to be said.
    pub(super) fn is_idle(&self) -> bool {
        self.topics.is_empty()
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.topics.values().any(|state| state.wanted)
    }

    /// A connection is there. It knows no topic yet.
    pub(super) fn connected(&mut self) {
        self.down = false;
        self.worked = false;
    }

    /// Whether the present connection, or the last one, ever confirmed a topic.
    pub(super) fn has_worked(&self) -> bool {
        self.worked
    }

    /// What to tell the server next. Additions first: somebody waits for them.
    pub(super) fn next_order(&mut self, now: Instant) -> Option<Order> {
        while let Some((at, _)) = self.lingering.first()
            && *at <= now
        {
            self.changed.extend(self.lingering.pop_first().map(|(_, topic)| topic));
        }
        // A topic may have changed more than once.
        let (mut add, mut remove) = (Vec::new(), BTreeSet::new());
        for topic in std::mem::take(&mut self.changed) {
            let Some(state) = self.topics.get_mut(&topic) else { continue };
            match (state.wanted, state.stage) {
                (true, Stage::Absent) if self.on_server < self.settings.max_topics => {
                    state.stage = Stage::Asked;
                    self.on_server += 1;
                    self.asked.push_back((now, topic.clone()));
                    add.push(topic);
                }
                (true, Stage::Absent) => self.crowded = true,
                (false, Stage::Absent) => drop(self.topics.remove(&topic)),
                (false, Stage::Asked | Stage::Confirmed) => drop(remove.insert(topic)),
                // Wanted again before anything was sent; or the order on its way decides.
                (true, Stage::Asked | Stage::Confirmed) | (_, Stage::Leaving) => {}
            }
        }
        if !add.is_empty() {
            self.changed.extend(remove);
            return Some(Order::Subscribe(add));
        }
        for topic in &remove {
            if let Some(state) = self.topics.get_mut(topic) {
                state.stage = Stage::Leaving;
            }
        }
        (!remove.is_empty()).then(|| Order::Unsubscribe(remove.into_iter().collect()))
    }

    /// The server confirmed: from now on releases of the topic are noticed.
    #[must_use]
    pub(super) fn confirmed(&mut self, topic: &str) -> Option<Topic> {
        let (topic, _) = self.topics.get_key_value(topic)?;
        let topic = topic.clone();
        let state = self.topics.get_mut(&topic).filter(|state| state.stage == Stage::Asked)?;
        state.stage = Stage::Confirmed;
        self.worked = true;
        for caller in state.waiting.drain(..) {
            let _ = caller.send(());
        }
        std::mem::take(&mut state.wake_when_confirmed).then_some(topic)
    }

    /// The server forgot these topics.
    pub(super) fn unsubscribed(&mut self, topics: &[Topic]) {
        for topic in topics {
            if let Some(state) = self.topics.get_mut(topic).filter(|state| state.stage == Stage::Leaving) {
                state.stage = Stage::Absent;
                self.on_server -= 1;
                // Somebody may want it again by now; otherwise the next order drops it.
                self.changed.push_back(topic.clone());
            }
        }
        if std::mem::take(&mut self.crowded) {
            let waiting = self.topics.iter().filter(|(_, state)| state.stage == Stage::Absent);
            self.changed.extend(waiting.map(|(topic, _)| topic.clone()));
        }
    }

    /// A release was heard. A newer one replaces a hint that is still held back.
    #[must_use]
    pub(super) fn released(&mut self, topic: &str, due: Option<Instant>) -> Option<Topic> {
        self.taken(topic);
        let (topic, _) = self.topics.get_key_value(topic)?;
        let topic = topic.clone();
        let Some(due) = due else { return Some(topic) };
        self.topics.get_mut(&topic)?.due = Some(due);
        self.held_back.insert((due, topic));
        None
    }

    /// Somebody else took the lock: a hint that is still held back is of no use any more.
    pub(super) fn taken(&mut self, topic: &str) {
        let Some((topic, _)) = self.topics.get_key_value(topic) else { return };
        let topic = topic.clone();
        if let Some(due) = self.topics.get_mut(&topic).and_then(|state| state.due.take()) {
            self.held_back.remove(&(due, topic));
        }
    }

    /// Hints that have been held back for long enough.
    #[must_use]
    pub(super) fn due(&mut self, now: Instant) -> Vec<Topic> {
        let mut due = Vec::new();
        while self.held_back.first().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.held_back.pop_first().map(|(_, topic)| topic));
        }
        for topic in &due {
            if let Some(state) = self.topics.get_mut(topic) {
                state.due = None;
            }
        }
        due
    }

    /// When the next hint that is held back becomes due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held_back.first().map(|(at, _)| *at)
    }

    /// When the loop must look again although nothing happened: a hint becomes due, or a topic has lingered.
    pub(super) fn next_moment(&self) -> Option<Instant> {
        let lingered = self.lingering.first().map(|(at, _)| *at);
        self.next_due().into_iter().chain(lingered).min()
    }

    /// When the silence about a topic that was asked for means that the connection is dead.
    pub(super) fn answer_due(&mut self) -> Option<Instant> {
        while let Some((at, topic)) = self.asked.front() {
            if self.topics.get(topic).is_some_and(|state| state.stage == Stage::Asked) {
                return Some(*at + ANSWER);
            }
            self.asked.pop_front();
        }
        None
    }

    /// The connection is gone, and with it all the server knew. Whoever had been confirmed is deaf until it is
    /// confirmed again.
    #[must_use]
    pub(super) fn lost(&mut self) -> Vec<Topic> {
        self.asked.clear();
        self.lingering.clear();
        self.on_server = 0;
        self.crowded = false;
        self.topics.retain(|_, state| state.wanted);
        self.changed = self.topics.keys().cloned().collect();
        for state in self.topics.values_mut() {
            state.wake_when_confirmed |= matches!(state.stage, Stage::Confirmed | Stage::Leaving);
            state.stage = Stage::Absent;
            state.due = None;
        }
        std::mem::take(&mut self.held_back).into_iter().map(|(_, topic)| topic).collect()
    }

    /// No connection can be had at the moment: nobody is kept waiting, and everybody is woken once there is one.
    pub(super) fn unreachable(&mut self) {
        self.down = true;
        for state in self.topics.values_mut() {
            state.wake_when_confirmed |= !state.waiting.is_empty();
            state.waiting.clear();
        }
    }

    /// The server does not let this process listen. Those who wait look once for themselves and then live by their
    /// schedule.
    #[must_use]
    pub(super) fn refuse(&mut self) -> Vec<Topic> {
        let mut woken = self.lost();
        self.refused = true;
        for (topic, state) in &mut self.topics {
            state.waiting.clear();
            woken.push(topic.clone());
        }
        woken
    }
}
