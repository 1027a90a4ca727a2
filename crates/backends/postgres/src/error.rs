//! What does a failure of the driver or the server mean to who wants a lock?
//!
//! Decided by SQLSTATE and by the type of the cause, never by message text. The server's own words are passed on only
//! for kinds of errors whose words are ours or the operator's (names of tables, roles, databases), because others quote
//! data: `Key (lock_id)=(…) already exists`.

use std::error::Error;
use std::{fmt, io};

#[cfg(feature = "deadpool")]
use deadpool_postgres::{PoolError, TimeoutType};
use syncguard_core::{ErrorCode, LockError};
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::wire::{BadGreeting, HandshakeFailed};

/// What the server said, as far as it may be repeated.
#[derive(Debug)]
struct ServerSaid {
    sqlstate: String,
    message: Option<String>,
}

impl fmt::Display for ServerSaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => write!(f, "{message} (SQLSTATE {})", self.sqlstate),
            None => write!(f, "SQLSTATE {}", self.sqlstate),
        }
    }
}

impl Error for ServerSaid {}

/// A failure of a statement.
pub(crate) fn from_statement(error: &tokio_postgres::Error) -> LockError {
    if let Some(db) = error.as_db_error() {
        return from_server(db);
    }
    from_cause(error, "the connection to postgres broke")
}

/// A failure to connect. Nothing was asked yet, so it is never ambiguous.
pub(crate) fn from_connect(error: &tokio_postgres::Error) -> LockError {
    if let Some(db) = error.as_db_error() {
        return from_server(db);
    }
    let unexplained = !error.is_closed() && io_cause(error).is_none() && error.source().is_some();
    if unexplained {
        // What is left while connecting: no password was given, or the server failed to prove that it knows it.
        return LockError::new(
            ErrorCode::AuthFailed,
            "postgres asks for a password that was not given, or the proof failed",
        )
        .with_hint("set PGPASSWORD or a password file, or put the password in the URL");
    }
    if let Some(bad) =
        io_cause(error).and_then(io::Error::get_ref).and_then(|error| error.downcast_ref::<BadGreeting>())
    {
        let (code, hint) = match bad {
            BadGreeting::TooLong => (ErrorCode::ServiceUnavailable, "check host and port"),
            BadGreeting::Refused(_) => (
                ErrorCode::AuthFailed,
                "nothing was sent; either another server answers, or pg_hba.conf has another method for this role",
            ),
        };
        return LockError::new(code, bad.to_string()).with_hint(hint);
    }
    if io_cause(error).and_then(io::Error::get_ref).is_some_and(<dyn Error + Send + Sync>::is::<HandshakeFailed>) {
        return from_cause(error, "the TLS handshake with postgres failed")
            .with_hint("check the host name, the server's certificate and `sslrootcert`");
    }
    from_cause(error, "postgres did not accept the connection")
        .with_hint("check host, port and sslmode, and that the server runs")
}

/// A pool that gave no connection.
#[cfg(feature = "deadpool")]
pub(crate) fn from_pool(error: &PoolError) -> LockError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => all_busy(),
        PoolError::Timeout(_) => {
            LockError::new(ErrorCode::NetworkTimeout, "postgres did not answer the connection in time")
        }
        PoolError::Backend(error) => from_connect(error),
        PoolError::Closed => LockError::new(ErrorCode::ServiceUnavailable, "the connection pool is closed"),
        PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
            LockError::internal("the connection pool is not set up for tokio")
        }
    }
}

/// Every connection this operation may use is in use.
pub(crate) fn all_busy() -> LockError {
    LockError::new(ErrorCode::RateLimited, "all connections to postgres are busy")
        .with_hint("raise pool_size, or look for a key whose server-side lock is held for long")
}

/// Another transaction on the server keeps this key or its row. Nothing was done.
pub(crate) fn key_in_use() -> LockError {
    LockError::new(ErrorCode::NetworkTimeout, "another transaction on the server is at this key for too long")
        .with_hint("look for a transaction that stays open after acquire_in_tx, or raise lock_timeout")
}

/// The server acted as if it had not understood.
pub(crate) fn no_row() -> LockError {
    LockError::internal("postgres answered without a row")
}

/// No connection came about in time.
pub(crate) fn no_answer_to_connect() -> LockError {
    LockError::new(ErrorCode::NetworkTimeout, "postgres did not answer the connection in time")
        .with_hint("check host and port, or raise connect_timeout")
}

