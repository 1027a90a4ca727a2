//! How does this process hear that a lock was released elsewhere?
//!
//! Over one connection that `LISTEN`s on the table's channel. `NOTIFY` makes all commits of a database queue up, so a release notifies only
//! if somebody waits, and it must learn that for free. A waiting process therefore holds a *shared advisory lock* on the
//! waited key; a release tries the same lock exclusively, which fails exactly when somebody waits. No row is written, nothing is
//! left behind by a process that dies, and a release that nobody waits for pays one entry in the server's lock table.
//!
//! Hints may be lost while the connection is down; waiters then live by their own schedule. After every reconnect each
//! waited key gets one hint, because its release may have been missed.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use syncguard_core::wake::Interest;
use syncguard_core::{Key, WakeHint, WakeHub};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};

use crate::connect::{Connected, Messages, Target};
use crate::table::Tables;

/// Each waited key is an entry in the server's shared lock table, which has about 64 per connection. Whoever waits beyond
/// this many keys at once looks again from time to time.
const MAX_KEYS: usize = 256;

/// How long a waiter waits for its registration before it goes on without.
const REGISTER_WITHIN: Duration = Duration::from_secs(1);

/// Between two attempts to listen; doubled up to five seconds while they fail.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The listening end of a backend. The connection is made when somebody first waits.
pub(crate) struct Listener {
    target: Target,
    locks: String,
    started: OnceLock<Started>,
}

struct Started {
    hub: WakeHub,
    orders: mpsc::UnboundedSender<Order>,
    task: AbortHandle,
}

impl Drop for Started {
    // The hub that the task feeds also talks to it, so the inbox alone would never close.
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Order {
    /// A waiter of this storage key wants to be told; answered once releases will be noticed.
    Register { key: Arc<str>, hash: String, done: oneshot::Sender<bool> },
    /// The last waiter of this storage key left.
    Forget(Arc<str>),
}

impl Listener {
    pub(crate) fn new(target: Target, tables: &Tables) -> Self {
        Self { target, locks: tables.locks.quoted(), started: OnceLock::new() }
    }

    /// Counts a waiter in. The hint never resolves if registering was not possible.
    pub(crate) async fn register(&self, key: &Key, storage_key: &str) -> WakeHint {
        let started = self.started.get_or_init(|| self.start());
        let hint = started.hub.subscribe(storage_key);
        let (done, registered) = oneshot::channel();
        let order = Order::Register { key: Arc::from(storage_key), hash: key.hash().to_string(), done };
        if started.orders.send(order).is_err() {
            return WakeHint::never();
        }
        match timeout(REGISTER_WITHIN, registered).await {
            // Refused for good: a pooler, or too many keys.
            Ok(Ok(false)) => WakeHint::never(),
            // Registered. Or down or slow: then a hint comes with the reconnect.
            _ => hint,
        }
    }

    fn start(&self) -> Started {
        let (orders, inbox) = mpsc::unbounded_channel();
        let leaving = orders.clone();
        let hub = WakeHub::new(move |key, interest| {
            if interest == Interest::Ended {
                drop(leaving.send(Order::Forget(Arc::from(key))));
            }
        });
        let work =
            Work { target: self.target.clone(), locks: self.locks.clone(), hub: hub.clone(), keys: HashMap::new() };
        let task = tokio::spawn(work.run(inbox)).abort_handle();
        Started { hub, orders, task }
    }
}

/// What the listening task knows.
struct Work {
    target: Target,
    locks: String,
    hub: WakeHub,
    /// Storage keys that the server knows to be waited for, by the hash that a notification carries.
    keys: HashMap<String, Arc<str>>,
}

impl Work {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.target.connect().await {
                Ok(connected) if connected.behind_pooler => {
                    tracing::debug!(target: "syncguard", "a pooler cannot carry wake-ups; waiters look again from time to time");
                    return refuse_all(inbox).await;
                }
                Ok(connected) => {
                    if self.listen(connected, &mut inbox).await {
                        pause = FIRST_PAUSE;
                    }
                }
                Err(_) => {}
            }
            self.note_waiters(&mut inbox);
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    /// While there is no connection, waiters are noted for the next one and not kept waiting.
    fn note_waiters(&mut self, inbox: &mut mpsc::UnboundedReceiver<Order>) {
        while let Ok(order) = inbox.try_recv() {
            if let Order::Register { key, hash, done } = order {
                if self.keys.len() < MAX_KEYS {
                    self.keys.insert(hash, key);
                }
                let _ = done.send(true);
            }
        }
    }

