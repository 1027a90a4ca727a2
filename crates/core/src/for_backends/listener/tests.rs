//! Does the loop do what the state machine says, on connections that break, lie and fall silent?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::{Commands, Ended, Heard, Listener, Messages, Settings, Source};

/// Longer than any bound here; virtual where the clock is paused.
const LONG: Duration = Duration::from_mins(1);

/// A server whose faults a test sets.
#[derive(Clone, Default)]
struct Server(Arc<State>);

#[derive(Default)]
struct State {
    connections: AtomicUsize,
    /// Answers nothing any more on the connections made so far.
    deaf_below: AtomicUsize,
    unreachable: AtomicBool,
    refuses: AtomicBool,
    /// Confirms nothing.
    mute: AtomicBool,
    inboxes: Mutex<Vec<mpsc::UnboundedSender<Heard>>>,
    max_topics: AtomicUsize,
}

struct Half {
    server: Server,
    number: usize,
}

struct Inbox(mpsc::UnboundedReceiver<Heard>);

impl Server {
    fn release(&self, topic: &str) {
        let deaf = self.0.deaf_below.load(Ordering::SeqCst);
        for inbox in self.0.inboxes.lock().unwrap().iter().skip(deaf) {
            let _ = inbox.send(Heard::Released { topic: topic.into(), hold_back: Duration::ZERO });
        }
    }

    fn fall_silent(&self) {
        self.0.deaf_below.store(self.connections(), Ordering::SeqCst);
    }

    fn connections(&self) -> usize {
        self.0.connections.load(Ordering::SeqCst)
    }
}

impl Source for Server {
    type Commands = Half;
    type Messages = Inbox;

    async fn connect(&self) -> Result<(Half, Inbox), Ended> {
        if self.0.unreachable.load(Ordering::SeqCst) {
            return Err(Ended::Lost);
        }
        let (inbox, messages) = mpsc::unbounded_channel();
        let mut inboxes = self.0.inboxes.lock().unwrap();
        inboxes.push(inbox);
        self.0.connections.store(inboxes.len(), Ordering::SeqCst);
        Ok((Half { server: self.clone(), number: inboxes.len() }, Inbox(messages)))
    }

    fn settings(&self) -> Settings {
        let max_topics = match self.0.max_topics.load(Ordering::SeqCst) {
            0 => usize::MAX,
            limit => limit,
        };
        Settings { max_topics, ..Settings::default() }
    }
}

impl Half {
    async fn answer(&self) -> Result<(), Ended> {
        if self.number <= self.server.0.deaf_below.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.server.0.refuses.load(Ordering::SeqCst) { Err(Ended::Refused) } else { Ok(()) }
    }
}

impl Commands for Half {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        self.answer().await?;
        Ok(if self.server.0.mute.load(Ordering::SeqCst) { Vec::new() } else { topics.to_vec() })
    }

    async fn unsubscribe(&mut self, _: &[Arc<str>]) -> Result<(), Ended> {
        self.answer().await
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        self.answer().await
    }
}

