//! Whose turn is it, when many processes wait for one lock?

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Held, attempt, attempt_with, fresh_prefix, key, raw, ttl};
use futures_util::StreamExt;
use syncguard_core::{Contention, HashId, LockBackend, LockId, Locker};
use syncguard_redis::{RedisBackend, RedisBuilder};
use syncguard_testkit::{redis_cluster_url, redis_url};
use tokio::time::timeout;

/// Far more than anything here takes, on a machine that has other things to do.
pub(crate) const SOON: Duration = Duration::from_secs(120);
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

    /// A listener that knows nothing of lines, as older programs are.
    pub(crate) async fn older_listener(&self) -> OlderListener {
        self.listener(self.name()).await
    }

    async fn listener(&self, channel: String) -> OlderListener {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let (mut sink, stream) = client.get_async_pubsub().await.unwrap().split();
        sink.subscribe(channel).await.unwrap();
        OlderListener { _sink: sink, stream }
    }
}

pub(crate) struct OlderListener {
    /// The subscription lives as long as its sink.
    _sink: redis::aio::PubSubSink,
    stream: redis::aio::PubSubStream,
}

impl OlderListener {
    /// The next message.
    pub(crate) async fn hear(&mut self) -> String {
        let message = timeout(SOON, self.stream.next()).await.expect("the release is heard");
        message.unwrap().get_payload().unwrap()
    }
}

/// Takes the lock, which must be free. Its release goes the ordinary way, whoever waits.
async fn take(backend: &RedisBackend) -> Held {
    let held = take_until(backend, |id| id.as_str().as_bytes()[0] % 8 == 0).await;
    held.expect("the lock is free")
}

/// Tries with an id that fits.
pub(crate) async fn take_until(backend: &RedisBackend, fits: impl Fn(&LockId) -> bool) -> Result<Held, Contention> {
    let ids = std::iter::repeat_with(|| backend.new_lock_id(&key("k")));
    let id = ids.take(10_000).find(fits).expect("ids are random");
    attempt_with(backend, &key("k"), ttl(600_000), id).await.unwrap()
}

/// Tries once for a lock that somebody holds.
pub(crate) async fn try_in_vain(backend: &RedisBackend) {
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
async fn a_release_names_the_first_in_line_and_is_heard_by_older_listeners() {
    for url in [redis_url(), redis_cluster_url()] {
        let lock = Lock::at(url);
        let (first, second, third) = (lock.client().await, lock.client().await, lock.client().await);
        let own_hint = first.subscribe(&key("k")).await;
        let held = take(&first).await;
        drop(own_hint);
        let hint_of_second = second.subscribe(&key("k")).await;
        try_in_vain(&second).await;
        let hint_of_third = third.subscribe(&key("k")).await;
        try_in_vain(&third).await;
        let line = lock.line();
        assert_eq!(line.len(), 2);
        let mut older = lock.older_listener().await;

        first.release(&held.id).await.unwrap();
        assert_eq!(older.hear().await, line[0]);
        assert_eq!(lock.line(), line[1..]);
        assert!((1..=30_000).contains(&lock.line_ends_in()), "what remains ends by itself: {}", lock.line_ends_in());
        timeout(SOON, hint_of_second.woken()).await.expect("it is its turn");
        let held = take(&second).await;
        drop(hint_of_second);

        second.release(&held.id).await.unwrap();
        assert_eq!(older.hear().await, line[1]);
        assert_eq!(raw(lock.port, &["EXISTS", &lock.line_name()]).to_string(), "0", "nothing is left of an empty line");
        timeout(SOON, hint_of_third.woken()).await.expect("it is its turn");
        let held = take(&third).await;

        third.release(&held.id).await.unwrap();
        assert_eq!(older.hear().await, "", "nobody stands in line: everybody is told");
    }
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
async fn who_gets_the_lock_out_of_turn_leaves_the_line() {
    let lock = Lock::at(redis_url());
    let (holder, waiter) = (lock.client().await, lock.client().await);
    let held = take(&holder).await;
    let (in_front, behind) = (lock.client().await, lock.client().await);
    let mut hints = Vec::new();
    for client in [&in_front, &waiter, &behind] {
        hints.push(client.subscribe(&key("k")).await);
        try_in_vain(client).await;
    }
    let line = lock.line();
    assert_eq!(line.len(), 3);

    // Nobody waited before it, so it names nobody.
    holder.release(&held.id).await.unwrap();
    assert_eq!(lock.line(), line);
    take(&waiter).await;

    assert_eq!(
        lock.line(),
        [line[0].clone(), line[2].clone()],
        "it waits no more, and the others stay where they were"
    );
    assert!((1..=30_000).contains(&lock.line_ends_in()), "what remains ends by itself: {}", lock.line_ends_in());
}

#[tokio::test]
async fn of_a_long_line_the_first_four_are_told_and_now_and_then_everybody() {
    for url in [redis_url(), redis_cluster_url()] {
        let lock = Lock::at(url);
        let holder = lock.client().await;
        let own_hint = holder.subscribe(&key("k")).await;
        let waiter = lock.client().await;
        let held = take(&holder).await;
        let hint = waiter.subscribe(&key("k")).await;
        try_in_vain(&waiter).await;
        let name = lock.line().remove(0);
        // Three dead ones in front of it: it is told, in case they do nothing.
        let line = format!("dead0001dead0002dead0003{name}dead0004dead0005dead0006dead0007");
        raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &line]);
        let mut first = lock.listener(format!("{}\0dead0001", lock.name())).await;
        let mut third = lock.listener(format!("{}\0dead0003", lock.name())).await;

        assert!(holder.release(&held.id).await.unwrap().is_released());

        timeout(SOON, hint.woken()).await.expect("the living act without the dead");
        assert_eq!(lock.line().len(), 7, "one had its turn");
        let told = (first.hear().await, third.hear().await);
        assert_eq!(told, ("0".to_owned(), "2".to_owned()), "how many to wait for");
        drop(hint);

        // Whoever listens to the lock's own channel alone is told as well, though not every time.
        let mut older = lock.older_listener().await;
        let told = older.hear();
        tokio::pin!(told);
        let told = loop {
            let held = take(&holder).await;
            raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &line]);
            holder.release(&held.id).await.unwrap();
            if let Ok(told) = timeout(Duration::from_millis(5), &mut told).await {
                break told;
            }
        };
        assert_eq!(told, "-");
        drop(own_hint);
    }
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
    let own_hint = holder.subscribe(&key("k")).await;
    let held = take(&holder).await;
    drop(own_hint);
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
    let mut older = lock.older_listener().await;

    holder.release(&held.id).await.unwrap();

    assert_eq!(older.hear().await, line[0], "the dead is told");
    timeout(SOON, hint.woken()).await.expect("the living act without it");
    take(&waiter).await;
}

