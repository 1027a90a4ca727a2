//! How do the tables come into being, and what if they are not there?
//!
//! Set-up looks first and creates only what is missing, under an advisory lock of its own: `CREATE … IF NOT EXISTS` is
//! not safe when forty processes start at once, and `CREATE INDEX` would wait for every running transaction even if
//! there is nothing to do.

use std::time::Duration;

use syncguard_core::{ErrorCode, LockError, Result};
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::builder::PostgresBuilder;
use crate::error;
use crate::statement::{Columns, render};
use crate::table::Tables;

/// The SQL that creates the tables, for migrations.
///
/// ```
/// use syncguard_postgres::PostgresBuilder;
///
/// let sql = syncguard_postgres::schema_sql(&PostgresBuilder::default().table("jobs.locks"))?;
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

/// What to do about tables of a stranger.
pub(crate) const STRANGER: &str = "name a schema in which nobody else may create: table=SCHEMA.NAME&fence_table=SCHEMA.NAME; if the \
                                   owner is to be trusted, make the owner of the schema the owner of the table, or this role a \
                                   member of it";

/// What a look at the catalogue found.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "a checklist")]
pub(crate) struct Schema {
    pub(crate) locks: bool,
    pub(crate) fences: bool,
    pub(crate) unique_lock_id: bool,
    pub(crate) expires_index: bool,
    pub(crate) unique_keys: bool,
    pub(crate) columns: bool,
    pub(crate) optional: Columns,
    /// Somebody who could have code of his run as us, and by what.
    pub(crate) stranger: Option<String>,
}

impl Schema {
    fn complete(&self) -> bool {
        self.locks && self.fences && self.unique_lock_id && self.expires_index
    }

    /// One table without the other. Somebody dropped the counters, or misspelt a name: creating the other one would
    /// begin the fences anew beside locks or counters that exist.
    pub(crate) fn is_half(&self) -> bool {
        self.locks != self.fences
    }

    fn refuse_strangers(&self) -> Result<()> {
        let Some(stranger) = &self.stranger else { return Ok(()) };
        Err(LockError::invalid(format!("{stranger}, who could have any code run as this role")).with_hint(STRANGER))
    }
}

pub(crate) async fn look(client: &Client, tables: &Tables) -> Result<Schema, tokio_postgres::Error> {
    let sql = render(include_str!("../sql/missing.sql"), tables, Columns::default());
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
        optional: Columns { key_debug: flag("key_debug"), holder: flag("holder") },
        // Roles, triggers and tables may be called anything; this goes to terminals.
        stranger: row
            .try_get("stranger")
            .ok()
            .flatten()
            .map(|text: String| text.replace(|letter: char| !matches!(letter, ' '..='~'), "?")),
    })
}

/// Long enough for forty processes to take turns.
const LIMIT: Duration = Duration::from_secs(30);

/// Why the tables were not set up.
enum Trouble {
    Server(tokio_postgres::Error),
    Refused(LockError),
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

/// Creates what is missing.
pub(crate) async fn set_up(client: &Client, tables: &Tables) -> Result<()> {
    let setting_up = async {
        // A client that does not take our advisory lock may create the same table at the same moment: then look again.
        let mut tries = 0;
        loop {
            tries += 1;
            let Err(trouble) = try_set_up(client, tables).await else { return Ok(()) };
            drop(client.batch_execute("ROLLBACK").await);
            match trouble {
                Trouble::Refused(error) => return Err(error),
                Trouble::Server(error) if tries < 3 && is_collision(&error) => {}
                Trouble::Server(error) => return Err(explain(&error)),
            }
        }
    };
    timeout(LIMIT, setting_up).await.map_err(|_| error::no_answer())?
}

async fn try_set_up(client: &Client, tables: &Tables) -> Result<(), Trouble> {
    let schema = look(client, tables).await?;
    schema.refuse_strangers().map_err(Trouble::Refused)?;
    if schema.complete() && schema.optional.holder {
        return Ok(());
    }
    // 1397184333 is ours for set-up; release and its waiters use another number.
    client
        .batch_execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '20s'; SET LOCAL statement_timeout = '30s'; SET LOCAL client_min_messages = 'warning';
             SELECT pg_advisory_xact_lock(1397184333, 0)",
        )
        .await?;
    let schema = look_until_whole(client, tables).await?;
    schema.refuse_strangers().map_err(Trouble::Refused)?;
    if schema.is_half() {
        return Err(Trouble::Refused(half(&schema, tables)));
    }
    if !schema.complete() {
        client.batch_execute(&with_names(include_str!("../sql/schema.sql"), tables)).await?;
    } else if !schema.optional.holder {
        // Adding it takes no time, but whoever locks queues behind the wait for it.
        let add = "SET LOCAL lock_timeout = '3s'; ALTER TABLE {locks} ADD COLUMN IF NOT EXISTS holder JSONB";
        client.batch_execute(&with_names(add, tables)).await?;
    }
    Ok(client.batch_execute("COMMIT").await?)
}

/// Looks again for a second while only one of the tables is there: the TypeScript original creates one after the other.
async fn look_until_whole(client: &Client, tables: &Tables) -> Result<Schema, tokio_postgres::Error> {
    for _ in 0..4 {
        let schema = look(client, tables).await?;
        if !schema.is_half() {
            return Ok(schema);
        }
        sleep(Duration::from_millis(250)).await;
    }
    look(client, tables).await
}

fn half(schema: &Schema, tables: &Tables) -> LockError {
    let (there, missing) = if schema.locks { (&tables.locks, &tables.fences) } else { (&tables.fences, &tables.locks) };
    LockError::invalid(format!("the table {} exists without {}", there.display(), missing.display())).with_hint(
        "check the spelling of `table` and `fence_table`. If the missing table was lost, restore it; with new counters fences begin \
         anew, so create them by hand (the SQL is in schema_sql) and set fence_floor=clock",
    )
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
pub(crate) async fn ensure(client: &Client, tables: &Tables, create: bool, limit: Duration) -> Result<Schema> {
    let schema = look_within(client, tables, limit).await?;
    schema.refuse_strangers()?;
    if schema.is_half() {
        return Err(half(&schema, tables));
    }
    if schema.complete() {
        return Ok(schema);
    }
    if create {
        set_up(client, tables).await?;
        let schema = look_within(client, tables, limit).await?;
        return schema.refuse_strangers().map(|()| schema);
    }
    let missing = match schema.locks {
        false => format!("the tables {} and {} do not exist", tables.locks.display(), tables.fences.display()),
        true if !schema.unique_lock_id => {
            format!("the table {} has no unique index on lock_id", tables.locks.display())
        }
        // Slower purging is no reason to refuse to work.
        true => return Ok(schema),
    };
    let sql = with_names(include_str!("../sql/schema.sql"), &tables.clone().within(&[None, None]));
    let sql: Vec<&str> = sql.lines().filter(|line| !line.starts_with("--")).collect();
    Err(LockError::invalid(missing).with_hint(format!("auto_create_tables is off; run this SQL:\n{}", sql.join("\n"))))
}

async fn look_within(client: &Client, tables: &Tables, limit: Duration) -> Result<Schema> {
    let looking = timeout(limit, look_until_whole(client, tables)).await;
    looking.map_err(|_| error::no_answer())?.map_err(|error| error::from_statement(&error))
}
