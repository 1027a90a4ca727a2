//! How does an operator protect a table of PostgreSQL, and see what protects it?

use std::fmt::Write as _;

use serde::Serialize;
use syncguard::fenced::postgres;
use syncguard::postgres::PostgresBuilder;
use syncguard::{Fence, HashId};

use super::{Database, ProtectArgs, StatusArgs, opening, refused};
use crate::exit::{self, Failure};
use crate::output::{Output, escape};

/// Opens a connection for fences.
pub(crate) async fn connect(url: &str, require_tls: bool) -> Result<Client, Failure> {
    open(builder(url, require_tls)?).await
}

/// A connection of the driver.
pub(crate) type Client = syncguard::postgres::tokio_postgres::Client;

pub(crate) fn builder(url: &str, require_tls: bool) -> Result<PostgresBuilder, Failure> {
    let builder = PostgresBuilder::from_url(url).map_err(|error| opening(&error))?;
    Ok(if require_tls { builder.require_tls(true) } else { builder })
}

pub(crate) async fn open(builder: PostgresBuilder) -> Result<Client, Failure> {
    Box::pin(builder.client()).await.map_err(|error| opening(&error))
}

async fn connect_to(Database { database }: &Database, require_tls: bool) -> Result<Client, Failure> {
    match database {
        Some(url) => connect(&url.0, require_tls).await,
        None => Err(Failure::usage("which database?").hint("--postgres URL, or the variable DATABASE_URL")),
    }
}

#[derive(Serialize)]
struct Protected {
    protected: bool,
}

pub(super) async fn protect(args: &ProtectArgs, require_tls: bool, output: Output) -> Result<u8, Failure> {
    if args.dry_run {
        output.data(&format!("BEGIN;\n{}COMMIT;", postgres::protect_sql(&args.table, &args.key)));
        return Ok(exit::OK);
    }
    let client = connect_to(&args.database, require_tls).await?;
    postgres::install(&client).await.map_err(|error| refused(&error))?;
    postgres::protect(&client, &args.table, &args.key).await.map_err(|error| refused(&error))?;
    if output.json {
        output.object(&Protected { protected: true });
    } else {
        output.note(&format!("{} is protected: every write needs a current fence", escape(&args.table)));
    }
    Ok(exit::OK)
}

#[derive(Default, Serialize)]
struct Status {
    tables: Vec<Table>,
    marks: Vec<Mark>,
    sessions: Vec<Session>,
}

#[derive(Serialize)]
struct Table {
    table: String,
    #[serde(flatten)]
    key: Named,
}

#[derive(Serialize)]
struct Mark {
    #[serde(flatten)]
    key: Named,
    fence: String,
}

/// A key: as it is for people, by its pseudonym for machines.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    #[serde(skip)]
    key: String,
    key_hash: HashId,
}

impl Named {
    fn new(key: String) -> Self {
        Self { key_hash: HashId::of(&key), key }
    }
}

/// A session with a transaction under a fence.
#[derive(Serialize)]
struct Session {
    #[serde(flatten)]
    key: Named,
    fence: String,
    pid: i32,
    who: String,
    state: String,
    /// The process ids of sessions that wait for it.
    blocks: Vec<i32>,
}

pub(super) async fn status(args: &StatusArgs, require_tls: bool, output: Output) -> Result<u8, Failure> {
    let client = connect_to(&args.database, require_tls).await?;
    let status = read(&client).await?;
    if output.json {
        output.object(&status);
    } else {
        output.data(status.shown().trim_end());
    }
    Ok(exit::OK)
}

async fn read(client: &Client) -> Result<Status, Failure> {
    let rows = client.query(include_str!("status.sql"), &[]).await;
    let rows = rows.map_err(|error| {
        Failure::new(exit::UNAVAILABLE, "unavailable", format!("the fences of this database cannot be read: {error}"))
            .hint("syncguard fence protect makes what they need")
    })?;
    let mut status = Status::default();
    for row in rows {
        let text = |column: &str| row.get::<_, Option<String>>(column).unwrap_or_default();
        let fence = row.get::<_, Option<i64>>("fence").and_then(|number| u64::try_from(number).ok());
        let fence =
            fence.and_then(|number| Fence::new(number).ok()).map_or_else(String::new, |fence| fence.to_string());
        match text("kind").as_str() {
            "table" => status.tables.push(Table { table: text("name"), key: Named::new(text("key")) }),
            "mark" => status.marks.push(Mark { key: Named::new(text("key")), fence }),
            _ => status.sessions.push(Session {
                key: Named::new(text("key")),
                fence,
                pid: row.get("pid"),
                who: text("who"),
                state: text("state"),
                blocks: row.get("blocks"),
            }),
        }
    }
    Ok(status)
}

impl Status {
    fn shown(&self) -> String {
        if self.tables.is_empty() && self.marks.is_empty() {
            return "no table is protected, and no fence was seen".to_owned();
        }
        let mut text = String::new();
        for Table { table, key } in &self.tables {
            let _ = writeln!(text, "table     {}   needs a fence of {}", escape(table), escape(&key.key));
        }
        for Mark { key, fence } in &self.marks {
            let _ = writeln!(text, "mark      {}   highest fence {fence}", escape(&key.key));
        }
        for Session { key, fence, pid, who, state, blocks } in &self.sessions {
            let (key, who, state) = (escape(&key.key), escape(who), escape(state));
            let _ = write!(text, "session   {key}   pid {pid} of {who}, fence {fence}, {state}");
            if !blocks.is_empty() {
                let waiting = blocks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let _ = write!(text, ", in the way of pid {waiting}");
            }
            text.push('\n');
        }
        text
    }
}
