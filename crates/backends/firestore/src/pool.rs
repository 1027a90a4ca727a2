//! Which connection does a call use, and when is it given up?
//!
//! All tasks share one HTTP/2 channel. It is replaced when a call on it got no answer in time (a connection can go
//! silent without an end: a suspended machine, a dropped NAT entry), and when the runtime that made it has ended, since
//! its worker ended with it. The same runtime renews access tokens, so credentials are made anew then as well.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::Result;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::codegen::Service;
use tonic::transport::{Channel, Endpoint};

use crate::auth::{Auth, AuthSource};
use crate::builder::FirestoreBuilder;
use crate::connect::endpoint;
use crate::error::{Kind, RpcError};

/// The connections of one backend. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    auth_source: AuthSource,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many channels were made: tells whether the one that a call complains about is still in use.
    made: u64,
    /// The channel for the next call; none after one was given up.
    channel: Option<Tied<Channel>>,
    /// Outlives channels: a silent connection says nothing against the token.
    auth: Option<Tied<Auth>>,
}

/// What one call uses.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    pub(crate) auth: Auth,
    /// Which channel it is, for those who give it up.
    pub(crate) number: u64,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) deadline: Instant,
    /// After so long without an answer the connection is suspected to be dead.
    pub(crate) silence: Duration,
}

impl Pool {
    /// Prepares the connection, which is made by the first call.
    pub(crate) fn new(settings: &FirestoreBuilder) -> Result<Self> {
        let auth_source = AuthSource::of(settings);
        let auth = Tied::new(auth_source.load()?);
        let state = Mutex::new(State { auth: Some(auth), ..State::default() });
        Ok(Self(Arc::new(Inner { endpoint: endpoint(settings)?, auth_source, state })))
    }

    /// The connection for a call.
    pub(crate) async fn connection(&self) -> Result<Connection, RpcError> {
        let mut connection = self.current()?;
        // Fails only when the channel's worker is gone, which a runtime in the middle of its end does not show yet.
        if ready(&mut connection.channel).await.is_err() {
            self.give_up(connection.number);
            connection = self.current()?;
            ready(&mut connection.channel).await?;
        }
        Ok(connection)
    }

    fn current(&self) -> Result<Connection, RpcError> {
        let mut state = self.state();
        let auth = match state.auth.as_ref().filter(|auth| auth.is_alive()) {
            Some(auth) => auth.value.clone(),
            None => {
                let auth = self.0.auth_source.load().map_err(|_| RpcError::new(Kind::NoToken(false)))?;
                state.auth = Some(Tied::new(auth.clone()));
                auth
            }
        };
        let channel = match state.channel.as_ref().filter(|channel| channel.is_alive()) {
            Some(channel) => channel.value.clone(),
            None => {
                let channel = self.0.endpoint.connect_lazy();
                state.made += 1;
                state.channel = Some(Tied::new(channel.clone()));
                channel
            }
        };
        Ok(Connection { channel, auth, number: state.made })
    }

    /// Has the next call use a new channel, unless that has happened already.
    pub(crate) fn give_up(&self, number: u64) {
        let mut state = self.state();
        if state.made == number {
            state.channel = None;
        }
    }

    /// Watches over a call: one that is dropped after such a silence counts as one that timed out.
    pub(crate) fn watch(&self, number: u64, patience: Patience) -> Unanswered<'_> {
        let silent_at = (Instant::now() + patience.silence).min(patience.deadline);
        Unanswered { pool: self, number, silent_at, is_answered: false }
    }

    // Each change is one assignment.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ready(channel: &mut Channel) -> Result<(), RpcError> {
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(|_| RpcError::new(Kind::NotConnected))
}

/// A call that has no answer yet.
pub(crate) struct Unanswered<'a> {
    pool: &'a Pool,
    number: u64,
    silent_at: Instant,
    is_answered: bool,
}

impl Unanswered<'_> {
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered && Instant::now() >= self.silent_at {
            self.pool.give_up(self.number);
        }
    }
}

/// Something whose background work lives on the runtime that made it.
#[derive(Debug)]
struct Tied<T> {
    value: T,
    /// Does nothing, for as long as the runtime lives.
    life: JoinHandle<()>,
}

impl<T> Tied<T> {
    fn new(value: T) -> Self {
        Self { value, life: tokio::spawn(std::future::pending()) }
    }

    fn is_alive(&self) -> bool {
        !self.life.is_finished()
    }
}

impl<T> Drop for Tied<T> {
    fn drop(&mut self) {
        self.life.abort();
    }
}
