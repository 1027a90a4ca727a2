//! How is a transaction one round trip?
//!
//! On a connection of our own the deciding statement *is* the transaction: the session has the settings that it needs,
//! and the server commits at its end. Elsewhere `BEGIN`, the gate that bounds the waits, the deciding statement and
//! `COMMIT` are sent together; the server works through them in order and the answers come back together. If one fails
//! the server refuses the rest and `COMMIT` becomes a rollback, so nothing depends on the client seeing the middle.

use syncguard_core::Result;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use crate::error;
use crate::session::Session;
use crate::statement::{BEGIN, COMMIT, Call};

/// How a statement is sent on one connection.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Prepared once under a name, instead of parsed at every call.
    pub(crate) is_named: bool,
    /// Whether a failure leaves the question open what the server did.
    pub(crate) changes: bool,
}

/// Runs a statement and returns its rows: as a transaction by itself, or behind a gate in one with it.
///
/// # Errors
/// Ambiguous when a change may have been committed although no answer came.
pub(crate) async fn send(
    session: &mut Session,
    manner: Manner,
    gate: Option<Call<'_>>,
    decision: Call<'_>,
    deadline: Instant,
) -> Result<Vec<Row>> {
    session.begin();
    let sending = async {
        match gate {
            None => alone(session, manner.is_named, decision).await,
            Some(gate) => behind_gate(session, manner.is_named, gate, decision).await,
        }
    };
    let Ok(outcome) = timeout_at(deadline, sending).await else {
        session.broke();
        return Err(error::no_answer());
    };
    session.finished();
    outcome.map_err(|failure| {
        // After an error from the server every answer has come or is on its way before the next, and the transaction was
        // rolled back.
        if error::spoils_connection(&failure.error) {
            session.broke();
        }
        let explained = error::from_statement(&failure.error);
        if failure.may_have_committed && manner.changes { explained.ambiguous() } else { explained }
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

async fn alone(session: &Session, is_named: bool, decision: Call<'_>) -> Result<Vec<Row>, Failure> {
    let ready = decision.ready(session, is_named).await.map_err(not_sent)?;
    // The rows are complete only when the server is ready again, which is after its commit.
    ready.run(session.client()).await.map_err(refused)
}

async fn behind_gate(
    session: &Session,
    is_named: bool,
    gate: Call<'_>,
    decision: Call<'_>,
) -> Result<Vec<Row>, Failure> {
    // On a new connection both are prepared in one round trip; afterwards neither needs one.
    let (gate, decision) = tokio::join!(gate.ready(session, is_named), decision.ready(session, is_named));
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
