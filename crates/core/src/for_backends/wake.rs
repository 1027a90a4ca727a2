//! How does a waiter learn that a lock may have become free?
//!
//! By a *hint*, never by a promise. A [`WakeHint`] resolves when the key may be free; it may resolve for nothing
//! and it may never resolve. The acquisition loop keeps its own schedule and budget, so a backend without push, or a
//! peer that never publishes, makes waiters slower and never wrong.
//!
//! A backend keeps one [`WakeHub`] and one listener per process (a subscription, a `LISTEN`, a stream) that feeds it.
//! A hint wakes **one** waiter of the process: a hundred waiters on one key must not become a hundred requests
//! that ninety-nine lose.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard, Notify};

/// What the hub tells the backend's listener about a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// The first waiter of the process arrived: start listening.
    Began,
    /// The last waiter left: stop listening.
    Ended,
}

type OnInterest = dyn Fn(&str, Interest) + Send + Sync;

/// The waiters of one process, by topic (usually the storage key). Cheap to clone.
#[derive(Clone)]
pub struct WakeHub(Arc<Inner>);

struct Inner {
    topics: Mutex<HashMap<Arc<str>, Topic>>,
    // Called with the map locked, so that Began and Ended of one topic arrive in order. It must not block.
    on_interest: Box<OnInterest>,
}

struct Topic {
    waiters: usize,
    notify: Arc<Notify>,
}

impl Default for WakeHub {
    fn default() -> Self {
        Self::new(|_, _| {})
    }
}

impl fmt::Debug for WakeHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WakeHub({} topics)", self.topics().len())
    }
}

impl WakeHub {
    /// Makes a hub. `on_interest` hears when a topic gets its first waiter and loses its last; it must only
    /// hand the news on (to a channel), never block.
    pub fn new(on_interest: impl Fn(&str, Interest) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { topics: Mutex::default(), on_interest: Box::new(on_interest) }))
    }

    /// Counts a waiter in. It is counted out when the hint is dropped.
    pub fn subscribe(&self, topic: &str) -> WakeHint {
        let mut topics = self.topics();
        if let Some(known) = topics.get_mut(topic) {
            known.waiters += 1;
            return self.hint(topic, &known.notify, false);
        }
        let notify = Arc::new(Notify::new());
        topics.insert(Arc::from(topic), Topic { waiters: 1, notify: notify.clone() });
        (self.0.on_interest)(topic, Interest::Began);
        self.hint(topic, &notify, true)
    }

    /// Wakes one waiter of the topic. If all of them are busy trying, the hint waits for the first that returns.
    pub fn wake(&self, topic: &str) {
        if let Some(topic) = self.topics().get(topic) {
            topic.notify.notify_one();
        }
    }

    /// Wakes one waiter of every topic: after a reconnect, when hints may have been missed.
    pub fn wake_every_topic(&self) {
        for topic in self.topics().values() {
            topic.notify.notify_one();
        }
    }

    /// Returns the topics that have waiters now.
    pub fn waited_for(&self) -> Vec<Arc<str>> {
        self.topics().keys().cloned().collect()
    }

    /// Returns whether anybody waits for the topic.
    pub fn has_waiters(&self, topic: &str) -> bool {
        self.topics().contains_key(topic)
    }

    /// Returns how many wait for the topic.
    pub fn waiters(&self, topic: &str) -> usize {
        self.topics().get(topic).map_or(0, |topic| topic.waiters)
    }

    fn hint(&self, topic: &str, notify: &Arc<Notify>, is_first: bool) -> WakeHint {
        let subscription =
            Subscription { hub: self.clone(), topic: Arc::from(topic), notify: notify.clone(), is_first, hears: true };
        WakeHint(Some(subscription))
    }

    fn leave(&self, topic: &str) {
        let mut topics = self.topics();
        if let Some(known) = topics.get_mut(topic) {
            known.waiters -= 1;
            if known.waiters == 0 {
                topics.remove(topic);
                (self.0.on_interest)(topic, Interest::Ended);
            }
        }
    }

    // A panic while the map was locked leaves a map that is still right: every change is one step.
    fn topics(&self) -> MutexGuard<'_, HashMap<Arc<str>, Topic>> {
        self.0.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One waiter's registration for one key.
