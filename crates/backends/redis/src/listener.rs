//! How does this process hear that a lock was released?
//!
//! One connection subscribes to the channels of all keys that somebody here waits for; a channel has the name of its
//! lock. Core's [`Listener`](syncguard_core::listener::Listener) decides when to connect, subscribe and wake; here is
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

pub(crate) type Listener = listener::Listener<Channels>;

/// The channels of a server, or of a whole cluster: every node relays messages.
pub(crate) struct Channels {
    pub(crate) router: Arc<Router>,
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
    topics: Topics,
    router: Arc<Router>,
    listeners: Listeners,
}

pub(crate) struct Receiver {
    stream: PubSubStream,
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
        Ok((Subscriber { sink, topics, router, listeners: listeners.clone() }, Receiver { stream, listeners }))
    }
}

impl Commands for Subscriber {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        let names: Vec<&str> = topics.iter().map(AsRef::as_ref).collect();
        match self.topics {
            Topics::Names => {
                self.sink.subscribe(&names[..]).await.map_err(|error| ended(&error))?;
                self.count_listeners(topics.to_vec());
            }
            Topics::Patterns => self.sink.psubscribe(&names[..]).await.map_err(|error| ended(&error))?,
        }
        Ok(topics.to_vec())
    }

    async fn unsubscribe(&mut self, topics: &[Arc<str>]) -> Result<(), Ended> {
        let names: Vec<&str> = topics.iter().map(AsRef::as_ref).collect();
        match self.topics {
            Topics::Names => self.sink.unsubscribe(&names[..]).await,
            Topics::Patterns => self.sink.punsubscribe(&names[..]).await,
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
        let topic: Arc<str> = Arc::from(pattern.as_deref().unwrap_or_else(|| message.get_channel_name()));
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).get(&topic).copied();
        Ok(Heard::Released { topic, hold_back: stagger::among(listeners.unwrap_or(0)) })
    }
}

fn ended(error: &redis::RedisError) -> Ended {
    if error.code() != Some("NOPERM") {
        return Ended::Lost;
    }
    tracing::warn!(target: "syncguard", "redis does not permit this user to subscribe; waiters and watchers poll instead (grant &prefix:*)");
    Ended::Refused
}
