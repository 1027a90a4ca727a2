//! How do thousands of tasks talk to one server?
//!
//! Over a few connections that each carry many requests at once. A connection that ends is replaced by the next caller, before
//! anything is sent; a connection that stays silent for a whole timeout is given up. Nothing is ever sent twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};

use crate::dial::{Dial, Live};
use crate::error::{CallError, DialError};

/// The connections to one server.
pub(crate) struct Line {
    dial: Dial,
    seats: Box<[Seat]>,
    next: AtomicUsize,
}

/// The place of one connection.
#[derive(Default)]
struct Seat {
    live: RwLock<Option<Live>>,
    // One caller dials; those who waited share its failure, so that a dead server costs each of them one bound and not a queue of them.
    dialing: tokio::sync::Mutex<Dialled>,
    dials: AtomicUsize,
}

#[derive(Default)]
struct Dialled {
    failure: Option<DialError>,
}

impl Line {
    pub(crate) fn new(dial: Dial, connections: usize) -> Self {
        let seats = (0..connections).map(|_| Seat::default()).collect();
        Self { dial, seats, next: AtomicUsize::new(0) }
    }

    pub(crate) fn dial(&self) -> &Dial {
        &self.dial
    }

    /// Sends one command and awaits its reply.
    pub(crate) async fn command(&self, command: &Cmd, timeout: Duration) -> Result<Value, CallError> {
        let mut live = self.live().await?;
        let heard = live.heard.load(Ordering::Relaxed);
        match tokio::time::timeout(timeout, live.connection.send_packed_command(command)).await {
            Ok(Ok(reply)) => answer(reply),
            Ok(Err(error)) => Err(give_up_if_garbled(&live, error)),
            Err(_) => Err(give_up_if_silent(&live, heard)),
        }
    }

    /// Sends several commands on one connection and awaits all replies; an error reply stays in its place.
    pub(crate) async fn commands(&self, commands: &Pipeline, timeout: Duration) -> Result<Vec<Value>, CallError> {
        let mut live = self.live().await?;
        let heard = live.heard.load(Ordering::Relaxed);
        let count = commands.len();
        match tokio::time::timeout(timeout, live.connection.send_packed_commands(commands, 0, count)).await {
            Ok(Ok(replies)) => Ok(replies),
            Ok(Err(error)) => Err(give_up_if_garbled(&live, error)),
            Err(_) => Err(give_up_if_silent(&live, heard)),
        }
    }

    /// Makes sure that there is a connection.
    pub(crate) async fn ready(&self) -> Result<(), DialError> {
        self.live().await.map(|_| ()).map_err(|error| match error {
            CallError::Dial(error) => error,
            // `live` only dials.
            CallError::Redis(_) | CallError::Timeout => DialError::timed_out(&self.dial.name()),
        })
    }

    /// Drops all connections: the server is not what it was (a master that became a replica).
    pub(crate) fn hang_up(&self) {
        for seat in &self.seats {
            let live = seat.live.write().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(live) = live {
                live.close();
            }
        }
    }

    async fn live(&self) -> Result<Live, CallError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let seat = &self.seats[turn % self.seats.len()];
        match seat.current() {
            Some(live) => Ok(live),
            None => seat.dial(&self.dial).await.map_err(CallError::Dial),
        }
    }
}

impl Seat {
    fn current(&self) -> Option<Live> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.as_ref().filter(|live| !live.is_closed()).cloned()
    }

    async fn dial(&self, dial: &Dial) -> Result<Live, DialError> {
        let seen = self.dials.load(Ordering::Acquire);
        let mut dialled = self.dialing.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if self.dials.load(Ordering::Acquire) != seen
            && let Some(failure) = &dialled.failure
        {
            return Err(failure.clone());
        }
        let result = dial.connect().await;
        self.dials.fetch_add(1, Ordering::AcqRel);
        dialled.failure = result.as_ref().err().cloned();
        let live = result?;
        *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        Ok(live)
    }
}

fn answer(reply: Value) -> Result<Value, CallError> {
    match reply {
        Value::ServerError(error) => Err(CallError::Redis(error.into())),
        reply => Ok(reply),
    }
}

/// After bytes that are no reply, nobody knows whose reply comes next.
fn give_up_if_garbled(live: &Live, error: RedisError) -> CallError {
    if error.kind() == ErrorKind::Parse {
        live.close();
    }
    CallError::from(error)
}

/// A connection on which others still hear answers is only slow; one that is silent may be dead without knowing.
fn give_up_if_silent(live: &Live, heard: u64) -> CallError {
    if live.heard.load(Ordering::Relaxed) == heard {
        live.close();
    }
    CallError::Timeout
}
