//! How is a transaction one round trip?
//!
//! On a connection of our own the deciding statement *is* the transaction: the session has the settings that it needs,
//! and the server commits at its end. Elsewhere `BEGIN`, the gate (bounds and, for acquire, the advisory lock), the
//! deciding statement and `COMMIT` are sent together; the server works through them in order and the answers come back
//! together. If one fails the server refuses the rest and `COMMIT` becomes a rollback, so nothing depends on the client
//! seeing the middle.

use syncguard_core::{LockError, Result};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use crate::error;
use crate::pool::Session;
use crate::statement::{BEGIN, COMMIT, Call};

/// How statements are sent on one connection.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Prepared once under a name, instead of parsed at every call.
    pub(crate) is_named: bool,
    /// No pooler in between and nobody else on it: the session has the settings of `introduce.sql`.
    pub(crate) is_direct: bool,
}

/// Runs gate and decision in one transaction, and returns the decision's row.
///
/// # Errors
/// Ambiguous when the commit may have happened although no answer came.
pub(crate) async fn transact(
    session: &mut Session,
    manner: Manner,
    gate: Call<'_>,
    decision: Call<'_>,
    deadline: Instant,
) -> Result<Row> {
    session.begin();
    let outcome = timeout_at(deadline, send(session, manner, gate, decision)).await;
    settle(session, outcome.ok())
}

/// Runs a decision that is a transaction by itself, on a session with our settings.
///
/// # Errors
/// As [`transact`].
pub(crate) async fn decide(
    session: &mut Session,
    manner: Manner,
    decision: Call<'_>,
    deadline: Instant,
) -> Result<Row> {
    session.begin();
    let sending = async {
        let ready = decision.ready(session, manner.is_named).await.map_err(not_sent)?;
        // The rows are complete only when the server is ready again, which is after its commit.
        ready.run(session.client()).await.map(|rows| rows.into_iter().next()).map_err(refused)
    };
    let outcome = timeout_at(deadline, sending).await;
    settle(session, outcome.ok())
}

/// Says what an outcome means for the session and for the caller. `None`: no answer came in time.
fn settle(session: &mut Session, outcome: Option<Result<Option<Row>, Failure>>) -> Result<Row> {
    match outcome {
        None => {
            session.broke();
            Err(error::no_answer())
        }
        Some(Ok(row)) => {
            session.finished();
            row.ok_or_else(|| LockError::internal("postgres answered without a row"))
        }
        Some(Err(failure)) => {
            // After an error from the server every answer has come or is on its way before the next, and the
            // transaction was rolled back.
            if error::spoils_connection(&failure.error) {
                session.broke();
            } else {
                session.finished();
            }
            let explained = error::from_statement(&failure.error);
            Err(if failure.may_have_committed { explained.ambiguous() } else { explained })
        }
    }
}

struct Failure {
    error: tokio_postgres::Error,
    may_have_committed: bool,
}

fn not_sent(error: tokio_postgres::Error) -> Failure {
    Failure { error, may_have_committed: false }
}

/// If the server itself refused a statement, the commit cannot have happened. A pooler that lost the server answers with
/// an error too, and it may have lost the server after the commit.
fn refused(error: tokio_postgres::Error) -> Failure {
    Failure { may_have_committed: error::ends_connection(&error), error }
}

async fn send(session: &Session, manner: Manner, gate: Call<'_>, decision: Call<'_>) -> Result<Option<Row>, Failure> {
    let named = manner.is_named;
    // On a new connection both are prepared in one round trip; afterwards neither needs one.
    let (gate, decision) = tokio::join!(gate.ready(session, named), decision.ready(session, named));
    let (gate, decision) = (gate.map_err(not_sent)?, decision.map_err(not_sent)?);
    let client = session.client();
    // Each future queues its request when it is first polled, and `biased` polls in this order.
    let (begun, passed, decided, committed) = tokio::join!(
        biased;
        client.batch_execute(BEGIN),
        gate.run(client),
        decision.run(client),
        client.batch_execute(COMMIT),
    );
    // The first error is the cause; those after it only say that the transaction is aborted.
    begun.map_err(refused)?;
    passed.map_err(refused)?;
    let rows = decided.map_err(refused)?;
    committed.map_err(|error| Failure { error, may_have_committed: true })?;
    Ok(rows.into_iter().next())
}

/// Runs one reading statement.
pub(crate) async fn ask(session: &mut Session, manner: Manner, call: Call<'_>, deadline: Instant) -> Result<Vec<Row>> {
    session.begin();
    let asking = async {
        let ready = call.ready(session, manner.is_named).await?;
        ready.run(session.client()).await
    };
    match timeout_at(deadline, asking).await {
        Ok(Ok(rows)) => {
            session.finished();
            Ok(rows)
        }
        Ok(Err(failure)) => {
            if error::spoils_connection(&failure) {
                session.broke();
            } else {
                session.finished();
            }
            Err(error::from_statement(&failure))
        }
        Err(_) => {
            session.broke();
            Err(error::no_answer())
        }
    }
}
