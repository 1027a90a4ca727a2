//! What do the writers of these tests write?
//!
//! Everywhere the same: a ledger, one entry for each accepted write, in the order in which they were accepted. Each
//! entry is the fence of its writer. While all goes well they never decrease; a stale writer that gets through leaves a
//! lower one behind a higher one. Every ledger can be written with its guard and without it, by the same program.

use std::io::Write;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use syncguard_core::{Fence, Key};
use syncguard_fenced::file::FencedFile;
use syncguard_fenced::redis::FencedScript;
use syncguard_fenced::{Result, StaleFence, postgres, sqlite};

/// Where a ledger is, as a child can be told.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) kind: String,
    pub(crate) location: String,
    pub(crate) guarded: bool,
}

impl Place {
    pub(crate) fn new(kind: &str, location: impl Into<String>, guarded: bool) -> Self {
        Self { kind: kind.to_owned(), location: location.into(), guarded }
    }

    pub(crate) fn to_word(&self) -> String {
        format!("{}\t{}\t{}", self.kind, self.location, self.guarded)
    }

    pub(crate) fn from_word(word: &str) -> Self {
        let parts: Vec<&str> = word.split('\t').collect();
        Self::new(parts[0], parts[1], parts[2] == "true")
    }

    /// The name of the table, key, object or route.
    fn name(&self) -> &'static str {
        if self.guarded { "guarded" } else { "plain" }
    }
}

pub(crate) fn key() -> Key {
    Key::new("ledger").unwrap()
}

/// An open ledger.
pub(crate) struct Ledger {
    place: Place,
    way: Way,
}

enum Way {
    File(FencedFile),
    Sqlite(Connection),
    Postgres(tokio_postgres::Client),
    Sqlx(sqlx::PgPool),
    Redis(MultiplexedConnection),
    Http(HttpClient),
    Object(HttpClient),
}

impl Ledger {
    pub(crate) async fn open(place: &Place) -> Self {
        let location = place.location.as_str();
        let way = match place.kind.as_str() {
            "file" => Way::File(FencedFile::new(location)),
            "sqlite" => Way::Sqlite(open_sqlite(location)),
            "postgres" => Way::Postgres(connect(location).await),
            "sqlx" => {
                Way::Sqlx(sqlx::postgres::PgPoolOptions::new().max_connections(1).connect(location).await.unwrap())
            }
            "redis" => {
                let client = redis::Client::open(location).unwrap();
                let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(120)));
                Way::Redis(client.get_multiplexed_async_connection_with_config(&patient).await.unwrap())
            }
            "http" => Way::Http(http_client()),
            "object" => Way::Object(http_client()),
            kind => panic!("no ledger is of kind {kind}"),
        };
        Self { place: place.clone(), way }
    }

    /// Writes one entry, with the guard or without it.
    pub(crate) async fn append(&mut self, fence: Fence) -> Result<()> {
        let Place { location, guarded, .. } = &self.place;
        let name = self.place.name();
        match &mut self.way {
            Way::File(file) => append_to_file(file, location, fence, *guarded),
            Way::Sqlite(db) => append_to_sqlite(db, fence, *guarded),
            Way::Postgres(client) => append_to_postgres(client, name, fence, *guarded).await,
            Way::Sqlx(pool) => append_by_sqlx(pool, fence, *guarded).await,
            Way::Redis(connection) => append_to_redis(connection, name, fence, *guarded).await,
            Way::Http(client) => send(client, &format!("{location}/{name}"), fence).await,
            Way::Object(client) => send(client, &format!("{location}/object/{name}"), fence).await,
        }
    }

    pub(crate) async fn entries(&mut self) -> Vec<u64> {
        let Place { location, .. } = &self.place;
        let name = self.place.name();
        match &mut self.way {
            Way::File(file) => numbers(&String::from_utf8(file.read().unwrap_or_default()).unwrap()),
            Way::Sqlite(db) => {
                let mut select = db.prepare("SELECT fence FROM ledger ORDER BY id").unwrap();
                let rows = select.query_map([], |row| row.get::<_, i64>(0)).unwrap();
                rows.map(|fence| fence.unwrap().cast_unsigned()).collect()
            }
            Way::Postgres(client) => {
                let rows = client.query(&format!("SELECT fence FROM {name} ORDER BY id"), &[]).await.unwrap();
                rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect()
            }
            Way::Sqlx(_) => entries_of_sqlx(location, name).await,
            Way::Redis(connection) => {
                redis::cmd("LRANGE").arg(name).arg(0).arg(-1).query_async::<Vec<u64>>(connection).await.unwrap()
            }
            Way::Http(client) => numbers(&fetch(client, &format!("{location}/entries/{name}")).await),
            Way::Object(client) => numbers(&fetch(client, &format!("{location}/object/{name}")).await),
        }
    }
}

