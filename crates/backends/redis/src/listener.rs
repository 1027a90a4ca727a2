//! How does this process hear that a lock was released?
//!
//! One connection subscribes to the channels of all keys that somebody here waits for; a channel has the name of its
//! lock. Where many processes wait, a release tells the first in line over a channel of its own, and three more in case
//! it does nothing. Core's [`Listener`](syncguard_core::listener::Listener) decides when to connect, subscribe and wake; here is
//! only what Redis needs for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use syncguard_core::listener::{self, Commands, Ended, Heard, Messages, Source, stagger};

use crate::router::Router;

/// How long the question after other listeners may take. Nobody waits for its answer.
const COUNT_WITHIN: Duration = Duration::from_secs(5);

/// The name of a process in a line of waiting ones, in bytes. The scripts count in these.
pub(crate) const NAME_LENGTH: usize = 8;

/// Between the name of a lock and the name of a process, in the name of their channel. No key has it.
const SEPARATOR: &str = "\0";

/// What a release says to everybody when it has told those at the beginning of a long line.
const FOR_OLDER_PROGRAMS: &[u8] = b"-";

/// How long everybody else leaves a lock to the one whose turn it is. It has heard the same message, so it need only
/// send its request meanwhile. If it died, or nobody waits there any more, this is what it costs.
const GRACE: Duration = Duration::from_millis(10);

pub(crate) type Listener = listener::Listener<Channels>;

/// The channels of a server, or of a whole cluster: every node relays messages.
pub(crate) struct Channels {
    pub(crate) router: Arc<Router>,
    /// What releases call this process.
    pub(crate) name: Arc<str>,
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

/// How many processes listened to a channel when this one came: how far hints are staggered.
type Listeners = Arc<Mutex<HashMap<Arc<str>, u64>>>;

pub(crate) struct Subscriber {
    sink: PubSubSink,
    name: Arc<str>,
    topics: Topics,
    router: Arc<Router>,
    listeners: Listeners,
}

pub(crate) struct Receiver {
    stream: PubSubStream,
    name: Arc<str>,
    listeners: Listeners,
}

impl Source for Channels {
    type Commands = Subscriber;
    type Messages = Receiver;

    async fn connect(&self) -> Result<(Subscriber, Receiver), Ended> {
        let connector = self.router.listening_server().await.ok_or(Ended::Lost)?;
        let connection = connector.subscribe().await.map_err(|_| Ended::Lost)?;
        let (sink, stream) = connection.split();
        let listeners = Listeners::default();
        let (router, topics) = (self.router.clone(), self.topics);
        let receiver = Receiver { stream, name: self.name.clone(), listeners: listeners.clone() };
        Ok((Subscriber { sink, name: self.name.clone(), topics, router, listeners }, receiver))
    }
}

impl Commands for Subscriber {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        let channels = self.channels(topics);
        match self.topics {
            Topics::Names => {
                self.sink.subscribe(&channels[..]).await.map_err(|error| ended(&error))?;
                self.count_listeners(topics.to_vec());
            }
            Topics::Patterns => self.sink.psubscribe(&channels[..]).await.map_err(|error| ended(&error))?,
        }
        Ok(topics.to_vec())
    }

    async fn unsubscribe(&mut self, topics: &[Arc<str>]) -> Result<(), Ended> {
        let channels = self.channels(topics);
        match self.topics {
            Topics::Names => self.sink.unsubscribe(&channels[..]).await,
            Topics::Patterns => self.sink.punsubscribe(&channels[..]).await,
        }
        .map_err(|error| ended(&error))?;
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).retain(|topic, _| !topics.contains(topic));
        Ok(())
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        self.sink.ping::<redis::Value>().await.map(|_| ()).map_err(|error| ended(&error))
    }
}

impl Subscriber {
    /// The channels of topics: for each lock one that everybody listens to, and one of this process alone.
    fn channels(&self, topics: &[Arc<str>]) -> Vec<String> {
        let own = topics.iter().filter(|_| self.topics == Topics::Names);
        let own = own.map(|topic| [topic, SEPARATOR, &self.name].concat());
        topics.iter().map(ToString::to_string).chain(own).collect()
    }

    /// In a task of its own: a listening connection takes no such question, and the one that does may be slow or dead.
    fn count_listeners(&self, topics: Vec<Arc<str>>) {
        let (router, listeners) = (self.router.clone(), self.listeners.clone());
        tokio::spawn(async move {
            let names: Vec<&str> = topics.iter().map(AsRef::as_ref).collect();
            let counts = router.listeners(&names, COUNT_WITHIN).await;
            listeners.lock().unwrap_or_else(PoisonError::into_inner).extend(topics.into_iter().zip(counts));
        });
    }
}

impl Messages for Receiver {
    async fn next(&mut self) -> Result<Heard, Ended> {
        let message = self.stream.next().await.ok_or(Ended::Lost)?;
        let pattern: Option<String> = message.get_pattern().unwrap_or_default();
        if let Some(pattern) = pattern {
            return Ok(Heard::Released { topic: Arc::from(pattern), hold_back: Duration::ZERO });
        }
        if let Some((topic, _)) = message.get_channel_name().split_once(SEPARATOR) {
            let place = std::str::from_utf8(message.get_payload_bytes()).ok().and_then(|place| place.parse().ok());
            return Ok(Heard::Released { topic: Arc::from(topic), hold_back: GRACE * place.unwrap_or(1).min(8) });
        }
        let topic: Arc<str> = Arc::from(message.get_channel_name());
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).get(&topic).copied();
        Ok(match hold_back(message.get_payload_bytes(), &self.name, listeners.unwrap_or(0)) {
            Some(hold_back) => Heard::Released { topic, hold_back },
            None => Heard::Nothing,
        })
    }
}

/// For a message to everybody: it is empty, or names whose turn it is. Whatever programs of another kind write is for
/// everybody, too. `None` where nobody here is to act on it.
fn hold_back(message: &[u8], name: &str, listeners: u64) -> Option<Duration> {
    if message == FOR_OLDER_PROGRAMS {
        None
    } else if message == name.as_bytes() {
        Some(Duration::ZERO)
    } else if message.len() == NAME_LENGTH {
        Some(GRACE + stagger::among(listeners))
    } else {
        Some(stagger::among(listeners))
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
    fn the_one_whose_turn_it_is_acts_at_once_and_everybody_else_after_a_grace() {
        let me = "mememeME";
        for listeners in [0, 1, 4, 1000] {
            assert_eq!(hold_back(b"mememeME", me, listeners), Some(Duration::ZERO));
            assert!(hold_back(b"somebody", me, listeners) >= Some(GRACE));
        }
        // Nobody is named: as it was before there were lines.
        for message in [&b""[..], b"1", b"the lock was released"] {
            assert_eq!(hold_back(message, me, 4), Some(Duration::ZERO));
        }
    }

    #[test]
    fn nobody_acts_on_what_is_for_older_programs() {
        assert_eq!(hold_back(b"-", "mememeME", 1), None);
    }
}
