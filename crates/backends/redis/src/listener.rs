//! How does this process hear that a lock was released?
//!
//! One connection subscribes to the channels of all keys that somebody here waits for: for each lock one that everybody
//! listens to, with the lock's name, and one of this process alone. A release tells the first in line over its own
//! channel, and three more in case it does nothing; on a Cluster, where a node does not know who listens, it tells
//! everybody whose turn it is. Core's [`Listener`](syncguard_core::listener::Listener) decides when to connect,
//! subscribe and wake; here is only what Redis needs for it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use syncguard_core::listener::{self, Commands, Ended, Heard, Messages, Source};

use crate::router::Router;
use crate::turns::{GRACE, Turns};

/// The name of a process in a line of waiting ones, in bytes. The scripts count in these.
pub(crate) const NAME_LENGTH: usize = 8;

/// Between the name of a lock and the name of a process, in the name of their channel. No key has it.
const SEPARATOR: &str = "\0";

/// Where all are told whose turn it is, the others act within this after their grace, and not all at once.
const SPREAD: Duration = Duration::from_millis(20);

pub(crate) type Listener = listener::Listener<Channels>;

/// The channels of a server, or of a whole cluster: every node relays messages.
pub(crate) struct Channels {
    pub(crate) router: Arc<Router>,
    /// What releases call this process.
    pub(crate) name: Arc<str>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) topics: Topics,
}

/// What a topic is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topics {
    /// The name of one lock.
    Names,
    /// A pattern of names.
    Patterns,
}

pub(crate) struct Subscriber {
    sink: PubSubSink,
    name: Arc<str>,
    topics: Topics,
}

pub(crate) struct Receiver {
    stream: PubSubStream,
    name: Arc<str>,
    turns: Arc<Turns>,
}

impl Source for Channels {
    type Commands = Subscriber;
    type Messages = Receiver;

    async fn connect(&self) -> Result<(Subscriber, Receiver), Ended> {
        let connector = self.router.listening_server().await.ok_or(Ended::Lost)?;
        let connection = connector.subscribe().await.map_err(|_| Ended::Lost)?;
        let (sink, stream) = connection.split();
        let receiver = Receiver { stream, name: self.name.clone(), turns: self.turns.clone() };
        Ok((Subscriber { sink, name: self.name.clone(), topics: self.topics }, receiver))
    }
}

impl Commands for Subscriber {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        let channels = self.channels(topics);
        match self.topics {
            Topics::Names => self.sink.subscribe(&channels[..]).await,
            Topics::Patterns => self.sink.psubscribe(&channels[..]).await,
        }
        .map_err(|error| ended(&error))?;
        Ok(topics.to_vec())
    }

    async fn unsubscribe(&mut self, topics: &[Arc<str>]) -> Result<(), Ended> {
        let channels = self.channels(topics);
        match self.topics {
            Topics::Names => self.sink.unsubscribe(&channels[..]).await,
            Topics::Patterns => self.sink.punsubscribe(&channels[..]).await,
        }
        .map_err(|error| ended(&error))
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        self.sink.ping::<redis::Value>().await.map(|_| ()).map_err(|error| ended(&error))
    }
}

impl Subscriber {
    fn channels(&self, topics: &[Arc<str>]) -> Vec<String> {
        let own = topics.iter().filter(|_| self.topics == Topics::Names);
        let own = own.map(|topic| [topic, SEPARATOR, &self.name].concat());
        topics.iter().map(ToString::to_string).chain(own).collect()
    }
}

impl Messages for Receiver {
    async fn next(&mut self) -> Result<Heard, Ended> {
        let message = self.stream.next().await.ok_or(Ended::Lost)?;
        let pattern: Option<String> = message.get_pattern().unwrap_or_default();
        if let Some(pattern) = pattern {
            return Ok(Heard::Released { topic: Arc::from(pattern), hold_back: Duration::ZERO });
        }
        let (channel, said) = (message.get_channel_name(), message.get_payload_bytes());
        let (topic, (is_ours, hold_back)) = match channel.split_once(SEPARATOR) {
            Some((topic, _)) => (topic, at_place(said)),
            None => (channel, to_all(said, &self.name)),
        };
        let topic: Arc<str> = Arc::from(topic);
        if is_ours {
            self.turns.ours(&topic);
        } else {
            self.turns.is_over(&topic);
        }
        Ok(Heard::Released { topic, hold_back })
    }
}

/// Told alone: how many others come first.
fn at_place(said: &[u8]) -> (bool, Duration) {
    let place = std::str::from_utf8(said).ok().and_then(|place| place.parse().ok()).unwrap_or(1);
    (place == 0, GRACE * place.min(8))
}

/// For a message to everybody: it is empty, or names whose turn it is. Whatever programs of another kind write is for
/// everybody, too.
fn to_all(said: &[u8], name: &str) -> (bool, Duration) {
    if said == name.as_bytes() {
        (true, Duration::ZERO)
    } else if said.len() == NAME_LENGTH {
        // Names are chance.
        (false, GRACE + SPREAD * u32::from(name.as_bytes()[0] % 16) / 16)
    } else {
        (false, Duration::ZERO)
    }
}

fn ended(error: &redis::RedisError) -> Ended {
    if error.code() != Some("NOPERM") {
        return Ended::Lost;
    }
    tracing::warn!(target: "syncguard", "redis does not permit this user to subscribe; waiters and watchers poll instead (grant &prefix:*)");
    Ended::Refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_whose_turn_it_is_acts_at_once_and_others_after_a_grace() {
        assert_eq!(at_place(b"0"), (true, Duration::ZERO));
        assert_eq!(at_place(b"3"), (false, GRACE * 3));
        assert_eq!(at_place(b"4000000000"), (false, GRACE * 8), "nobody makes it wait for ever");
        assert_eq!(to_all(b"mememeME", "mememeME"), (true, Duration::ZERO));
        let (is_ours, hold_back) = to_all(b"somebody", "mememeME");
        assert!(!is_ours && (GRACE..=GRACE + SPREAD).contains(&hold_back));
        for said in [&b""[..], b"1", b"the lock was released"] {
            assert_eq!(to_all(said, "mememeME"), (false, Duration::ZERO), "nobody is named");
        }
    }
}
