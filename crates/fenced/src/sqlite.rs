//! How does an `SQLite` database refuse a stale writer?
//!
//! The mark is a row in the same file as the data, and both are written by one transaction of the caller. SQLite has
//! one writer at a time, so a writer that was accepted has ended before the next one compares.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use syncguard_core::{ErrorCode, Fence, Key, LockError};

use crate::{Accepted, FenceError, Result, compare};

/// The table of marks, for a migration of your own. [`install`] runs it.
pub const MIGRATION: &str = include_str!("../sql/sqlite.sql");

/// Creates the table of marks where there is none.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what `SQLite` reports.
pub fn install(connection: &Connection) -> Result<()> {
    connection.execute_batch(MIGRATION).map_err(failed)
}

/// Starts a transaction for writes under this fence.
///
/// ```
/// use rusqlite::Connection;
/// use syncguard_core::{Fence, Key};
/// use syncguard_fenced::sqlite;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut db = Connection::open_in_memory()?;
/// db.execute_batch("CREATE TABLE ledger (balance INTEGER)")?;
/// sqlite::install(&db)?;
/// let key = Key::new("ledger")?; // with a lock at hand: lock.key()
///
/// let tx = sqlite::begin(&mut db, &key, Fence::new(42)?)?;
/// tx.execute("INSERT INTO ledger VALUES (100)", [])?;
/// tx.commit()?;
///
/// let late = sqlite::begin(&mut db, &key, Fence::new(41)?).unwrap_err();
/// assert!(late.stale().is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Stale`](FenceError::Stale) when a higher fence was accepted, [`Failed`](FenceError::Failed) with what `SQLite`
/// reports.
pub fn begin<'c>(connection: &'c mut Connection, key: &Key, fence: Fence) -> Result<Transaction<'c>> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    check(&tx, key, fence)?;
    Ok(tx)
}

/// Refuses older holders from now on. Call it before you read what you decide by.
///
/// # Errors
/// As [`begin`].
pub fn announce(connection: &mut Connection, key: &Key, fence: Fence) -> Result<()> {
    begin(connection, key, fence)?.commit().map_err(failed)
}

/// Returns the highest fence that was accepted, for diagnostics.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what `SQLite` reports.
pub fn highest(connection: &Connection, key: &Key) -> Result<Option<Fence>> {
    let mut select = connection.prepare_cached("SELECT fence FROM syncguard_marks WHERE key = ?1").map_err(failed)?;
    let stored: Option<i64> = select.query_row([key.as_str()], |row| row.get(0)).optional().map_err(failed)?;
    stored.map(fence_of).transpose()
}

/// Accepts a fence inside the caller's transaction, and remembers it if that commits.
///
/// Any kind of transaction is safe. In a deferred one, a writer that came in between makes the caller's write fail with
/// `SQLITE_BUSY`; [`begin`] waits at its start instead.
///
/// # Errors
/// As [`begin`]. Then roll back.
pub fn check(tx: &Transaction<'_>, key: &Key, fence: Fence) -> Result<()> {
    if compare(fence, highest(tx, key)?)? == Accepted::Equal {
        return Ok(());
    }
    let mut remember = tx.prepare_cached(include_str!("../sql/sqlite_advance.sql")).map_err(failed)?;
    remember.execute(params![key.as_str(), fence.get().cast_signed()]).map_err(failed)?;
    Ok(())
}

fn fence_of(stored: i64) -> Result<Fence> {
    let number = u64::try_from(stored).unwrap_or(0);
    Fence::new(number).map_err(|_| FenceError::damaged("the table of marks holds a number that is no fence"))
}

/// Says in the words of this crate what `SQLite` reports.
pub fn failed(error: rusqlite::Error) -> FenceError {
    FenceError::Failed(described(&error).with_source(error))
}

fn described(error: &rusqlite::Error) -> LockError {
    use rusqlite::ErrorCode as Sqlite;
    let code = match error.sqlite_error_code() {
        Some(Sqlite::NotADatabase | Sqlite::DatabaseCorrupt) => {
            let failure = LockError::internal("the database with the marks is damaged");
            return failure
                .with_hint("restore it, with marks that are no lower than the highest fence that was ever accepted");
        }
        Some(Sqlite::DatabaseBusy | Sqlite::DatabaseLocked) => ErrorCode::NetworkTimeout,
        Some(Sqlite::PermissionDenied | Sqlite::AuthorizationForStatementDenied) => ErrorCode::AuthFailed,
        Some(Sqlite::Unknown) => ErrorCode::InvalidArgument,
        _ => ErrorCode::ServiceUnavailable,
    };
    LockError::new(code, "sqlite did not carry out the check of the fence")
}
