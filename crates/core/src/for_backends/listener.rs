//! The part of hearing releases that is the same on every storage.
//!
//! A backend that can push supplies a [`Source`]: how to connect, how to subscribe and unsubscribe, how to read the
//! next message, how to ask whether the connection is alive. The [`Listener`] does the rest, once per backend and
//! process: it keeps what the server knows equal to what is waited for, tells waiters when releases will be noticed,
//! reconnects, notices silence, holds hints back where many processes listen, and moves to another runtime when its own
//! ends.
//!
//! What it promises to a waiter: whoever waited while a release may have gone unheard (before a late confirmation,
//! during a lost connection) is woken as soon as releases are heard again. Messages stay hints: if none comes, waiters
//! follow their schedule.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use syncguard_core::listener::{Commands, Ended, Heard, Listener, Messages, Source};
//! use tokio::sync::broadcast;
//!
//! /// A server in the same process: whatever is sent is the name of a released lock.
//! struct Channel(broadcast::Sender<String>);
//!
//! struct Nothing;
//! struct Names(broadcast::Receiver<String>);
//!
//! impl Source for Channel {
//!     type Commands = Nothing;
//!     type Messages = Names;
//!
//!     async fn connect(&self) -> Result<(Nothing, Names), Ended> {
//!         Ok((Nothing, Names(self.0.subscribe())))
//!     }
//! }
//!
//! impl Commands for Nothing {
//!     async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
//!         Ok(topics.to_vec())
//!     }
//!     async fn unsubscribe(&mut self, _: &[Arc<str>]) -> Result<(), Ended> {
//!         Ok(())
//!     }
//!     async fn ping(&mut self) -> Result<(), Ended> {
//!         Ok(())
//!     }
//! }
//!
//! impl Messages for Names {
//!     async fn next(&mut self) -> Result<Heard, Ended> {
//!         let topic = self.0.recv().await.map_err(|_| Ended::Lost)?;
//!         Ok(Heard::Released { topic: topic.into(), hold_back: Duration::ZERO })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let server = broadcast::Sender::new(16);
//! let listener = Listener::new(Channel(server.clone()));
//! let hint = listener.subscribe("app:job").await;
//! server.send("app:job".to_owned()).ok();
//! hint.woken().await;
//! # }
//! ```

mod driver;
#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
mod simulation;
pub mod stagger;
mod subscriptions;
#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::WakeHint;
use crate::sync::timeout;
use driver::Inner;
use subscriptions::Entry;

/// How long the server may take to answer a command or to confirm a subscription.
const ANSWER: Duration = Duration::from_secs(4);
/// How long a connection may be silent before it is asked whether it is alive. With [`ANSWER`]: dead for at most 14 s.
const PING: Duration = Duration::from_secs(10);

/// What a backend supplies: the way to a connection that hears releases.
pub trait Source: Send + Sync + 'static {
    /// The half that sends.
    type Commands: Commands;
    /// The half that hears.
    type Messages: Messages;

    /// Makes a connection that knows no topic yet. Bounds itself in time.
    fn connect(&self) -> impl Future<Output = Result<(Self::Commands, Self::Messages), Ended>> + Send;

    /// How this storage wants to be listened to.
    fn settings(&self) -> Settings {
        Settings::default()
    }
}

/// The sending half of a connection. One command is under way at a time, and the hearing half is read meanwhile; a
/// command that is not answered within 4 s ends the connection.
pub trait Commands: Send {
    /// Begins to listen to topics. Returns those that are confirmed now; the server must confirm the others
    /// by [`Heard::Confirmed`].
    fn subscribe(&mut self, topics: &[Arc<str>]) -> impl Future<Output = Result<Vec<Arc<str>>, Ended>> + Send;

    /// Stops listening to topics, also to such that were never confirmed.
    fn unsubscribe(&mut self, topics: &[Arc<str>]) -> impl Future<Output = Result<(), Ended>> + Send;

