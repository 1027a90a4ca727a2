//! Whose turn is it, when many processes wait for one lock?

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Held, attempt, fresh_prefix, key, raw, ttl};
use futures_util::StreamExt;
use syncguard_core::time::{Clock, SystemClock};
use syncguard_core::{HashId, LockBackend};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::{redis_cluster_url, redis_url};
use tokio::time::timeout;

/// Far more than anything here takes, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(120);
/// What the child process of a test is told.
const PREFIX: &str = "SYNCGUARD_TEST_LINE_PREFIX";

/// The lock `k` under a prefix that no other test has.
pub(crate) struct Lock {
    url: String,
    prefix: String,
    /// Of a server of its own, or of any node of the cluster.
    port: u16,
    /// What its stored names begin with.
    stored: String,
}

impl Lock {
    pub(crate) fn at(url: String) -> Self {
        let prefix = fresh_prefix();
        let hosts = url.split("//").nth(1).unwrap().trim_end_matches('/');
        let port = hosts.split(',').next().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        let tag = &HashId::of("k").to_string()[..1];
        let stored = if url.contains("cluster") { format!("{{{prefix}:{tag}}}") } else { prefix.clone() };
        Self { url, prefix, port, stored }
    }

    pub(crate) async fn client(&self) -> RedisBackend {
        self.options().connect().await.unwrap()
    }

    fn options(&self) -> RedisBuilder {
        RedisBuilder::from_url(&self.url).unwrap().prefix(self.prefix.as_str())
    }

    pub(crate) fn name(&self) -> String {
        format!("{}:k", self.stored)
    }

    pub(crate) fn line_name(&self) -> String {
        format!("{}:id:{}", self.stored, &HashId::of(&self.name()).to_string()[..22])
    }

    pub(crate) fn line(&self) -> Vec<String> {
        let line = raw(self.port, &["GET", &self.line_name()]).to_string();
        line.as_bytes().chunks(8).map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
    }

    /// For how long the line lies there if nobody touches it; below zero when there is none or no end of it.
    fn line_ends_in(&self) -> i64 {
        raw(self.port, &["PTTL", &self.line_name()]).to_string().parse().unwrap()
    }

    fn is_cluster(&self) -> bool {
        self.stored.starts_with('{')
    }

    async fn listener(&self, channel: String) -> Ear {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let (mut sink, stream) = client.get_async_pubsub().await.unwrap().split();
        sink.subscribe(channel).await.unwrap();
        Ear { _sink: sink, stream }
    }
}

pub(crate) struct Ear {
    /// The subscription lives as long as its sink.
    _sink: redis::aio::PubSubSink,
    stream: redis::aio::PubSubStream,
}

impl Ear {
    /// The next message.
    pub(crate) async fn hear(&mut self) -> String {
        let message = timeout(SOON, self.stream.next()).await.expect("the release is heard");
        message.unwrap().get_payload().unwrap()
    }
}

/// Takes the lock, which must be free.
async fn take(backend: &RedisBackend) -> Held {
    attempt(backend, &key("k"), ttl(600_000)).await.unwrap().expect("the lock is free")
}

/// Tries once for a lock that somebody holds.
async fn try_in_vain(backend: &RedisBackend) {
    attempt(backend, &key("k"), ttl(600_000)).await.unwrap().expect_err("the lock is held");
}

#[tokio::test]
async fn who_waits_stands_in_line_once_and_who_tries_once_does_not() {
    let lock = Lock::at(redis_url());
    let (holder, waiter) = (lock.client().await, lock.client().await);
    let held = take(&holder).await;
    try_in_vain(&waiter).await;
    assert!(lock.line().is_empty(), "a single attempt stands in no line");

    let _hint = waiter.subscribe(&key("k")).await;
    try_in_vain(&waiter).await;
    try_in_vain(&waiter).await;

    assert_eq!(lock.line().len(), 1);
    assert!((1..=30_000).contains(&lock.line_ends_in()), "it ends by itself: {}", lock.line_ends_in());
    let counts = holder.inspector().unwrap().count().await.unwrap();
    assert_eq!((counts.locks, counts.counters), (1, 1), "a line is neither lock nor counter");
    assert_eq!(holder.purge_expired().await.unwrap(), 0);
    assert_eq!(lock.line().len(), 1, "a purge leaves it alone");
    assert!(holder.release(&held.id).await.unwrap().is_released());
}

#[tokio::test]
async fn a_release_tells_the_first_in_line_alone_and_on_a_cluster_everybody_who_it_is() {
    for url in [redis_url(), redis_cluster_url()] {
        let lock = Lock::at(url);
        let (holder, first, second) = (lock.client().await, lock.client().await, lock.client().await);
        let held = take(&holder).await;
        let hint_of_first = first.subscribe(&key("k")).await;
        try_in_vain(&first).await;
        let hint_of_second = second.subscribe(&key("k")).await;
        try_in_vain(&second).await;
        let line = lock.line();
        assert_eq!(line.len(), 2);
        let channel = if lock.is_cluster() { lock.name() } else { format!("{}\0{}", lock.name(), line[0]) };
        let mut ear = lock.listener(channel).await;

        holder.release(&held.id).await.unwrap();

        assert_eq!(ear.hear().await, if lock.is_cluster() { line[0].as_str() } else { "0" });
        assert_eq!(lock.line(), line[1..]);
        assert!((1..=30_000).contains(&lock.line_ends_in()), "what remains ends by itself: {}", lock.line_ends_in());
        timeout(SOON, hint_of_first.woken()).await.expect("it is its turn");
        let held = take(&first).await;
        drop(hint_of_first);
        first.release(&held.id).await.unwrap();
        assert_eq!(raw(lock.port, &["EXISTS", &lock.line_name()]).to_string(), "0", "nothing is left of an empty line");
        timeout(SOON, hint_of_second.woken()).await.expect("it is its turn");
        take(&second).await;
    }
}