/// The answer did not come in time; the server may have acted.
pub(crate) fn no_answer() -> LockError {
    LockError::new(ErrorCode::NetworkTimeout, "postgres did not answer in time").ambiguous()
}

/// A stored value that no client of ours wrote.
pub(crate) fn damaged(what: &'static str) -> LockError {
    LockError::internal(format!("the stored lock has a damaged {what}"))
        .with_hint("somebody wrote to the lock table by hand; remove the row once its holder is gone")
}

fn from_cause(error: &tokio_postgres::Error, message: &'static str) -> LockError {
    match io_cause(error) {
        Some(cause) if cause.kind() == io::ErrorKind::TimedOut => {
            LockError::new(ErrorCode::NetworkTimeout, "postgres did not answer in time")
        }
        Some(cause) => LockError::new(ErrorCode::ServiceUnavailable, message).with_source(cause.to_string()),
        None if error.is_closed() => LockError::new(ErrorCode::ServiceUnavailable, message),
        None => LockError::internal("postgres sent a reply that does not fit the question"),
    }
}

fn io_cause(error: &tokio_postgres::Error) -> Option<&io::Error> {
    error.source().and_then(|source| source.downcast_ref())
}

fn from_server(error: &DbError) -> LockError {
    let state = error.code();
    let (code, message, hint) = explain(state);
    let said = ServerSaid {
        sqlstate: state.code().to_owned(),
        message: may_be_repeated(state).then(|| error.message().to_owned()),
    };
    let explained = LockError::new(code, message).with_source(said);
    match hint {
        Some(hint) => explained.with_hint(hint),
        None => explained,
    }
}

/// Code, message and hint of an SQLSTATE.
fn explain(state: &SqlState) -> (ErrorCode, &'static str, Option<&'static str>) {
    use ErrorCode::{AuthFailed, Internal, InvalidArgument, NetworkTimeout, ServiceUnavailable};
    let text = state.code();
    let class = text.get(..2).unwrap_or(text);
    match (text, class) {
        ("25006", _) => (
            ServiceUnavailable,
            "postgres is read-only here",
            Some(
                "this is a standby or default_transaction_read_only is on; name the primary or set target_session_attrs=read-write",
            ),
        ),
        ("55P03", _) => (NetworkTimeout, "postgres waited too long for a lock that another transaction holds", None),
        ("57014", _) => (NetworkTimeout, "postgres cancelled the statement, usually by its time limit", None),
        ("25P03", _) => (NetworkTimeout, "postgres ended a transaction that stood still", None),
        ("40001" | "40P01", _) => (ServiceUnavailable, "postgres gave up the transaction in favour of another", None),
        ("42501", _) => (
            AuthFailed,
            "the role may not use the lock tables",
            Some(
                "grant SELECT, INSERT, UPDATE, DELETE on the lock table and SELECT, INSERT, UPDATE on the fence table",
            ),
        ),
        (_, "28") => (AuthFailed, "postgres refused the credentials", Some("check user, password and pg_hba.conf")),
        ("3D000", _) => (InvalidArgument, "the database does not exist", Some("create it or name another in the URL")),
        ("3F000", _) => (InvalidArgument, "the schema does not exist", Some("create it or name another in `table`")),
        ("42P01", _) => (
            InvalidArgument,
            "a lock table does not exist",
            Some("call setup_schema(), or run the SQL that schema_sql() prints"),
        ),
        ("42703", _) => (
            InvalidArgument,
            "a lock table has other columns than SyncGuard's",
            Some("name another table, or compare it with the SQL that schema_sql() prints"),
        ),
        // An acquire that took back what it did: see `acquire.sql`.
        ("22012", _) => (ServiceUnavailable, "somebody else came to the key in the same moment", None),
        // The lock id is on another key, or a counter refuses to move: either way the request cannot be served.
        (_, "22" | "23") => (InvalidArgument, "postgres refused a value", None),
        (_, "08") => (ServiceUnavailable, "the connection to postgres broke", None),
        ("53300", _) => (
            ServiceUnavailable,
            "postgres has no room for another connection",
            Some("raise max_connections or the role's CONNECTION LIMIT; a process that waits or holds needs one"),
        ),
        (_, "53") => (ServiceUnavailable, "postgres is out of a resource", None),
        (_, "57") => {
            (ServiceUnavailable, "postgres is shutting down, starting up or was told to end the connection", None)
        }
        (_, "58") => (ServiceUnavailable, "postgres has trouble with its own files", None),
        ("21000", _) => (
            Internal,
            "two stored locks have one lock id",
            Some("the unique index on lock_id is missing; run setup_schema() after removing the duplicates"),
        ),
        _ => (Internal, "postgres answered with an error that SyncGuard does not know", None),
    }
}