    /// Makes the server answer anything at all. Sent after 10 s of silence.
    fn ping(&mut self) -> impl Future<Output = Result<(), Ended>> + Send;
}

/// The hearing half of a connection.
pub trait Messages: Send {
    /// Returns the next message.
    ///
    /// # Cancel safety
    /// Dropping the future must lose no message.
    fn next(&mut self) -> impl Future<Output = Result<Heard, Ended>> + Send;
}

/// What a connection heard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heard {
    /// From now on releases of these topics are noticed.
    Confirmed(Vec<Arc<str>>),
    /// The lock of this topic was released.
    Released {
        /// The topic as it was subscribed.
        topic: Arc<str>,
        /// How long to wait before anybody here acts on it: see [`stagger`].
        hold_back: Duration,
    },
    /// Somebody took the lock of this topic: a hint that is still held back is dropped.
    Taken(Arc<str>),
    /// Something that only shows that the connection lives.
    Nothing,
}

/// Why there is no connection any more, or none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It broke, or could not be made: another is tried after a pause.
    Lost,
    /// The server does not let this process listen: nobody tries again.
    Refused,
}

/// How a storage wants to be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How many topics one connection may know. Waiters beyond it are not woken; they follow their schedule.
    pub max_topics: usize,
    /// For how long a topic stays subscribed after its last waiter left, where coming back is dear.
    pub linger: Duration,
    /// How long a waiter waits for the confirmation before it goes on without.
    pub confirm_within: Duration,
    /// The longest pause between two attempts to connect.
    pub longest_pause: Duration,
    /// Whether the connection ends when nobody waits.
    pub close_when_idle: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_topics: usize::MAX,
            linger: Duration::ZERO,
            confirm_within: Duration::from_secs(1),
            longest_pause: Duration::from_secs(2),
            close_when_idle: false,
        }
    }
}

/// The one listener of a backend: idle until somebody waits, and gone when it is dropped.
pub struct Listener<S: Source>(Arc<Inner<S>>);

impl<S: Source> Listener<S> {
    /// Makes a listener. Nothing connects before somebody waits.
    pub fn new(source: S) -> Self {
        Self(Inner::new(source))
    }

    /// Counts a waiter in. Resolves once releases from now on will be noticed, or after a while if
    /// nobody knows yet; then the waiter is woken as soon as they are.
    ///
    /// # Cancel safety
    /// Dropping the future counts the waiter out.
    pub async fn subscribe(&self, topic: &str) -> WakeHint {
        if self.0.subscriptions().is_refused() {
            return WakeHint::never();
        }
        let hint = self.0.hub.subscribe(topic);
        self.0.keep_running();
        let entry = self.0.subscriptions().enter(topic);
        match entry {
            Entry::Confirmed => hint,
            Entry::GoOn => hint.not_confirmed(),
            Entry::Never => WakeHint::never(),
            Entry::Wait(confirmation) => {
                let confirmed = timeout(self.0.settings.confirm_within, confirmation).await;
                let confirmed = matches!(confirmed, Ok(Ok(())));
                let mut subscriptions = self.0.subscriptions();
                if !confirmed {
                    subscriptions.went_on(topic);
                }
                let refused = subscriptions.is_refused();
                // Counted out by dropping the hint, which calls back in here: never with the lock held.
                drop(subscriptions);
                match (refused, confirmed) {
                    (true, _) => WakeHint::never(),
                    (false, true) => hint,
                    (false, false) => hint.not_confirmed(),
                }
            }
        }
    }

    /// Returns how many tasks of this process wait for the topic.
    pub fn waiters(&self, topic: &str) -> usize {
        self.0.hub.waiters(topic)
    }
}

impl<S: Source> Drop for Listener<S> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

// Topics are storage names of keys, so none is shown.
impl<S: Source> fmt::Debug for Listener<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}
