//! Does a lock get slower when millions of keys have been locked before?
//!
//! Two stores of each kind, one with a single counter and one that is filled further and further, take turns pair by
//! pair, so that whatever else the machine does hits both.

use std::time::{Duration, Instant};

use anyhow::Result;
use syncguard::Locker;
use syncguard_testkit::RedisServer;
use syncguard_testkit::bench::median;
use tokio_postgres::NoTls;

use super::Effort;
use crate::contender::{LEASE, millis};
use crate::contenders::{OUR_POSTGRES, OUR_REDIS, OUR_SQLITE};
use crate::report::{Measure, Table};
use crate::servers::Servers;

pub(crate) const COUNTERS: [u64; 4] = [1_000, 100_000, 1_000_000, 10_000_000];

/// The pairs of one level, after a fifth of them as warm-up.
const PAIRS: usize = 1_000;
const AT_MOST: Duration = Duration::from_secs(4);

enum Store<'a> {
    Redis(&'a RedisServer),
    Postgres(tokio_postgres::Client),
    Sqlite(rusqlite::Connection),
}

impl Store<'_> {
    /// Makes the counters of these numbers, as if every one of those keys had been locked once.
    async fn fill(&self, from: u64, to: u64) -> Result<()> {
        // In steps: a server that is busy for minutes looks like one that hangs.
        for first in (from..to).step_by(100_000) {
            let end = (first + 100_000).min(to);
            match self {
                Self::Redis(server) => {
                    let script = include_str!("../../sql/fill_redis.lua");
                    server.command(&["EVAL", script, "0", &first.to_string(), &end.to_string()]);
                }
                Self::Postgres(client) => {
                    let numbers = (i64::try_from(first)?, i64::try_from(end)?);
                    let fill = include_str!("../../sql/fill_postgres.sql");
                    client.execute(fill, &[&numbers.0, &numbers.1]).await?;
                }
                Self::Sqlite(file) => {
                    let numbers = (i64::try_from(first)?, i64::try_from(end)?);
                    file.execute(include_str!("../../sql/fill_sqlite.sql"), numbers)?;
                }
            }
        }
        if let Self::Postgres(client) = self {
            client.batch_execute("VACUUM ANALYZE syncguard_fence_counters").await?;
            client.batch_execute("CHECKPOINT").await?;
        }
        Ok(())
    }
}

struct Kind<'a> {
    name: &'static str,
    few: Locker,
    many: Locker,
    store: Store<'a>,
}

pub(crate) async fn measure(servers: &Servers, effort: Effort) -> Result<Measure> {
    let mut table = Table::new("counters", "ms", "counters");
    for kind in [redis(servers).await?, postgres(servers).await?, sqlite(servers).await?] {
        let (who, mut filled) = ((kind.name, "counters", kind.name), 0);
        for count in COUNTERS.into_iter().filter(|count| *count <= effort.counters) {
            kind.store.fill(filled, count).await?;
            filled = count;
            let (few, many) = in_turn(&kind, count).await?;
            table.note(who, 1.0, few);
            table.note(who, count as f64, many);
            eprintln!("counters: {} with {count}: {few:.3} ms with one, {many:.3} ms", kind.name);
        }
    }
    Ok(table.finish())
}

/// The medians of both stores.
async fn in_turn(kind: &Kind<'_>, count: u64) -> Result<(f64, f64)> {
    let (start, mut few, mut many) = (Instant::now(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // A step that has no divisor in common with the count leads all over the index.
        let number = (pair as u64).wrapping_mul(7_368_787) % count;
        let (one, other) = (timed(&kind.few, 0).await?, timed(&kind.many, number).await?);
        if pair >= PAIRS / 5 {
            few.push(one);
            many.push(other);
        }
        if start.elapsed() > AT_MOST && few.len() > 50 {
            break;
        }
    }
    Ok((median(&few), median(&many)))
}

async fn timed(locker: &Locker, number: u64) -> Result<f64> {
    let start = Instant::now();
    locker.lock(format!("job:{number:012}")).ttl(LEASE).acquire().await?.release().await?;
    Ok(millis(start.elapsed()))
}

async fn redis(servers: &Servers) -> Result<Kind<'_>> {
    let server = &servers.redis[0];
    let [few, many] = ["few", "many"].map(|prefix| format!("{}?prefix={prefix}", server.url()));
    let (few, many) = (connect(&few).await?, connect(&many).await?);
    Ok(Kind { name: OUR_REDIS, few, many, store: Store::Redis(server) })
}

async fn postgres(servers: &Servers) -> Result<Kind<'_>> {
    let [few, many] = ["few", "many"].map(|name| servers.postgres.create_database(name));
    let locker = connect(&many).await?;
    let (client, connection) = tokio_postgres::connect(&many, NoTls).await?;
    tokio::spawn(connection);
    Ok(Kind { name: OUR_POSTGRES, few: connect(&few).await?, many: locker, store: Store::Postgres(client) })
}

async fn sqlite(servers: &Servers) -> Result<Kind<'_>> {
    let [few, many] = ["few.db", "many.db"].map(|name| servers.folder.path().join(name));
    let locker = connect(&format!("sqlite:{}", many.display())).await?;
    let file = rusqlite::Connection::open(many)?;
    file.busy_timeout(Duration::from_secs(60))?;
    let store = Store::Sqlite(file);
    Ok(Kind { name: OUR_SQLITE, few: connect(&format!("sqlite:{}", few.display())).await?, many: locker, store })
}

async fn connect(url: &str) -> Result<Locker> {
    let locker = syncguard::connect(url).await?;
    // Makes the tables.
    timed(&locker, 0).await?;
    Ok(locker)
}