/// One entry per line. A last line without its end was not finished.
pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(|line| line.parse().unwrap()).collect()
}

fn append_to_file(file: &FencedFile, path: &str, fence: Fence, guarded: bool) -> Result<()> {
    let line = format!("{fence}\n");
    if guarded {
        return file.update(fence, |old| [old.unwrap_or_default(), line.into_bytes()].concat());
    }
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
    Ok(())
}

fn open_sqlite(path: &str) -> Connection {
    let db = Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(120)).unwrap();
    db.pragma_update(None, "journal_mode", "WAL").unwrap();
    db.execute_batch("CREATE TABLE IF NOT EXISTS ledger (id INTEGER PRIMARY KEY AUTOINCREMENT, fence INTEGER)")
        .unwrap();
    sqlite::install(&db).unwrap();
    db
}

fn append_to_sqlite(db: &mut Connection, fence: Fence, guarded: bool) -> Result<()> {
    let tx = if guarded {
        sqlite::begin(db, &key(), fence)?
    } else {
        db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap()
    };
    tx.execute("INSERT INTO ledger (fence) VALUES (?1)", [fence.get().cast_signed()]).unwrap();
    tx.commit().unwrap();
    Ok(())
}

/// A connection to PostgreSQL.
pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The tables that both drivers write to.
pub(crate) async fn prepare_postgres(url: &str) {
    let client = connect(url).await;
    postgres::install(&client).await.unwrap();
    let table = |name| format!("CREATE TABLE {name} (id bigserial PRIMARY KEY, fence bigint)");
    client.batch_execute(&[table("guarded"), table("plain")].join("; ")).await.unwrap();
}

async fn append_to_postgres(
    client: &mut tokio_postgres::Client,
    table: &str,
    fence: Fence,
    guarded: bool,
) -> Result<()> {
    let tx = if guarded { postgres::begin(client, &key(), fence).await? } else { client.transaction().await.unwrap() };
    let number = fence.get().cast_signed();
    tx.execute(&format!("INSERT INTO {table} (fence) VALUES ($1)"), &[&number]).await.unwrap();
    tx.commit().await.unwrap();
    Ok(())
}

async fn append_by_sqlx(pool: &sqlx::PgPool, fence: Fence, guarded: bool) -> Result<()> {
    let mut tx = pool.begin().await.unwrap();
    let insert = if guarded {
        syncguard_fenced::sqlx::check(&mut tx, &key(), fence).await?;
        sqlx::query("INSERT INTO guarded (fence) VALUES ($1)")
    } else {
        sqlx::query("INSERT INTO plain (fence) VALUES ($1)")
    };
    insert.bind(fence.get().cast_signed()).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    Ok(())
}

async fn entries_of_sqlx(url: &str, name: &str) -> Vec<u64> {
    let rows = connect(url).await.query(&format!("SELECT fence FROM {name} ORDER BY id"), &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect()
}

async fn append_to_redis(
    connection: &mut MultiplexedConnection,
    list: &str,
    fence: Fence,
    guarded: bool,
) -> Result<()> {
    if guarded {
        let push = FencedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
        return push.key(list).arg(fence.get()).run(connection, fence).await.map(drop);
    }
    redis::cmd("RPUSH").arg(list).arg(fence.get()).query_async::<()>(connection).await.unwrap();
    Ok(())
}

type HttpClient = hyper_util::client::legacy::Client<hyper_util::client::legacy::connect::HttpConnector, Body>;

/// hyper's own client.
pub(crate) fn http_client() -> HttpClient {
    hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http()
}

async fn send(client: &HttpClient, url: &str, fence: Fence) -> Result<()> {
    let request = Request::post(url).header("Syncguard-Key", "ledger").header("Syncguard-Fence", fence.to_string());
    let response = client.request(request.body(Body::empty()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = text(response).await;
    match status {
        200 => Ok(()),
        412 => Err(StaleFence { offered: member(&body, "offered"), seen: member(&body, "seen") }.into()),
        _ => panic!("{status}: {body}"),
    }
}

async fn text<B: BodyExt<Error: std::fmt::Debug>>(response: Response<B>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn member(json: &str, name: &str) -> Fence {
    let (_, rest) = json.split_once(&format!(r#""{name}":""#)).unwrap();
    rest.split('"').next().unwrap().parse().unwrap()
}

async fn fetch(client: &HttpClient, url: &str) -> String {
    text(client.request(Request::get(url).body(Body::empty()).unwrap()).await.unwrap()).await
}