impl Messages for Inbox {
    async fn next(&mut self) -> Result<Heard, Ended> {
        self.0.recv().await.ok_or(Ended::Lost)
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_a_waiter() {
    let server = Server::default();
    let listener = Listener::new(server.clone());
    let hint = listener.subscribe("k").await;
    assert!(hint.is_live() && hint.hears());

    server.release("k");

    timeout(LONG, hint.woken()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_late_confirmation_is_a_hint() {
    let server = Server::default();
    let listener = Listener::new(server.clone());
    server.0.mute.store(true, Ordering::SeqCst);
    let hint = listener.subscribe("k").await;
    assert!(!hint.hears(), "nobody knows yet");

    server.0.mute.store(false, Ordering::SeqCst);
    let inbox = server.0.inboxes.lock().unwrap()[0].clone();
    inbox.send(Heard::Confirmed(vec!["k".into()])).unwrap();

    timeout(LONG, hint.woken()).await.expect("woken by the confirmation");
    assert!(timeout(LONG, hint.woken()).await.is_err(), "and only once");
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_never_comes_ends_the_connection() {
    let server = Server::default();
    let listener = Listener::new(server.clone());
    server.0.mute.store(true, Ordering::SeqCst);
    let hint = listener.subscribe("k").await;
    assert_eq!(server.connections(), 1);

    server.0.mute.store(false, Ordering::SeqCst);

    timeout(LONG, hint.woken()).await.expect("another connection confirmed it");
    assert!(server.connections() >= 2);
}

#[tokio::test(start_paused = true)]
async fn silence_is_noticed_within_fifteen_seconds_and_wakes_everybody_once() {
    let server = Server::default();
    let listener = Listener::new(server.clone());
    let hints = [listener.subscribe("a").await, listener.subscribe("b").await];

    server.fall_silent();
    server.release("a");
    let since = Instant::now();

    for hint in &hints {
        timeout(LONG, hint.woken()).await.expect("the silence is noticed");
    }
    assert!(since.elapsed() <= Duration::from_secs(15), "{:?}", since.elapsed());
    for hint in &hints {
        assert!(timeout(LONG, hint.woken()).await.is_err(), "woken twice");
    }
    server.release("b");
    timeout(LONG, hints[1].woken()).await.expect("releases are heard again");
}

#[tokio::test(start_paused = true)]
async fn whoever_came_while_there_was_no_connection_is_woken_when_there_is_one() {
    let server = Server::default();
    let listener = Listener::new(server.clone());
    server.0.unreachable.store(true, Ordering::SeqCst);
    let first = listener.subscribe("a").await;
    let second = listener.subscribe("b").await;

    server.0.unreachable.store(false, Ordering::SeqCst);

    timeout(LONG, first.woken()).await.unwrap();
    timeout(LONG, second.woken()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forbids_it_is_asked_once() {
    let server = Server::default();
    let listener = Listener::new(server.clone());
    server.0.refuses.store(true, Ordering::SeqCst);

    assert!(!listener.subscribe("a").await.is_live());
    assert!(!listener.subscribe("b").await.is_live());

    sleep(LONG).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn topics_beyond_the_limit_are_not_kept_waiting_and_get_their_turn() {
    let server = Server::default();
    server.0.max_topics.store(1, Ordering::SeqCst);
    let listener = Listener::new(server.clone());
    let first = listener.subscribe("a").await;
    let since = Instant::now();

    assert!(!listener.subscribe("b").await.is_live());
    assert_eq!(since.elapsed(), Duration::ZERO);

    drop(first);
    sleep(Duration::from_secs(1)).await;
    assert!(listener.subscribe("b").await.is_live());
}

#[test]
fn the_end_of_the_runtime_that_started_it_leaves_waiters_elsewhere_heard() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::default();
    let listener = Arc::new(Listener::new(server.clone()));
    let (first, second, third) = (runtime(), runtime(), runtime());
    let early = first.block_on(listener.subscribe("early"));
    let hint = second.block_on(listener.subscribe("k"));
    drop(third);

    first.shutdown_timeout(LONG);

    // Woken by the new subscription, and then by a release that it hears. Nobody new comes who could start the task.
    second.block_on(async {
        timeout(LONG, hint.woken()).await.expect("the listener moved");
        server.release("k");
        timeout(LONG, hint.woken()).await.expect("releases are heard again");
    });
    drop(early);
}

#[test]
fn a_listener_whose_runtimes_have_all_ended_starts_again_with_the_next_waiter() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::default();
    let listener = Listener::new(server.clone());
    for _ in 0..12 {
        let runtime = runtime();
        runtime.block_on(async {
            let hint = listener.subscribe("k").await;
            server.release("k");
            timeout(LONG, hint.woken()).await.expect("heard");
        });
    }
}