/// Errors about data quote the data; those about rights, names, resources and shutdowns do not.
fn may_be_repeated(state: &SqlState) -> bool {
    let class = state.code().get(..2).unwrap_or("");
    matches!(class, "08" | "25" | "28" | "3D" | "3F" | "40" | "42" | "53" | "55" | "57" | "58")
}

/// Whether the server refused a statement because a column is not there.
pub(crate) fn names_missing_column(error: &LockError) -> bool {
    has_sqlstate(error, "42703")
}

/// Whether the server, or the role, has as many connections as it may have.
pub(crate) fn is_full(error: &LockError) -> bool {
    has_sqlstate(error, "53300")
}

/// Whether a prepared statement was made for a table that has changed since ("cached plan must not change result type"), or is
/// gone.
pub(crate) fn must_prepare_again(error: &LockError) -> bool {
    has_sqlstate(error, "0A000") || has_sqlstate(error, "26000")
}

/// Whether an acquire took back what it wrote, because somebody was at the key after its snapshot: see `acquire.sql`.
pub(crate) fn undid_itself(error: &LockError) -> bool {
    has_sqlstate(error, "22012")
}

fn has_sqlstate(error: &LockError, sqlstate: &str) -> bool {
    let said = error.source().and_then(|source| source.downcast_ref::<ServerSaid>());
    said.is_some_and(|said| said.sqlstate == sqlstate)
}

/// Whether this error tells of the end of a connection rather than of a statement that the server refused.
///
/// Poolers report a lost server as an error of their own: PgBouncer as 08P01, others in class 58 or under a code of the
/// server's, but always as FATAL. What was sent before may have been done.
pub(crate) fn ends_connection(error: &tokio_postgres::Error) -> bool {
    let Some(db) = error.as_db_error() else { return true };
    // A pooler may leave out the field that is never translated.
    let severe = match db.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => db.severity() != "ERROR",
    };
    severe || is_about_connections(db.code())
}

fn is_about_connections(state: &SqlState) -> bool {
    let text = state.code();
    ["08", "57P", "58"].iter().any(|class| text.starts_with(class))
}

/// Whether a connection that gave this error leads to a server that will keep giving it.
pub(crate) fn spoils_connection(error: &tokio_postgres::Error) -> bool {
    ends_connection(error) || error.code().is_some_and(|state| state.code() == "25006")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_map_to_the_specified_codes() {
        use ErrorCode::{AuthFailed, Internal, InvalidArgument, NetworkTimeout, ServiceUnavailable};
        let table = [
            ("08006", ServiceUnavailable),
            ("40001", ServiceUnavailable),
            ("40P01", ServiceUnavailable),
            ("53000", ServiceUnavailable),
            ("53300", ServiceUnavailable),
            ("57P01", ServiceUnavailable),
            ("57P02", ServiceUnavailable),
            ("57P03", ServiceUnavailable),
            ("25006", ServiceUnavailable),
            ("55P03", NetworkTimeout),
            ("57014", NetworkTimeout),
            ("28000", AuthFailed),
            ("28P01", AuthFailed),
            ("42501", AuthFailed),
            ("3D000", InvalidArgument),
            ("42P01", InvalidArgument),
            ("42703", InvalidArgument),
            ("22021", InvalidArgument),
            ("22000", InvalidArgument),
            ("23505", InvalidArgument),
            ("23000", InvalidArgument),
            ("XX000", Internal),
        ];
        for (text, expected) in table {
            assert_eq!(explain(&SqlState::from_code(text)).0, expected, "{text}");
        }
    }

    #[test]
    fn a_refusal_by_the_server_is_told_from_the_end_of_a_connection() {
        for text in ["08000", "08003", "08006", "08P01", "57P01", "57P02", "57P03", "57P05", "58000", "58030"] {
            assert!(is_about_connections(&SqlState::from_code(text)), "{text}");
        }
        for text in ["22021", "23505", "25006", "40001", "40P01", "42P01", "53100", "55P03", "57014", "XX000"] {
            assert!(!is_about_connections(&SqlState::from_code(text)), "{text}");
        }
    }

    #[test]
    fn errors_that_quote_data_are_not_repeated() {
        for text in ["22021", "23505", "23514", "P0001", "XX000", "21000"] {
            assert!(!may_be_repeated(&SqlState::from_code(text)), "{text}");
        }
    }
}
