//! Does anybody wait in vain, whatever the network does?
//!
//! Thousands of small worlds: waiters come and go, releases are heard or not, confirmations and connections get lost,
//! and each order of events comes from a seed. In the end the network calms down; then the server must know exactly
//! what is waited for, and whoever waited while a release went unheard must have been woken after it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Settings;
use super::subscriptions::{Entry, Order, Subscriptions, Topic};

const TOPICS: [&str; 4] = ["a", "b", "c", "d"];

struct Waiter {
    topic: &'static str,
    first: bool,
    confirmation: Option<oneshot::Receiver<()>>,
}

enum Message {
    Confirmed(Topic),
    Released(Topic),
}

struct World {
    subscriptions: Subscriptions,
    now: Instant,
    seed: u64,
    waiters: Vec<Waiter>,
    /// What the server knows; `None` without a connection.
    server: Option<HashSet<Topic>>,
    order: Option<Order>,
    wire: VecDeque<Message>,
    /// Topics with a release that no waiter has looked after.
    missed: HashMap<&'static str, bool>,
    max_topics: usize,
}

impl World {
    fn new(seed: u64, max_topics: usize) -> Self {
        let linger = if seed.is_multiple_of(3) { Duration::from_millis(30) } else { Duration::ZERO };
        let settings = Settings { max_topics, linger, ..Settings::default() };
        Self {
            subscriptions: Subscriptions::new(settings),
            now: Instant::now(),
            seed: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            waiters: Vec::new(),
            server: None,
            order: None,
            wire: VecDeque::new(),
            missed: HashMap::new(),
            max_topics,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 11) % below
    }

    fn pick_topic(&mut self) -> &'static str {
        TOPICS[usize::try_from(self.random(4)).unwrap_or(0)]
    }

    fn waits_for(&self, topic: &str) -> bool {
        self.waiters.iter().any(|waiter| waiter.topic == topic)
    }

    fn arrive(&mut self) {
        let topic = self.pick_topic();
        let first = !self.waits_for(topic);
        if first {
            self.subscriptions.wanted(topic);
            self.missed.remove(topic);
        }
        let confirmation = match self.subscriptions.enter(topic) {
            Entry::Confirmed | Entry::GoOn => None,
            Entry::Wait(confirmation) => Some(confirmation),
            Entry::Never => {
                if first {
                    self.subscriptions.unwanted(topic, self.now);
                }
                return;
            }
        };
        let looks = first && confirmation.is_none();
        self.waiters.push(Waiter { topic, first, confirmation });
        if looks {
            self.look(topic);
        }
    }

    fn leave(&mut self) {
        if self.waiters.is_empty() {
            return;
        }
        let index = self.random(u64::try_from(self.waiters.len()).unwrap_or(1));
        let gone = self.waiters.swap_remove(usize::try_from(index).unwrap_or(0));
        if !self.waits_for(gone.topic) {
            self.subscriptions.unwanted(gone.topic, self.now);
        }
    }

    /// Somebody looks at the lock itself: whatever was missed is seen.
    fn look(&mut self, topic: &str) {
        self.missed.remove(topic);
    }

    fn wake(&mut self, topics: impl IntoIterator<Item = Topic>) {
        for topic in topics {
            if self.waits_for(&topic) {
                self.look(&topic);
            }
        }
    }

    /// Waiters whose confirmation came, or never will, go on; the first of a topic looks.
    fn settle(&mut self, give_up: bool) {
        for index in 0..self.waiters.len() {
            let waiter = &mut self.waiters[index];
            let Some(confirmation) = &mut waiter.confirmation else { continue };
            let answer = confirmation.try_recv();
            if answer == Err(oneshot::error::TryRecvError::Empty) && !give_up {
                continue;
            }
            let (topic, first) = (waiter.topic, waiter.first);
            waiter.confirmation = None;
            if answer.is_err() {
                self.subscriptions.went_on(topic);
            }
            if first {
                self.look(topic);
            }
        }
    }

    fn release(&mut self) {
        let topic = self.pick_topic();
        if self.waits_for(topic) {
            self.missed.insert(topic, true);
        }
        let known = self.server.as_ref().and_then(|server| server.get(topic)).cloned();
        self.wire.extend(known.map(Message::Released));
    }

    fn connect(&mut self, works: bool) {
        if self.server.is_some() {
            return;
        }
        if works {
            self.subscriptions.connected();
            self.server = Some(HashSet::new());
        } else {
            self.subscriptions.unreachable();
        }
    }

    fn lose_connection(&mut self) {
        self.server = None;
        self.order = None;
        self.wire.clear();
        let woken = self.subscriptions.lost();
        self.wake(woken);
    }

    /// The server carries out the order on its way, or the next one is sent.
    fn obey(&mut self) {
        let Some(server) = &mut self.server else { return };
        match self.order.take() {
            None => self.order = self.subscriptions.next_order(self.now),
            Some(Order::Subscribe(topics)) => {
                server.extend(topics.iter().cloned());
                assert!(server.len() <= self.max_topics, "more topics than the server may know");
                self.wire.extend(topics.into_iter().map(Message::Confirmed));
            }
            Some(Order::Unsubscribe(topics)) => {
                server.retain(|topic| !topics.contains(topic));
                self.subscriptions.unsubscribed(&topics);
            }
        }
    }

    fn hear(&mut self) {
        let woken = match self.wire.pop_front() {
            None => None,
            Some(Message::Confirmed(topic)) => self.subscriptions.confirmed(&topic),
            Some(Message::Released(topic)) => {
                let hold_back = self.random(3);
                let due = (hold_back > 0).then(|| self.now + Duration::from_millis(hold_back * 20));
                self.subscriptions.released(&topic, due)
            }
        };
        self.wake(woken);
        self.settle(false);
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(10);
        let woken = self.subscriptions.due(self.now);
        self.wake(woken);
    }

    fn step(&mut self) {
        match self.random(20) {
            0..=3 => self.arrive(),
            4..=5 => self.leave(),
            6..=8 => self.release(),
            9..=11 => self.obey(),
            12..=14 => self.hear(),
            15 => self.lose_connection(),
            16 => self.connect(true),
            17 => self.connect(false),
            18 => self.settle(true),
            _ => self.pass_time(),
        }
        self.settle(false);
    }

    fn calm_down(&mut self) {
        for _ in 0..200 {
            self.connect(true);
            self.obey();
            self.hear();
            self.pass_time();
        }
        self.settle(true);
    }

    fn judge(&self, seed: u64) {
        let server = self.server.as_ref().map_or(HashSet::new(), |server| server.iter().map(AsRef::as_ref).collect());
        let wanted: HashSet<&str> = self.waiters.iter().map(|waiter| waiter.topic).collect();
        assert!(server.is_subset(&wanted), "seed {seed}: {server:?} is subscribed, {wanted:?} is waited for");
        assert_eq!(server.len(), wanted.len().min(self.max_topics), "seed {seed}: {server:?} of {wanted:?}");
        for topic in server {
            assert!(!self.missed.contains_key(topic), "seed {seed}: a waiter of {topic} waits in vain");
        }
    }
}

#[test]
fn nobody_waits_in_vain_whatever_the_network_does() {
    for seed in 0..4000 {
        let max_topics = if seed % 4 == 0 { 2 } else { usize::MAX };
        let mut world = World::new(seed, max_topics);
        for _ in 0..120 {
            world.step();
        }
        world.calm_down();
        world.judge(seed);
    }
}