    /// Listens until the connection breaks. Whether it ever worked.
    async fn listen(&mut self, connected: Connected, inbox: &mut mpsc::UnboundedReceiver<Order>) -> bool {
        let Connected { client, mut messages, .. } = connected;
        let mut ended = false;
        let Some(oid) = drive(&mut messages, &self.hub, &self.keys, &mut ended, set_up(&client, &self.locks)).await
        else {
            return false;
        };
        // Whatever was registered before went with the old connection.
        let waited: Vec<(String, Arc<str>)> = self.keys.drain().collect();
        for (hash, key) in waited {
            if self.hub.has_waiters(&key) {
                let registering = register(&client, &oid, &key);
                if drive(&mut messages, &self.hub, &self.keys, &mut ended, registering).await {
                    self.keys.insert(hash, key.clone());
                }
                // It may have been released while nobody listened.
                self.hub.wake(&key);
            }
        }
        while !ended {
            let order = tokio::select! {
                order = inbox.recv() => order,
                () = drive_until_end(&mut messages, &self.hub, &self.keys, &mut ended) => return true,
            };
            match order {
                None => return true,
                Some(Order::Register { key, hash, done }) => {
                    let registered = self.keys.contains_key(&hash)
                        || (self.keys.len() < MAX_KEYS
                            && drive(&mut messages, &self.hub, &self.keys, &mut ended, register(&client, &oid, &key))
                                .await);
                    if registered {
                        self.keys.insert(hash, key);
                    }
                    let _ = done.send(registered);
                }
                Some(Order::Forget(key)) => {
                    // A new waiter may have come in the meantime.
                    if !self.hub.has_waiters(&key)
                        && let Some(hash) =
                            self.keys.iter().find(|(_, known)| **known == key).map(|(hash, _)| hash.clone())
                    {
                        self.keys.remove(&hash);
                        drive(&mut messages, &self.hub, &self.keys, &mut ended, forget(&client, &oid, &key)).await;
                    }
                }
            }
        }
        true
    }
}

/// Polls the connection while it works for `work`, and passes notifications on.
async fn drive<T>(
    messages: &mut Messages,
    hub: &WakeHub,
    keys: &HashMap<String, Arc<str>>,
    ended: &mut bool,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    poll_fn(|cx| {
        poll_messages(messages, hub, keys, ended, cx);
        work.as_mut().poll(cx)
    })
    .await
}

async fn drive_until_end(messages: &mut Messages, hub: &WakeHub, keys: &HashMap<String, Arc<str>>, ended: &mut bool) {
    poll_fn(|cx| {
        poll_messages(messages, hub, keys, ended, cx);
        if *ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

fn poll_messages(
    messages: &mut Messages,
    hub: &WakeHub,
    keys: &HashMap<String, Arc<str>>,
    ended: &mut bool,
    cx: &mut std::task::Context<'_>,
) {
    while !*ended {
        match messages.as_mut().poll_next(cx) {
            std::task::Poll::Pending => return,
            std::task::Poll::Ready(Some(Ok(AsyncMessage::Notification(notification)))) => {
                if let Some(key) = keys.get(notification.payload()) {
                    hub.wake(key);
                }
            }
            std::task::Poll::Ready(Some(Ok(_))) => {}
            std::task::Poll::Ready(None | Some(Err(_))) => *ended = true,
        }
    }
}

/// Starts listening; the table's oid is part of the channel's name and of what waiters lock.
async fn set_up(client: &Client, locks: &str) -> Option<String> {
    let row = client.query_typed_one("SELECT to_regclass($1)::oid::text", &[(&locks, Type::TEXT)]).await.ok()?;
    let oid: String = row.try_get::<_, Option<String>>(0).ok()??;
    // Registering waits for a release that is just committing, never for longer.
    client.batch_execute(&format!("SET lock_timeout = '900ms'; LISTEN syncguard_wake_{oid}")).await.ok()?;
    Some(oid)
}

async fn register(client: &Client, oid: &str, key: &str) -> bool {
    on_waited_key(client, "SELECT pg_advisory_lock_shared(1397184331, hashtext($1))", oid, key).await
}

async fn forget(client: &Client, oid: &str, key: &str) -> bool {
    on_waited_key(client, "SELECT pg_advisory_unlock_shared(1397184331, hashtext($1))", oid, key).await
}

async fn on_waited_key(client: &Client, sql: &str, oid: &str, key: &str) -> bool {
    let name = format!("{oid}:{key}");
    let name = crate::statement::Hidden(&name);
    client.query_typed(sql, &[(&name, Type::TEXT)]).await.is_ok()
}

/// Answers every waiter that there will be no hints, until the backend is gone.
async fn refuse_all(mut inbox: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = inbox.recv().await {
        if let Order::Register { done, .. } = order {
            let _ = done.send(false);
        }
    }
}
