//! How many bytes does a held lock take, in the client and on the server?

use std::any::Any;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;
use tokio_postgres::NoTls;

use super::{Effort, warn, who};
use crate::contenders::{ETCD, Entry, OUR_FIRESTORE, OUR_POSTGRES, OUR_REDIS, OUR_SQLITE, RSLOCK};
use crate::report::{Measure, Table};
use crate::servers::Servers;

pub(crate) const LOCKS: [usize; 3] = [1_000, 10_000, 100_000];

/// Those that take thousands of locks in a second.
const MANY: usize = 10_000;

/// Takes this many locks and counts what stays allocated on the one thread that all clients share.
pub(crate) fn measure(runtime: &Runtime, entries: &[Entry], servers: &Servers, effort: Effort) -> [Measure; 2] {
    let mut client = Table::new("memory of the client", "bytes/lock", "locks");
    let mut server = Table::new("memory of the server", "bytes/lock", "locks");
    for entry in entries {
        for count in LOCKS.into_iter().filter(|count| *count <= effort.locks && *count <= most(entry.name)) {
            match one(runtime, entry, servers, count) {
                Ok(Some((on_client, on_server))) => {
                    client.note(who(entry), count as f64, on_client / count as f64);
                    if let Some(bytes) = on_server {
                        server.note(who(entry), count as f64, bytes / count as f64);
                    }
                    eprintln!("memory: {} with {count}: {on_client} bytes", entry.name);
                }
                Ok(None) => {}
                Err(error) => warn(entry, error),
            }
        }
    }
    [client.finish(), server.finish()]
}

/// What these locks take on the client and on the server; `None` of what cannot be held.
fn one(runtime: &Runtime, entry: &Entry, servers: &Servers, count: usize) -> Result<Option<(f64, Option<f64>)>> {
    // Connections, caches and buffers grow once.
    let Some(warm) = entry.contender.hold(100) else { return Ok(None) };
    let warm = runtime.block_on(warm)?;
    let before = runtime.block_on(on_server(servers, entry.name))?;
    let mut held: Option<Result<Box<dyn Any>>> = None;
    let figures = allocation_counter::measure(|| {
        held = entry.contender.hold(count).map(|holding| runtime.block_on(holding));
    });
    let held = held.context("it held before")??;
    let after = runtime.block_on(on_server(servers, entry.name))?;
    // Giving them back would run while the next ones are counted, and the servers end with this program.
    std::mem::forget((held, warm));
    Ok(Some((figures.bytes_current as f64, before.zip(after).map(|(before, after)| after - before))))
}

/// Every advisory lock needs a connection, files are not held by the thousand, and those of `distributed-lock` renew
/// themselves all the time, beside whatever is measured next.
fn most(name: &str) -> usize {
    match name {
        OUR_POSTGRES | OUR_SQLITE | OUR_FIRESTORE | ETCD => MANY,
        "rslock, 3 servers" | "SyncGuard, PostgreSQL without fsync" => 0,
        name if name.starts_with("advisory lock") || name.starts_with("distributed-lock") => 0,
        _ => usize::MAX,
    }
}

/// Bytes of memory (Redis) or of the tables and their indexes.
async fn on_server(servers: &Servers, name: &str) -> Result<Option<f64>> {
    match name {
        OUR_REDIS | RSLOCK => Ok(servers.redis_memory()),
        OUR_POSTGRES => {
            let (client, connection) = tokio_postgres::connect(&servers.postgres.url(), NoTls).await?;
            tokio::spawn(connection);
            let sizes = "SELECT (pg_total_relation_size('syncguard_locks')
                               + pg_total_relation_size('syncguard_fence_counters'))::float8";
            Ok(Some(client.query_one(sizes, &[]).await?.get(0)))
        }
        OUR_SQLITE => {
            let file = rusqlite::Connection::open(servers.folder.path().join("locks.db"))?;
            let pages: i64 = file.query_row("PRAGMA page_count", [], |row| row.get(0))?;
            Ok(Some(pages as f64 * 4096.0))
        }
        _ => Ok(None),
    }
}