#[tokio::test]
async fn who_told_another_stands_back_and_who_was_told_in_vain_stands_in_front_again() {
    let lock = Lock::at(redis_url());
    let (holder, first, behind) = (lock.client().await, lock.client().await, lock.client().await);
    let mut held = take(&holder).await;
    let mut hints = Vec::new();
    for client in [&first, &behind] {
        hints.push(client.subscribe(&key("k")).await);
        try_in_vain(client).await;
    }
    let line = lock.line();

    // Nobody holds it, and it is not its turn: it asks later, and is not told that somebody holds it.
    raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &line.concat()]);
    holder.release(&held.id).await.unwrap();
    let asked = SystemClock.boot();
    held = attempt(&holder, &key("k"), ttl(600_000)).await.unwrap().expect("nobody came, so it is free");
    let asked_for = SystemClock.boot().since(asked);
    assert!(asked_for >= Duration::from_millis(9), "{asked_for:?}");
    raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &line.concat()]);
    holder.release(&held.id).await.unwrap();
    // Somebody who knows of no line comes first.
    let barger = lock.client().await;
    take(&barger).await;
    timeout(SOON, hints[0].woken()).await.expect("it is its turn");
    try_in_vain(&first).await;

    assert_eq!(lock.line(), line, "it kept its place");
}

#[tokio::test]
async fn a_process_of_which_more_tasks_wait_stands_in_line_again() {
    let lock = Lock::at(redis_url());
    let (holder, many) = (lock.client().await, lock.client().await);
    let held = take(&holder).await;
    let hints = (many.subscribe(&key("k")).await, many.subscribe(&key("k")).await);
    try_in_vain(&many).await;
    let line = lock.line();
    holder.release(&held.id).await.unwrap();

    let held = take(&many).await;
    drop(hints.0);

    assert_eq!(lock.line(), line, "the other task still waits");
    many.release(&held.id).await.unwrap();
    assert!(lock.line().is_empty(), "it is its turn");
    timeout(SOON, hints.1.woken()).await.expect("it is its turn");
}

#[tokio::test]
async fn a_single_try_that_succeeds_leaves_the_waiters_of_its_process_in_line() {
    let lock = Lock::at(redis_url());
    let (holder, process) = (lock.client().await, lock.client().await);
    take(&holder).await;
    let hint = process.subscribe(&key("k")).await;
    try_in_vain(&process).await;
    let line = lock.line();
    raw(lock.port, &["DEL", &lock.name()]);

    let tried = take(&process).await;

    assert_eq!(lock.line(), line, "its other task still waits");
    process.release(&tried.id).await.unwrap();
    timeout(SOON, hint.woken()).await.expect("it is its turn");
}

#[tokio::test]
async fn places_of_the_dead_cost_a_release_nothing() {
    let lock = Lock::at(redis_url());
    let (holder, waiter) = (lock.client().await, lock.client().await);
    // Who watches hears of every release, and must not be taken for somebody who waits.
    let watcher = holder.inspector().unwrap();
    let _changes = watcher.changes().await;
    let held = take(&holder).await;
    let hint = waiter.subscribe(&key("k")).await;
    try_in_vain(&waiter).await;
    let dead: String = "deadDEAD".repeat(100);
    let line = format!("{dead}{}{dead}", lock.line()[0]);
    raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &line]);

    holder.release(&held.id).await.unwrap();

    timeout(SOON, hint.woken()).await.expect("it is its turn");
    assert!(lock.line().is_empty(), "the dead have left");
}

#[tokio::test]
async fn a_killed_process_in_line_costs_the_others_a_moment() {
    if let Ok(prefix) = std::env::var(PREFIX) {
        let lock = Lock { prefix, ..Lock::at(redis_url()) };
        let backend = lock.client().await;
        let _hint = backend.subscribe(&key("k")).await;
        try_in_vain(&backend).await;
        println!("\n@in line");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let lock = Lock::at(redis_url());
    let (holder, waiter) = (lock.client().await, lock.client().await);
    let held = take(&holder).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "line::a_killed_process_in_line_costs_the_others_a_moment", "--nocapture"])
        .env(PREFIX, &lock.prefix)
        .env("SYNCGUARD_TEST_REDIS_URL", &lock.url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "@in line"));
    let hint = waiter.subscribe(&key("k")).await;
    try_in_vain(&waiter).await;
    let line = lock.line();
    assert_eq!(line.len(), 2, "the child stands in front");
    child.kill().unwrap();
    child.wait().unwrap();

    holder.release(&held.id).await.unwrap();

    timeout(SOON, hint.woken()).await.expect("the living act without it");
    take(&waiter).await;
}

#[tokio::test]
async fn a_line_has_room_for_so_many_and_what_else_lies_there_harms_nobody() {
    let lock = Lock::at(redis_url());
    let (holder, waiter) = (lock.client().await, lock.client().await);
    let held = take(&holder).await;
    let _hint = waiter.subscribe(&key("k")).await;
    raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &"somebody".repeat(256)]);

    try_in_vain(&waiter).await;
    assert_eq!(lock.line().len(), 256);
    holder.release(&held.id).await.unwrap();
    assert!(lock.line().is_empty(), "nobody listens by these names");

    raw(lock.port, &["DEL", &lock.line_name()]);
    raw(lock.port, &["LPUSH", &lock.line_name(), "a list"]);
    let held = take(&waiter).await;
    try_in_vain(&waiter).await;
    assert!(waiter.release(&held.id).await.unwrap().is_released());
    assert_eq!(raw(lock.port, &["LLEN", &lock.line_name()]).to_string(), "1");
}
