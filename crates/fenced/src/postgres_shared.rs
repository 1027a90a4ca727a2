//! What do both drivers of PostgreSQL share?
//!
//! The migration, the meaning of its functions' errors, and the settings of a session that writes under one fence. An
//! error is known by its code; the detail of a refusal is a number that our own function wrote.

use std::error::Error;
use std::fmt::{self, Write as _};

use syncguard_core::{ErrorCode, Fence, Key, LockError};

use crate::{FenceError, Result, StaleFence};

/// The table, the functions and the trigger function, for your migrations. Safe to run again.
pub const MIGRATION: &str = include_str!("../sql/postgres.sql");

/// The session settings of one holding: every write of such a session happens under this fence.
///
/// With them a pool that is made for one holding needs no `begin` in each place, as long as its tables are under
/// `protect`. Its text is what libpq takes as `options` and in `PGOPTIONS`.
///
/// ```
/// use syncguard_core::{Fence, Key};
/// use syncguard_fenced::postgres::PostgresOptions;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = PostgresOptions::new(&Key::new("the ledger")?, Fence::new(42)?); // lock.key(), lock.fence()
/// assert_eq!(options.to_string(), r"-c syncguard.fence=42 -c syncguard.key=the\ ledger");
///
/// let mut config: tokio_postgres::Config = "host=127.0.0.1 user=app".parse()?;
/// config.options(options.to_string());
/// # Ok(())
/// # }
/// ```
///
/// With sqlx: `PgPoolOptions::new().connect_with(url.parse::<PgConnectOptions>()?.options(options.settings()))`.
#[derive(Clone)]
pub struct PostgresOptions {
    key: Key,
    fence: Fence,
}

impl PostgresOptions {
    /// Names the holding.
    pub fn new(key: &Key, fence: Fence) -> Self {
        Self { key: key.clone(), fence }
    }

    /// Returns the settings by name.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        [("syncguard.fence", self.fence.get().to_string()), ("syncguard.key", self.key.as_str().to_owned())]
    }
}

/// As libpq and the server want it: blanks and backslashes of a value with a backslash.
impl fmt::Display for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, value)) in self.settings().iter().enumerate() {
            write!(f, "{}-c {name}=", if number == 0 { "" } else { " " })?;
            for letter in value.chars() {
                if letter == '\\' || letter.is_ascii_whitespace() || letter == '\u{b}' {
                    f.write_char('\\')?;
                }
                f.write_char(letter)?;
            }
        }
        Ok(())
    }
}

// A key belongs in no log.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions").field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A session of a stale holder that `take_over` has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedSession {
    /// The process id of its server process.
    pub pid: i32,
    /// The role it was connected as.
    pub role: Option<String>,
    /// Its `application_name`.
    pub application: Option<String>,
    /// The fence it was writing under.
    pub fence: Fence,
}

/// The columns of `syncguard_take_over`, in their order.
pub(crate) type EndedRow = (i32, Option<String>, Option<String>, i64);

impl EndedSession {
    pub(crate) fn of((pid, role, application, fence): EndedRow) -> Result<Self> {
        Ok(Self { pid, role, application, fence: fence_of(fence)? })
    }
}

/// The statements. Those of [`TAKE_OVER`] have columns whose types both drivers know.
pub(crate) const CHECK: &str = "SELECT syncguard_check($1, $2)";
pub(crate) const BEGIN: &str = "SELECT syncguard_begin($1, $2)";
pub(crate) const TAKE_OVER: &str = "SELECT pid, role::text, application::text, fence FROM syncguard_take_over($1, $2)";
pub(crate) const PROTECT: &str = "SELECT syncguard_protect($1::text::regclass, $2)";
pub(crate) const HIGHEST: &str = "SELECT fence FROM syncguard_marks WHERE key = $1";

pub(crate) fn fence_of(stored: i64) -> Result<Fence> {
    let number = u64::try_from(stored).unwrap_or(0);
    Fence::new(number).map_err(|_| FenceError::damaged("the table of marks holds a number that is no fence"))
}

/// An error of the server, in the words of this crate.
pub(crate) fn refusal_or(
    sqlstate: &str,
    detail: Option<&str>,
    offered: Option<Fence>,
    error: impl Into<Box<dyn Error + Send + Sync>>,
) -> FenceError {
    if let (STALE, Some(offered)) = (sqlstate, offered) {
        return refusal(offered, detail);
    }
    // Who is in the way is what an operator needs to know; neither detail holds a key.
    let message = match (sqlstate, detail) {
        (NO_RIGHT, Some(sessions)) => {
            format!("sessions of a stale holder are in the way, and this role may not end them: {sessions}")
        }
        (IN_USE, Some(sessions)) => format!("the mark of the fence is still in use: {sessions}"),
        _ => "postgres did not carry out the check of the fence".to_owned(),
    };
    let failure = LockError::new(code_of(sqlstate), message);
    let failure = match sqlstate {
        NO_RIGHT => failure.with_hint("grant pg_signal_backend to this role, or connect as the role of those sessions"),
        STRANGER => failure.with_hint(
            "use a schema in which nobody else may create, or make its owner the owner of the table syncguard_marks",
        ),
        "42P01" | "42883" => failure.with_hint("run the migration of syncguard-fenced on this database first"),
        _ => failure,
    };
    FenceError::Failed(failure.with_source(error))
}

/// The error code of a refused write.
const STALE: &str = "SG001";
/// The error code of a write to a protected table without its fence.
const UNDECLARED: &str = "SG002";
/// The error code of a successor that may not end the sessions of a stale holder.
const NO_RIGHT: &str = "SG003";
/// The error code of a migration that found somebody else's table.
const STRANGER: &str = "SG004";
/// PostgreSQL's own, for a lock that was not available in time.
const IN_USE: &str = "55P03";

/// The refusal in the words of this crate: its detail is the highest fence seen.
fn refusal(offered: Fence, detail: Option<&str>) -> FenceError {
    let seen = detail.and_then(|detail| detail.parse().ok()).and_then(|number| Fence::new(number).ok());
    match seen {
        Some(seen) => StaleFence { offered, seen }.into(),
        None => FenceError::damaged("the database refused the fence without saying which one it has seen"),
    }
}

/// By class: what a caller can do about it.
fn code_of(sqlstate: &str) -> ErrorCode {
    match sqlstate {
        UNDECLARED | STRANGER => ErrorCode::InvalidArgument,
        IN_USE | "57014" => ErrorCode::NetworkTimeout,
        NO_RIGHT | "42501" => ErrorCode::AuthFailed,
        // No table, no function: the migration did not run.
        code if code.starts_with("42") || code.starts_with("3D") => ErrorCode::InvalidArgument,
        code if code.starts_with("28") => ErrorCode::AuthFailed,
        _ => ErrorCode::ServiceUnavailable,
    }
}