#[tokio::test]
async fn a_line_has_room_for_so_many_and_what_else_lies_there_harms_nobody() {
    let lock = Lock::at(redis_url());
    let (holder, waiter) = (lock.client().await, lock.client().await);
    let own_hint = holder.subscribe(&key("k")).await;
    let held = take(&holder).await;
    drop(own_hint);
    let _hint = waiter.subscribe(&key("k")).await;
    raw(lock.port, &["PSETEX", &lock.line_name(), "600000", &"somebody".repeat(256)]);

    try_in_vain(&waiter).await;
    assert_eq!(lock.line().len(), 256);
    holder.release(&held.id).await.unwrap();
    assert_eq!(lock.line().len(), 255);

    raw(lock.port, &["DEL", &lock.line_name()]);
    raw(lock.port, &["LPUSH", &lock.line_name(), "a list"]);
    let held = take(&waiter).await;
    try_in_vain(&waiter).await;
    assert!(waiter.release(&held.id).await.unwrap().is_released());
    assert_eq!(raw(lock.port, &["LLEN", &lock.line_name()]).to_string(), "1");
}

#[tokio::test]
async fn an_older_waiter_gets_its_share_beside_a_line() {
    let lock = Lock::at(redis_url());
    let stop = Arc::new(AtomicBool::new(false));
    let mut newer = Vec::new();
    for _ in 0..3 {
        let (locker, stop) = (Locker::new(lock.client().await), stop.clone());
        newer.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = locker.lock("k").ttl(Duration::from_secs(600)).wait_forever().acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
                guard.release().await.unwrap();
                // Whoever comes back at once is there before anybody has heard of the release.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }));
    }
    // It tries when it hears anything, stands in no line and names nobody.
    let older = lock.options().wake(false).connect().await.unwrap();
    let mut listener = lock.older_listener().await;

    let mut turns = 0;
    while turns < 3 {
        listener.hear().await;
        if let Ok(held) = attempt(&older, &key("k"), ttl(600_000)).await.unwrap() {
            turns += 1;
            older.release(&held.id).await.unwrap();
            // Releases of its own are not published, and the others would wait for their schedule.
            raw(lock.port, &["PUBLISH", &lock.name(), ""]);
        }
    }

    stop.store(true, Ordering::Relaxed);
    for task in newer {
        timeout(SOON, task).await.expect("nobody waits in vain").unwrap();
    }
}