///
/// ```
/// use syncguard_core::WakeHub;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hub = WakeHub::default();
/// let hint = hub.subscribe("key");
/// hub.wake("key");
/// hint.woken().await;
/// # }
/// ```
pub struct WakeHint(Option<Subscription>);

struct Subscription {
    hub: WakeHub,
    topic: Arc<str>,
    notify: Arc<Notify>,
    is_first: bool,
    /// Whether releases were heard when the waiter came. A connection may be lost since; then it is woken once there is
    /// another.
    hears: bool,
}

impl WakeHint {
    /// Returns the hint of a backend that cannot push.
    pub const fn never() -> Self {
        Self(None)
    }

    /// Returns whether this hint can ever resolve.
    pub const fn is_live(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether this waiter was the first of its process. It must look once more: a release before it registered
    /// was heard by nobody. Those after it need not, because a waiter that was there before them hears it.
    pub fn is_first(&self) -> bool {
        self.0.as_ref().is_some_and(|subscription| subscription.is_first)
    }

    /// Returns whether releases were heard from the moment on in which this waiter registered.
    pub(crate) fn hears(&self) -> bool {
        self.0.as_ref().is_some_and(|subscription| subscription.hears)
    }

    /// Says that nobody knows yet whether releases are heard.
    pub(crate) fn not_confirmed(mut self) -> Self {
        if let Some(subscription) = &mut self.0 {
            subscription.hears = false;
        }
        self
    }

    /// Resolves when the key may have become free.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint: one that had already arrived goes to the next waiter, or waits.
    pub async fn woken(&self) {
        match &self.0 {
            Some(subscription) => subscription.notify.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Gives a hint that led to no answer to the next waiter of this process.
    pub fn pass_on(&self) {
        if let Some(subscription) = &self.0 {
            subscription.notify.notify_one();
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.leave(&self.topic);
    }
}

impl fmt::Debug for WakeHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_live() { "WakeHint(live)" } else { "WakeHint(never)" })
    }
}

#[cfg(test)]
#[cfg(not(syncguard_shuttle))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn one_hint_wakes_one_waiter() {
        let hub = WakeHub::default();
        let (first, second) = (hub.subscribe("k"), hub.subscribe("k"));

        hub.wake("k");

        let woken = tokio::select! { () = first.woken() => 1, () = second.woken() => 2 };
        assert!([1, 2].contains(&woken));
        let other = if woken == 1 { second } else { first };
        assert!(timeout(Duration::from_secs(1), other.woken()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_that_comes_while_nobody_listens_is_kept() {
        let hub = WakeHub::default();
        let hint = hub.subscribe("k");

        hub.wake("k");

        timeout(Duration::from_secs(1), hint.woken()).await.unwrap();
    }

    #[test]
    fn the_listener_hears_of_the_first_and_the_last_waiter_only() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = heard.clone();
        let hub = WakeHub::new(move |topic, interest| log.lock().unwrap().push((topic.to_owned(), interest)));

        let (first, second) = (hub.subscribe("k"), hub.subscribe("k"));
        assert!(first.is_first() && !second.is_first() && !WakeHint::never().is_first());
        assert_eq!((hub.waiters("k"), hub.waiters("other")), (2, 0));
        drop(first);
        assert!(hub.has_waiters("k"));
        drop(second);

        assert!(!hub.has_waiters("k"));
        let expected = [("k".to_owned(), Interest::Began), ("k".to_owned(), Interest::Ended)];
        assert_eq!(*heard.lock().unwrap(), expected);
    }
}
