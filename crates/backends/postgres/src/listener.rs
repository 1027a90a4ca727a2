//! How does this process hear that a lock was released elsewhere?
//!
//! Over one connection that `LISTEN`s on the table's channel, and on which others ask meanwhile. `NOTIFY` makes all commits of a database queue up, so a
//! release notifies only if somebody waits, and it must learn that for free. A waiting process therefore holds a
//! *shared advisory lock* on the waited key; a release tries the same lock exclusively, which fails exactly when
//! somebody waits. No row is written, nothing is left behind by a process that dies, and a release that nobody waits
//! for pays one entry in the server's lock table.
//!
//! When to connect, subscribe, ping, give up and wake is the [core's](syncguard_core::listener) part; here is how.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::HashId;
use syncguard_core::listener::{Commands, Ended, Heard, Listener, Messages, Settings, Source};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Notification};

use crate::connect::Target;
use crate::introduce::Purpose;
use crate::pool::{Listening, Pool};
use crate::session::Connection;
use crate::statement::Hidden;
use crate::table::Tables;

/// Each waited key is an entry in the server's shared lock table, which has about 64 per connection. Whoever waits
/// beyond this many keys at once looks again from time to time.
const MAX_KEYS: usize = 256;

/// The topic of who wants to hear of every release that is told to anybody. No key is empty.
pub(crate) const EVERY_KEY: &str = "";

/// For how long a release that is just committing may keep its key's lock from us, and how long we wait before we ask again,
/// at first and at most: a commit takes a moment, and whoever registers then waits for exactly this lock.
const COMMITTING: Duration = Duration::from_secs(2);
const FIRST_STEP: Duration = Duration::from_millis(1);
const LAST_STEP: Duration = Duration::from_millis(20);

/// How long the server may take before a connection listens.
const SET_UP: Duration = Duration::from_secs(2);

/// The listening end of a backend. The topics are storage keys.
pub(crate) type PostgresListener = Listener<Channel>;

/// Listens at another address than the pool's, where one is given.
pub(crate) fn new(pool: Arc<Pool>, elsewhere: Option<Target>, tables: &Tables) -> PostgresListener {
    Listener::new(Channel { pool, elsewhere, locks: tables.locks.quoted() })
}

/// The channel of one lock table.
pub(crate) struct Channel {
    pool: Arc<Pool>,
    elsewhere: Option<Target>,
    locks: String,
}

impl Source for Channel {
    type Commands = Registrations;
    type Messages = Notifications;

    async fn connect(&self) -> Result<(Registrations, Notifications), Ended> {
        let connecting = match &self.elsewhere {
            Some(target) => Some(Connection::open(target, Purpose::Other).await),
            None => self.pool.to_listen_on().await,
        };
        let mut connection = connecting.ok_or(Ended::Refused)?.map_err(|_| Ended::Lost)?;
        if connection.behind_pooler {
            tracing::debug!(target: "syncguard", "a pooler cannot carry wake-ups; waiters look again from time to time");
            return Err(Ended::Refused);
        }
        let heard = connection.heard.take().ok_or(Ended::Lost)?;
        let set_up = timeout(SET_UP, set_up(&connection.client, &self.locks)).await;
        let oid = set_up.ok().and_then(Result::ok).flatten().ok_or(Ended::Lost)?;
        let listening = Listening::new(connection);
        let shared_by = self.elsewhere.is_none().then(|| self.pool.clone());
        if let Some(pool) = &shared_by {
            pool.listens(Some(listening.clone()));
        }
        let registered = Registered::default();
        Ok((
            Registrations { listening, shared_by, oid, registered: registered.clone() },
            Notifications { heard, registered, also: None },
        ))
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.max_topics = MAX_KEYS;
        settings
    }
}

/// The registered storage keys, by the hash that a notification carries: every role of the database may listen, so a
/// notification does not show the key. Written by the sending half, read by the hearing half.
#[derive(Clone, Default)]
pub(crate) struct Registered(Arc<Mutex<HashMap<String, Arc<str>>>>);

