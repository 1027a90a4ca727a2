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
    let Ok(outcome) = timeout_at(deadline, send(session, manner, gate, decision)).await else {
        session.broke();
        return Err(error::no_answer());
    };
    session.finished();
    first(settle(session, outcome)?)
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
    let [rows, _] = decide_both(session, manner, [Some(decision), None], deadline).await;
    first(rows?)
}

/// As [`decide`], for up to two decisions in one round trip, each a transaction of its own. Without a decision there are
/// no rows.
///
/// # Errors
/// As [`transact`], for each of them.
pub(crate) async fn decide_both(
    session: &mut Session,
    manner: Manner,
    decisions: [Option<Call<'_>>; 2],
    deadline: Instant,
) -> [Result<Vec<Row>>; 2] {
    session.begin();
    let [first, second] = decisions;
    // Each future queues its request when it is first polled, so both travel together.
    let sending = async { tokio::join!(run(session, manner, first), run(session, manner, second)) };
    let Ok((first, second)) = timeout_at(deadline, sending).await else {
        session.broke();
        return [Err(error::no_answer()), Err(error::no_answer())];
    };
    session.finished();
    // Whichever spoils the session has the last word.
    let (first, second) = (settle(session, first), settle(session, second));
    [first, second]
}

async fn run(session: &Session, manner: Manner, decision: Option<Call<'_>>) -> Result<Vec<Row>, Failure> {
    let Some(decision) = decision else { return Ok(Vec::new()) };
    let ready = decision.ready(session, manner.is_named).await.map_err(not_sent)?;
    // The rows are complete only when the server is ready again, which is after its commit.
    ready.run(session.client()).await.map_err(refused)
}

fn first(rows: Vec<Row>) -> Result<Row> {
    rows.into_iter().next().ok_or_else(|| LockError::internal("postgres answered without a row"))
}

/// Says what an outcome means for the session and for the caller.
fn settle(session: &mut Session, outcome: Result<Vec<Row>, Failure>) -> Result<Vec<Row>> {
    outcome.map_err(|failure| {
        // After an error from the server every answer has come or is on its way before the next, and the transaction was
        // rolled back.
        if error::spoils_connection(&failure.error) {
            session.broke();
        }
        let explained = error::from_statement(&failure.error);
        if failure.may_have_committed { explained.ambiguous() } else { explained }
    })
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

async fn send(session: &Session, manner: Manner, gate: Call<'_>, decision: Call<'_>) -> Result<Vec<Row>, Failure> {
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
    Ok(rows)
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
