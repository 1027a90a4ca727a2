//! How is a transaction one round trip?
//!
//! `BEGIN`, the gate (bounds and the advisory lock), the deciding statement and `COMMIT` are sent together; the server
//! works through them in order and the answers come back together. If one fails the server refuses the rest and
//! `COMMIT` becomes a rollback, so nothing depends on the client seeing the middle.

use syncguard_core::{LockError, Result};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;

use crate::error;
use crate::pool::Session;
use crate::statement::{BEGIN, COMMIT, Call};

/// Runs gate and decision in one transaction, and returns the decision's row.
///
/// # Errors
/// Ambiguous when the commit may have happened although no answer came.
pub(crate) async fn transact(
    session: &mut Session,
    named: bool,
    gate: Call<'_>,
    decision: Call<'_>,
    deadline: Instant,
) -> Result<Row> {
    session.begin();
    let Ok(outcome) = timeout_at(deadline, send(session, named, gate, decision)).await else {
        session.broke();
        return Err(error::no_answer());
    };
    match outcome {
        Ok(row) => {
            session.finished();
            row.ok_or_else(|| LockError::internal("postgres answered without a row"))
        }
        Err(failure) => {
            // After an error from the server all four answers have come, and COMMIT has rolled back.
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

async fn send(session: &Session, named: bool, gate: Call<'_>, decision: Call<'_>) -> Result<Option<Row>, Failure> {
    let not_sent = |error| Failure { error, may_have_committed: false };
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
    // The first error is the cause; those after it only say that the transaction is aborted. If the server itself
    // refused a statement, the commit cannot have happened. A pooler that lost the server answers with an error too,
    // and it may have lost the server after the commit.
    let refused = |error: tokio_postgres::Error| Failure { may_have_committed: error::ends_connection(&error), error };
    begun.map_err(refused)?;
    passed.map_err(refused)?;
    let rows = decided.map_err(refused)?;
    committed.map_err(|error| Failure { error, may_have_committed: true })?;
    Ok(rows.into_iter().next())
}

/// Runs one reading statement.
pub(crate) async fn ask(session: &mut Session, named: bool, call: Call<'_>, deadline: Instant) -> Result<Option<Row>> {
    session.begin();
    let asking = async {
        let ready = call.ready(session, named).await?;
        ready.run(session.client()).await
    };
    match timeout_at(deadline, asking).await {
        Ok(Ok(rows)) => {
            session.finished();
            Ok(rows.into_iter().next())
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
