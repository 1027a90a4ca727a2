//! How does an `SQLite` database refuse a stale writer?
//!
//! The mark is a row in the same file as the data, and both are written by one transaction of the caller. SQLite has
//! one writer at a time, so a writer that was accepted has ended before the next one compares.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use syncguard_core::{ErrorCode, Fence, Key, LockError};

use crate::{Accepted, FenceError, HighWater, Result, compare};

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

/// Accepts a fence inside the caller's transaction, and remembers it if that commits.
///
/// Any kind of transaction is safe. In a deferred one, a writer that came in between makes the caller's write fail with
/// `SQLITE_BUSY`; [`begin`] waits at its start instead.
///
/// # Errors
/// As [`begin`]. Then roll back.
pub fn check(tx: &Transaction<'_>, key: &Key, fence: Fence) -> Result<()> {
    if compare(fence, mark(tx, key)?)? == Accepted::Equal {
        return Ok(());
    }
    let mut remember = tx.prepare_cached(include_str!("../sql/sqlite_advance.sql")).map_err(failed)?;
    remember.execute(params![key.as_str(), fence.get().cast_signed()]).map_err(failed)?;
    Ok(())
}

fn mark(connection: &Connection, key: &Key) -> Result<Option<Fence>> {
    let mut select = connection.prepare_cached("SELECT fence FROM syncguard_marks WHERE key = ?1").map_err(failed)?;
    let stored: Option<i64> = select.query_row([key.as_str()], |row| row.get(0)).optional().map_err(failed)?;
    stored.map(fence_of).transpose()
}

fn fence_of(stored: i64) -> Result<Fence> {
    let number = u64::try_from(stored).unwrap_or(0);
    Fence::new(number).map_err(|_| FenceError::damaged("the table of marks holds a number that is no fence"))
}

/// Protects a table by triggers: every insert, update and delete needs a fence [declared](Declarations) on its
/// connection, and it must be current. Connections that know nothing of fences cannot write to the table at all.
///
/// # Errors
/// [`Failed`](FenceError::Failed) with what `SQLite` reports.
pub fn protect(connection: &Connection, table: &str, key: &Key) -> Result<()> {
    for verb in ["INSERT", "UPDATE", "DELETE"] {
        let trigger = format!("syncguard_{}_{table}", verb.to_ascii_lowercase());
        let sql = include_str!("../sql/sqlite_protect.sql")
            .replace("{trigger}", &quoted(&trigger, '"'))
            .replace("{verb}", verb)
            .replace("{table}", &quoted(table, '"'))
            .replace("{key}", &quoted(key.as_str(), '\''));
        // The error's own text would repeat the statement, and with it the key.
        connection.execute_batch(&sql).map_err(|error| FenceError::Failed(described(&error)))?;
    }
    Ok(())
}

fn quoted(text: &str, quote: char) -> String {
    let doubled = format!("{quote}{quote}");
    format!("{quote}{}{quote}", text.replace(quote, &doubled))
}

/// The fences that a connection writes with, for tables under [`protect`].
///
/// Make one per connection and keep it beside it. A declared fence holds until it is replaced; it is compared at every
/// write, so a forgotten one protects nobody's mistakes but its own.
#[derive(Clone, Default)]
pub struct Declarations(Arc<Mutex<HashMap<Key, Fence>>>);

impl Declarations {
    /// Teaches a connection to name its fences.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what `SQLite` reports.
    pub fn on(connection: &Connection) -> Result<Self> {
        let declarations = Self::default();
        let declared = declarations.clone();
        let lookup = move |context: &rusqlite::functions::Context<'_>| {
            let name: String = context.get(0)?;
            let fence = Key::new(name).ok().and_then(|key| declared.fence(&key));
            Ok(fence.map(|fence| fence.get().cast_signed()))
        };
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
        // Not deterministic: SQLite may keep the answer of a deterministic function, and this one changes between
        // statements.
        connection.create_scalar_function("syncguard_fence", 1, flags, lookup).map_err(failed)?;
        Ok(declarations)
    }

    /// Writes under this key happen with this fence from now on.
    pub fn declare(&self, key: &Key, fence: Fence) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), fence);
    }

    /// Writes under this key are refused from now on.
    pub fn withdraw(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    fn fence(&self, key: &Key) -> Option<Fence> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }
}

impl fmt::Debug for Declarations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declarations").finish_non_exhaustive()
    }
}

/// Marks in an `SQLite` file, for resources that are not in it themselves.
///
/// ```
/// use rusqlite::Connection;
/// use syncguard_core::{Fence, Key};
/// use syncguard_fenced::{HighWater, sqlite::SqliteMarks};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let marks = SqliteMarks::new(Connection::open_in_memory()?)?;
/// marks.advance(&Key::new("ledger")?, Fence::new(42)?).await?;
/// assert!(marks.advance(&Key::new("ledger")?, Fence::new(41)?).await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteMarks(Arc<Mutex<Connection>>);

impl SqliteMarks {
    /// Opens a file, which is created where there is none, and keeps marks in it.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what `SQLite` reports.
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self> {
        let connection = Connection::open(path).map_err(failed)?;
        // Another process may be at its write: wait for it as long as a careful caller would.
        connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(failed)?;
        Self::new(connection)
    }

    /// Keeps marks through this connection, and creates their table where there is none.
    ///
    /// # Errors
    /// [`Failed`](FenceError::Failed) with what `SQLite` reports.
    pub fn new(connection: Connection) -> Result<Self> {
        install(&connection)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let connection = self.0.clone();
        let task = move || work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner));
        match tokio::task::spawn_blocking(task).await {
            Ok(result) => result,
            Err(error) => Err(FenceError::unavailable("the check did not finish", error)),
        }
    }
}

impl HighWater for SqliteMarks {
    async fn advance(&self, key: &Key, fence: Fence) -> Result<()> {
        let key = key.clone();
        self.with(move |connection| begin(connection, &key, fence)?.commit().map_err(failed)).await
    }

    async fn highest(&self, key: &Key) -> Result<Option<Fence>> {
        let key = key.clone();
        self.with(move |connection| mark(connection, &key)).await
    }
}

pub(crate) fn failed(error: rusqlite::Error) -> FenceError {
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
