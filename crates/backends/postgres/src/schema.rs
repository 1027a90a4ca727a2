//! How do the tables come into being, and what if they are not there?
//!
//! Set-up looks first and creates only what is missing, under an advisory lock of its own: `CREATE … IF NOT EXISTS` is not safe when
//! forty processes start at once, and `CREATE INDEX` would wait for every running transaction even if there is nothing to do.

use std::time::Duration;

use syncguard_core::{ErrorCode, LockError, Result};
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::builder::PostgresBuilder;
use crate::error;
use crate::statement::render;
use crate::table::Tables;

/// The SQL that creates the tables, for migrations.
///
/// ```
/// use syncguard_postgres::PostgresBackend;
///
/// let sql = syncguard_postgres::schema_sql(&PostgresBackend::builder().table("jobs.locks"))?;
/// assert!(sql.contains(r#"CREATE TABLE IF NOT EXISTS "jobs"."locks""#));
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
///
/// # Errors
/// `InvalidArgument` when a table name is not acceptable.
pub fn schema_sql(options: &PostgresBuilder) -> Result<String> {
    Ok(with_names(include_str!("../sql/schema.sql"), &options.tables()?))
}

/// SQL that makes the server itself refuse to lower or delete a counter, whoever asks. Optional; for migrations.
///
/// # Errors
/// `InvalidArgument` when a table name is not acceptable.
pub fn protect_counters_sql(options: &PostgresBuilder) -> Result<String> {
    Ok(with_names(include_str!("../sql/protect_counters.sql"), &options.tables()?))
}

fn with_names(text: &str, tables: &Tables) -> String {
    text.replace("{locks}", &tables.locks.quoted())
        .replace("{fences}", &tables.fences.quoted())
        .replace("{lock_id_index}", &tables.locks.index("lock_id"))
        .replace("{expires_index}", &tables.locks.index("expires"))
}

/// What a look at the catalogue found.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "a checklist")]
pub(crate) struct Schema {
    pub(crate) locks: bool,
    pub(crate) fences: bool,
    pub(crate) unique_lock_id: bool,
    pub(crate) expires_index: bool,
    pub(crate) unique_keys: bool,
    pub(crate) columns: bool,
}

impl Schema {
    fn complete(self) -> bool {
        self.locks && self.fences && self.unique_lock_id && self.expires_index
    }
}

pub(crate) async fn look(client: &Client, tables: &Tables) -> Result<Schema, tokio_postgres::Error> {
    let sql = render(include_str!("../sql/missing.sql"), tables);
    let (locks, fences) = (tables.locks.quoted(), tables.fences.quoted());
    let row = client.query_typed_one(&sql, &[(&locks, Type::TEXT), (&fences, Type::TEXT)]).await?;
    let flag = |name: &str| row.try_get::<_, Option<bool>>(name).ok().flatten().unwrap_or(false);
    Ok(Schema {
        locks: flag("locks"),
        fences: flag("fences"),
        unique_lock_id: flag("unique_lock_id"),
        expires_index: flag("expires_index"),
        unique_keys: flag("unique_key") && flag("unique_fence_key"),
        columns: flag("lock_columns") && flag("fence_columns"),
    })
}

/// Long enough for forty processes to take turns.
const LIMIT: Duration = Duration::from_secs(30);

/// Creates what is missing.
pub(crate) async fn set_up(client: &Client, tables: &Tables) -> Result<()> {
    // A client that does not take our advisory lock may create the same table at the same moment: then look again.
    for last in [false, false, true] {
        match timeout(LIMIT, try_set_up(client, tables)).await {
            Err(_) => return Err(error::no_answer()),
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if last || !is_collision(&error) => {
                drop(client.batch_execute("ROLLBACK").await);
                return Err(explain(&error));
            }
            Ok(Err(_)) => drop(client.batch_execute("ROLLBACK").await),
        }
    }
    Ok(())
}

async fn try_set_up(client: &Client, tables: &Tables) -> Result<(), tokio_postgres::Error> {
    if look(client, tables).await?.complete() {
        return Ok(());
    }
    // 1397184333 is ours for set-up; release and its waiters use another number.
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '20s'; SET LOCAL client_min_messages = 'warning';
             SELECT pg_advisory_xact_lock(1397184333, 0)",
        )
        .await?;
    if !look(client, tables).await?.complete() {
        client.batch_execute(&with_names(include_str!("../sql/schema.sql"), tables)).await?;
    }
    client.batch_execute("COMMIT").await
}

/// Somebody else created the same thing at the same moment.
fn is_collision(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "23505" | "42P07" | "42710" | "40P01" | "40001"))
}

fn explain(error: &tokio_postgres::Error) -> LockError {
    if error.code().is_some_and(|code| code.code() == "42501") {
        return LockError::new(ErrorCode::AuthFailed, "the role may not create the lock tables").with_hint(
            "run the SQL that `schema_sql` prints with a role that may, then connect with auto_create_tables=false",
        );
    }
    error::from_statement(error)
}

/// Makes sure that the tables are there, by creating them or by saying what to do.
pub(crate) async fn ensure(client: &Client, tables: &Tables, create: bool) -> Result<()> {
    let schema = look(client, tables).await.map_err(|error| error::from_statement(&error))?;
    if schema.complete() {
        return Ok(());
    }
    if create {
        return set_up(client, tables).await;
    }
    let missing = match (schema.locks, schema.fences) {
        (false, _) => format!("the table {} does not exist", tables.locks.display()),
        (_, false) => format!("the table {} does not exist", tables.fences.display()),
        _ if !schema.unique_lock_id => format!("the table {} has no unique index on lock_id", tables.locks.display()),
        // Slower purging is no reason to refuse to work.
        _ => return Ok(()),
    };
    let sql = with_names(include_str!("../sql/schema.sql"), tables);
    let sql: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
    Err(LockError::invalid(missing).with_hint(format!("auto_create_tables is off; run this SQL:\n{}", sql.join("\n"))))
}
