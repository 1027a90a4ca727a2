//! What happens to a connection that was left in the middle?
//!
//! It may be in an open transaction or owe answers, because its operation failed, timed out or its task was ended. It is
//! closed, never handed on.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::Result;
use tokio::runtime::{self, Handle};
use tokio::sync::OwnedMutexGuard;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Notification, Statement};

use crate::connect::Target;
use crate::introduce::Purpose;
use crate::pool::{Loan, lock};
use crate::statement::{Columns, Sql};

/// An operation that was left after so long without its answers has seen a silence, and not only a slow answer.
const SILENCE: Duration = Duration::from_secs(1);

/// A connection of our own.
pub(crate) struct Connection {
    pub(crate) client: Client,
    /// Reads and writes for the client. It ends with the runtime that it was made on.
    driving: JoinHandle<()>,
    /// A runtime that is kept but does not run drives nothing, so a connection is used on its own runtime only.
    pub(crate) runtime: runtime::Id,
    /// What the server notifies, for who listens.
    pub(crate) heard: Option<UnboundedReceiver<Notification>>,
    /// The statements that were used here, by their names and by the columns they are for.
    prepared: Mutex<HashMap<(&'static str, Columns), Option<Statement>>>,
    pub(crate) behind_pooler: bool,
}

impl Connection {
    pub(crate) async fn open(target: &Target, purpose: Purpose) -> Result<Self> {
        let connected = target.connect(purpose).await?;
        let mut messages = connected.messages;
        let (tell, heard) = unbounded_channel();
        // The end of a connection is seen by whoever waits for an answer or a notification; there is nobody else to tell.
        let driving = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| messages.as_mut().poll_next(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    drop(tell.send(notification));
                }
            }
        });
        Ok(Self {
            client: connected.client,
            driving,
            runtime: Handle::current().id(),
            heard: Some(heard),
            prepared: Mutex::default(),
            behind_pooler: connected.behind_pooler,
        })
    }

    pub(crate) fn is_usable_here(&self) -> bool {
        self.runtime == Handle::current().id() && !self.client.is_closed()
    }

    /// Nothing at the first use: to prepare it would be a round trip more, for what is often asked once.
    async fn prepare(&self, sql: &Sql, types: &[Type]) -> Result<Option<Statement>, tokio_postgres::Error> {
        let name = (sql.name, sql.columns);
        match lock(&self.prepared).entry(name) {
            Entry::Vacant(unused) => {
                unused.insert(None);
                return Ok(None);
            }
            Entry::Occupied(used) if used.get().is_some() => return Ok(used.get().clone()),
            Entry::Occupied(_) => {}
        }
        let statement = self.client.prepare_typed(&sql.text, types).await?;
        lock(&self.prepared).insert(name, Some(statement.clone()));
        Ok(Some(statement))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

/// Where a connection on loan goes when it is given back.
#[cfg_attr(
    not(feature = "deadpool"),
    allow(clippy::large_enum_variant, reason = "one per operation, and never stored")
)]
pub(crate) enum Lent {
    /// To the pool.
    Own(Connection, Loan),
    /// It stays with who listens on it.
    Listening(Arc<Connection>, #[allow(dead_code, reason = "the turn of this operation")] OwnedMutexGuard<()>, Loan),
    #[cfg(feature = "deadpool")]
    Brought(deadpool_postgres::Object),
}

/// A connection on loan. Goes back when dropped, or is closed if it was left in the middle of something.
pub(crate) struct Session {
    lent: Option<Lent>,
    state: State,
    /// When the last operation began.
    begun: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Owes nothing.
    Clean,
    /// In the middle of something.
    Busy,
    /// Broke or fell silent.
    Broken,
}

impl Session {
    pub(crate) fn new(lent: Lent) -> Self {
        Self { lent: Some(lent), state: State::Clean, begun: Instant::now() }
    }

    fn lent(&self) -> &Lent {
        self.lent.as_ref().expect("a session is emptied by its drop alone")
    }

    pub(crate) fn client(&self) -> &Client {
        match self.lent() {
            Lent::Own(connection, _) => &connection.client,
            Lent::Listening(connection, ..) => &connection.client,
            #[cfg(feature = "deadpool")]
            Lent::Brought(object) => object,
        }
    }

    /// Whether this very connection leads through a pooler; unknown for one that was brought along.
    #[cfg_attr(not(feature = "deadpool"), allow(clippy::unnecessary_wraps, reason = "a pool may be brought along"))]
    pub(crate) fn behind_pooler(&self) -> Option<bool> {
        match self.lent() {
            Lent::Own(connection, _) => Some(connection.behind_pooler),
            Lent::Listening(connection, ..) => Some(connection.behind_pooler),
            #[cfg(feature = "deadpool")]
            Lent::Brought(_) => None,
        }
    }

    /// From here on until [`finished`](Self::finished) the connection is not fit for anybody else.
    pub(crate) fn begin(&mut self) {
        self.state = State::Busy;
        self.begun = Instant::now();
    }

    /// Every answer was received.
    pub(crate) fn finished(&mut self) {
        self.state = State::Clean;
    }

    /// It broke or fell silent. The idle ones beside it went the same way, most likely, and are not worth a timeout
    /// each.
    pub(crate) fn broke(&mut self) {
        self.state = State::Broken;
    }

    /// Whether the operation was left after such a wait that the connection must be taken for a silent one. A renewal
    /// has a bound of its own, which ends before the backend's.
    fn was_silent(&self) -> bool {
        self.state == State::Broken || (self.state == State::Busy && self.begun.elapsed() >= SILENCE)
    }

    /// Prepares every statement anew.
    pub(crate) fn forget_statements(&self) {
        match self.lent() {
            Lent::Own(connection, _) => lock(&connection.prepared).clear(),
            Lent::Listening(connection, ..) => lock(&connection.prepared).clear(),
            #[cfg(feature = "deadpool")]
            Lent::Brought(object) => object.statement_cache.clear(),
        }
    }

    /// The statement under its name on this connection, if it is worth one.
    pub(crate) async fn prepare(&self, sql: &Sql, types: &[Type]) -> Result<Option<Statement>, tokio_postgres::Error> {
        match self.lent() {
            Lent::Own(connection, _) => connection.prepare(sql, types).await,
            Lent::Listening(connection, ..) => connection.prepare(sql, types).await,
            #[cfg(feature = "deadpool")]
            Lent::Brought(object) => object.prepare_typed_cached(&sql.text, types).await.map(Some),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (is_clean, was_silent) = (self.state == State::Clean, self.was_silent());
        match self.lent.take() {
            Some(Lent::Own(connection, loan)) if is_clean => loan.give_back(connection),
            Some(Lent::Own(_, loan)) if was_silent => loan.give_up_idle(),
            Some(Lent::Listening(connection, _, loan)) if !is_clean => {
                // Who listens on it begins anew.
                connection.driving.abort();
                if was_silent {
                    loan.give_up_idle();
                }
            }
            #[cfg(feature = "deadpool")]
            // Dropping the object returns it to its pool; taking it out first closes it.
            Some(Lent::Brought(object)) if !is_clean => drop(deadpool_postgres::Object::take(object)),
            _ => {}
        }
    }
}