impl Registered {
    // Every change is one step, so a panic leaves nothing half done.
    fn keys(&self) -> MutexGuard<'_, HashMap<String, Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers waited keys with the server.
pub(crate) struct Registrations {
    listening: Listening,
    /// Whose operations may ask on this connection too.
    shared_by: Option<Arc<Pool>>,
    /// The table's, which is part of the channel's name and of what waiters lock.
    oid: String,
    registered: Registered,
}

impl Commands for Registrations {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        // Before anything is sent, so that a release that is made here later knows.
        self.listening.is_waited.store(true, Ordering::Release);
        let mut left = topics.to_vec();
        // Needs no advisory lock: a watcher hears what others are told, and makes no release notify.
        left.retain(|topic| &**topic != EVERY_KEY);
        if left.len() < topics.len() {
            self.registered.keys().insert(EVERY_KEY.to_owned(), EVERY_KEY.into());
        }
        let (mut waited, mut step) = (Duration::ZERO, FIRST_STEP);
        loop {
            // Whoever is just releasing has the lock until its commit, and registering before that would miss it.
            let sql = "SELECT pg_try_advisory_lock_shared(1397184331, hashtext(name)) FROM unnest($1) AS name";
            let mut taken = self.on_keys(sql, &left).await?.into_iter();
            left.retain(|topic| {
                let registered = taken.next() == Some(true);
                if registered {
                    self.registered.keys().insert(HashId::of(topic).to_string(), topic.clone());
                }
                !registered
            });
            // What is left then stays unconfirmed, and the core begins anew with another connection.
            if left.is_empty() || waited >= COMMITTING {
                return Ok(topics.iter().filter(|topic| !left.contains(topic)).cloned().collect());
            }
            sleep(step).await;
            waited += step;
            step = LAST_STEP.min(step * 2);
        }
    }

    async fn unsubscribe(&mut self, topics: &[Arc<str>]) -> Result<(), Ended> {
        // A lock that was never taken must not be given back: another key may have the same hash.
        let known = |topic: &&Arc<str>| self.registered.keys().remove(&HashId::of(topic).to_string()).is_some();
        let held: Vec<Arc<str>> = topics.iter().filter(known).cloned().collect();
        if topics.iter().any(|topic| &**topic == EVERY_KEY) {
            self.registered.keys().remove(EVERY_KEY);
        }
        let sql = "SELECT pg_advisory_unlock_shared(1397184331, hashtext(name)) FROM unnest($1) AS name";
        self.on_keys(sql, &held).await?;
        let is_waited = !self.registered.keys().is_empty();
        self.listening.is_waited.store(is_waited, Ordering::Release);
        Ok(())
    }

    async fn ping(&mut self) -> Result<(), Ended> {
        self.listening.connection.client.batch_execute("SELECT 1").await.map_err(|_| Ended::Lost)
    }
}

impl Drop for Registrations {
    fn drop(&mut self) {
        if let Some(pool) = &self.shared_by {
            pool.listens(None);
        }
    }
}

impl Registrations {
    /// Runs one of the lock functions on each key, in order.
    async fn on_keys(&self, sql: &str, keys: &[Arc<str>]) -> Result<Vec<bool>, Ended> {
        let names = Hidden(keys.iter().map(|key| format!("{}:{key}", self.oid)).collect::<Vec<_>>());
        let client = &self.listening.connection.client;
        let rows = client.query_typed(sql, &[(&names, Type::TEXT_ARRAY)]).await.map_err(|_| Ended::Lost)?;
        rows.iter().map(|row| row.try_get(0).map_err(|_| Ended::Lost)).collect()
    }
}

/// Hears notifications.
pub(crate) struct Notifications {
    heard: UnboundedReceiver<Notification>,
    registered: Registered,
    /// The topic of watchers, when the message that was just given out concerns them too.
    also: Option<Arc<str>>,
}

impl Messages for Notifications {
    async fn next(&mut self) -> Result<Heard, Ended> {
        let released = |topic| Heard::Released { topic, hold_back: Duration::ZERO };
        if let Some(topic) = self.also.take() {
            return Ok(released(topic));
        }
        match self.heard.recv().await {
            Some(notification) => {
                let registered = self.registered.keys();
                let topic = registered.get(notification.payload()).cloned();
                let everybody = registered.get(EVERY_KEY).cloned();
                let (first, second) = if topic.is_some() { (topic, everybody) } else { (everybody, None) };
                self.also = second;
                Ok(first.map_or(Heard::Nothing, released))
            }
            None => Err(Ended::Lost),
        }
    }
}

/// Starts listening; the table's oid, or nothing if there is no such table.
async fn set_up(client: &Client, locks: &str) -> Result<Option<String>, Error> {
    let row = client.query_typed_one("SELECT to_regclass($1)::oid::text", &[(&locks, Type::TEXT)]).await?;
    let Some(oid) = row.try_get::<_, Option<String>>(0)? else { return Ok(None) };
    client.batch_execute(&format!("LISTEN syncguard_wake_{oid}")).await?;
    Ok(Some(oid))
}
