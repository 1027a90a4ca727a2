//! Is this server fit to carry locks?
//!
//! Tables, columns, indexes, rights, durability, recovery, and what slows a busy table down.

use syncguard_core::{Clock, HealthReport, HealthStatus, LockError, SystemClock};
use tokio::time::timeout_at;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use crate::backend::Inner;
use crate::builder::Prepared;
use crate::error;
use crate::pool::Use;
use crate::schema::{self, Schema};
use crate::session::Session;
use crate::statement::Columns;

/// Every line that can be had; a failure is a line too.
pub(crate) async fn report(inner: &Inner) -> HealthReport {
    let mut report = HealthReport::default();
    let deadline = inner.deadline();
    let mut session = match inner.pool.get(Use::Statement, deadline).await {
        Ok(session) => session,
        Err(error) => {
            fail(&mut report, "connection", &error);
            return report;
        }
    };
    session.begin();
    match timeout_at(deadline, ask(inner, &session)).await {
        Ok(Ok((schema, row, clock))) => {
            session.finished();
            connection(&mut report, inner, &row);
            connections(&mut report, inner, &row);
            tables(&mut report, inner, &schema);
            if schema.locks && schema.fences {
                rights(&mut report, &row);
                load(&mut report, &row);
            }
            durability(&mut report, &row);
            clock_line(&mut report, &clock);
        }
        Ok(Err(error)) => fail(&mut report, "statements", &error::from_statement(&error)),
        Err(_) => fail(&mut report, "statements", &error::no_answer()),
    }
    report
}

async fn ask(inner: &Inner, session: &Session) -> Result<(Schema, Row, ClockOffset), tokio_postgres::Error> {
    let client = session.client();
    let schema = schema::look(client, &inner.tables).await?;
    let sql = crate::statement::render(include_str!("../sql/health.sql"), &inner.tables, Columns::default());
    let (locks, fences) = (inner.tables.locks.quoted(), inner.tables.fences.quoted());
    let row = client.query_typed_one(&sql, &[(&locks, Type::TEXT), (&fences, Type::TEXT)]).await?;
    let clock = measure_clock(client).await?;
    Ok((schema, row, clock))
}

fn fail(report: &mut HealthReport, name: &'static str, error: &LockError) {
    let detail = format!("{error} ({})", error.code());
    let line = report.push(HealthStatus::Fail, name, detail);
    if let Some(hint) = error.hint() {
        line.hint(hint.to_owned());
    }
}

fn connection(report: &mut HealthReport, inner: &Inner, row: &Row) {
    report.push(
        HealthStatus::Pass,
        "connection",
        format!("postgres {}", get::<String>(row, "version").unwrap_or_default()),
    );
    encryption(report, inner, row);
    pooler(report, inner);
    if get(row, "in_recovery") == Some(true) || get(row, "read_only") == Some(true) {
        report
            .push(
                HealthStatus::Fail,
                "role",
                "the server is read-only: a standby, or default_transaction_read_only is on",
            )
            .hint("name the primary, or list all hosts with target_session_attrs=read-write");
    } else {
        report.push(HealthStatus::Pass, "role", "primary");
    }
}

/// How many connections there are, and how many there may be.
fn connections(report: &mut HealthReport, inner: &Inner, row: &Row) {
    let number = |name| get::<i64>(row, name).unwrap_or(0);
    let (server, server_limit, role) =
        (number("server_connections"), number("server_limit"), number("role_connections"));
    let role_limit: Option<i64> = get(row, "role_limit");
    let of_role = role_limit.map_or("any number of".to_owned(), |limit| limit.to_string());
    let most = inner.pool.size() + 1;
    let detail = format!(
        "this role has {role} of {of_role} connections, the server {server} of {server_limit}; a process that waits or \
         holds has 1, and {most} at most"
    );
    let left = role_limit.map_or(i64::MAX, |limit| limit - role).min(server_limit - server);
    if left > 2 {
        report.push(HealthStatus::Info, "connections", detail);
    } else {
        report
            .push(HealthStatus::Warn, "connections", detail)
            .hint("there is hardly room for another: raise max_connections or the role's CONNECTION LIMIT, or lower pool_size");
    }
}

/// How the connection is protected, by what the server says of it and by what was checked.
fn encryption(report: &mut HealthReport, inner: &Inner, row: &Row) {
    let Some(target) = inner.pool.target() else {
        report.push(HealthStatus::Info, "encryption", "the pool was brought along; its TLS settings are its own");
        return;
    };
    // A pooler has a connection of its own to the server, and that is the one the server speaks of.
    let tls = get::<String>(row, "tls").filter(|_| !target.seen.pooler());
    let (status, detail) = match &tls {
        _ if target.seen.plain() => (HealthStatus::Warn, "plaintext to another machine".to_owned()),
        _ if get(row, "unix_socket") == Some(true) && !target.seen.pooler() => {
            (HealthStatus::Pass, "Unix socket".to_owned())
        }
        _ if target.tls.authenticated => {
            (HealthStatus::Pass, format!("{}, certificate verified", tls.as_deref().unwrap_or("TLS")))
        }
        Some(version) => (HealthStatus::Info, format!("{version}, certificate not verified")),
        None => (HealthStatus::Info, "plaintext on loopback, or a certificate that is not verified".to_owned()),
    };
    let line = report.push(status, "encryption", detail);
    if status != HealthStatus::Pass {
        line.hint("set sslmode=verify-full unless the server is on this machine");
    }
}

fn pooler(report: &mut HealthReport, inner: &Inner) {
    if inner.pool.behind_pooler() != Some(true) {
        return;
    }
    match inner.settings.prepared {
        Prepared::Always => report
            .push(
                HealthStatus::Warn,
                "pooler",
                "connections lead through a pooler, and statements are prepared by name",
            )
            .hint("fit for PgBouncer 1.21 and later with max_prepared_statements; otherwise remove prepared=always"),
        Prepared::Auto | Prepared::Never => report
            .push(
                HealthStatus::Info,
                "pooler",
                "connections lead through a pooler: statements are parsed at every call",
            )
            .hint(
                "prepared=always if it understands prepared statements; wake_url=… straight to the server for wake-ups; \
                 run --fence-postgres needs the server itself",
            ),
    };
}

fn tables(report: &mut HealthReport, inner: &Inner, schema: &Schema) {
    let (locks, fences) = (inner.tables.locks.display(), inner.tables.fences.display());
    let hint = if schema.is_half() {
        "one table without the other: a name is misspelt, or counters were lost and fences would begin anew; restore it"
    } else {
        "call setup_schema(), or run the SQL that schema_sql() prints"
    };
    for (there, name) in [(schema.locks, &locks), (schema.fences, &fences)] {
        if !there {
            report.push(HealthStatus::Fail, "tables", format!("{name} does not exist")).hint(hint);
        }
    }
    if !schema.locks || !schema.fences {
        return;
    }
    match &schema.stranger {
        None => drop(report.push(
            HealthStatus::Pass,
            "tables",
            format!("{locks}, {fences}; no stranger's code runs on them"),
        )),
        Some(stranger) => drop(report.push(HealthStatus::Fail, "tables", stranger.clone()).hint(schema::STRANGER)),
    }
    check(report, "columns", schema.columns, "a column is missing or has another type", "compare with schema_sql()");
    if !schema.optional.holder {
        report.push(HealthStatus::Info, "holder column", format!("{locks} has no column `holder`")).hint(
            "call setup_schema(), or run the SQL that schema_sql() prints, to see who holds a lock and to ask for it",
        );
    }
    check(
        report,
        "primary keys",
        schema.unique_keys,
        "key or fence_key is not unique",
        "locks and fences may double: recreate the tables",
    );
    check(report, "unique index", schema.unique_lock_id, "lock_id has no unique index", "call setup_schema()");
    if !schema.expires_index {
        report
            .push(HealthStatus::Warn, "expiry index", "expires_at_ms has no index: purging reads the whole table")
            .hint("call setup_schema()");
    }
}

fn check(report: &mut HealthReport, name: &'static str, good: bool, bad: &'static str, hint: &'static str) {
    if good {
        report.push(HealthStatus::Pass, name, "as they should be");
    } else {
        report.push(HealthStatus::Fail, name, bad).hint(hint);
    }
}

fn rights(report: &mut HealthReport, row: &Row) {
    let good = get(row, "lock_rights") == Some(true) && get(row, "fence_rights") == Some(true);
    check(
        report,
        "grants",
        good,
        "the role lacks rights on the tables",
        "SELECT, INSERT, UPDATE, DELETE on the lock table; SELECT, INSERT, UPDATE (fence) on the fence table",
    );
    if get(row, "may_delete_counters") == Some(true) {
        report
            .push(HealthStatus::Info, "counters", "this role may delete fence counters")
            .hint("revoke DELETE and TRUNCATE on the fence table: a deleted counter repeats its fences");
    }
}

fn durability(report: &mut HealthReport, row: &Row) {
    if get(row, "fsync") == Some(false) || get(row, "full_page_writes") == Some(false) {
        report
            .push(HealthStatus::Fail, "durability", "fsync or full_page_writes is off: a power cut repeats fences")
            .hint("switch both on, or use fence_floor=clock");
    } else {
        report.push(HealthStatus::Pass, "durability", "commits reach the disk");
    }
    let setting: String = get(row, "synchronous_commit").unwrap_or_default();
    let detail = match setting.as_str() {
        "on" | "remote_apply" => setting,
        other => format!("{other} by default; SyncGuard's own transactions use on"),
    };
    report.push(HealthStatus::Info, "synchronous_commit", detail);
    if get(row, "synchronous_standbys") == Some(false) {
        report
            .push(
                HealthStatus::Info,
                "replication",
                "no synchronous standby: a failover may lose the last locks and fences",
            )
            .hint("set synchronous_standby_names, or use fence_floor=clock");
    }
}

fn load(report: &mut HealthReport, row: &Row) {
    let counters: i64 = get(row, "counters").unwrap_or(-1);
    if counters >= 0 {
        report.push(
            HealthStatus::Info,
            "counters",
            format!("about {counters} keys have ever been locked; their counters stay"),
        );
    }
    let (alive, dead) = (get::<i64>(row, "locks_alive").unwrap_or(0), get::<i64>(row, "locks_dead").unwrap_or(0));
    if dead > 10_000 && dead > alive.saturating_mul(10) {
        report
            .push(
                HealthStatus::Warn,
                "vacuum",
                format!("{dead} dead row versions beside {alive} live ones in the lock table"),
            )
            .hint("let autovacuum run more often on this table");
    }
    let ages = Ages {
        snapshot_s: get(row, "oldest_snapshot_s"),
        snapshot_xids: get(row, "oldest_snapshot_xids"),
        slot_xids: get(row, "oldest_slot_xids"),
        prepared_s: get(row, "oldest_prepared_s"),
    };
    if let Some(detail) = ages.complaint() {
        report.push(HealthStatus::Warn, "old snapshot", detail).hint(
            "dead row versions pile up meanwhile and every lock gets slower; run long reports and backups on a standby",
        );
    }
}

/// What keeps the server from removing dead row versions, and for how long it has done so.
#[derive(Clone, Copy, Debug, Default)]
struct Ages {
    /// Only of sessions that this role may see.
    snapshot_s: Option<i64>,
    snapshot_xids: Option<i64>,
    slot_xids: Option<i64>,
    prepared_s: Option<i64>,
}

impl Ages {
    const LONG_S: i64 = 30;
    const MANY_XIDS: i64 = 100_000;

    fn complaint(self) -> Option<String> {
        let above = |age: Option<i64>, limit| age.filter(|age| *age > limit);
        if let Some(age) = above(self.snapshot_s, Self::LONG_S) {
            return Some(format!("a transaction has kept its snapshot for {age} s"));
        }
        if let Some(age) = above(self.prepared_s, Self::LONG_S) {
            return Some(format!("a prepared transaction has waited for its end for {age} s"));
        }
        if let Some(age) = above(self.snapshot_xids, Self::MANY_XIDS) {
            return Some(format!("a transaction has kept its snapshot over {age} others"));
        }
        let age = above(self.slot_xids, Self::MANY_XIDS)?;
        Some(format!("a replication slot keeps what {age} transactions left behind"))
    }
}

struct ClockOffset {
    offset_ms: i64,
    error_ms: i64,
}

/// Eight questions; the quickest answer says most.
async fn measure_clock(client: &tokio_postgres::Client) -> Result<ClockOffset, tokio_postgres::Error> {
    let mut best = ClockOffset { offset_ms: 0, error_ms: i64::MAX };
    for _ in 0..8 {
        let (sent, local) = (SystemClock.boot(), SystemClock.wall());
        let sql = "SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint";
        let row = client.query_typed_one(sql, &[]).await?;
        let half = i64::try_from(SystemClock.boot().since(sent).as_millis() / 2).unwrap_or(i64::MAX);
        if half < best.error_ms {
            let server: i64 = row.try_get(0)?;
            best = ClockOffset { offset_ms: server - local.as_millis() - half, error_ms: half };
        }
    }
    Ok(best)
}

fn clock_line(report: &mut HealthReport, clock: &ClockOffset) {
    let detail = format!(
        "the server is {} ms ahead of this machine (± {} ms); leases live by the server's",
        clock.offset_ms,
        clock.error_ms + 1
    );
    report.push(HealthStatus::Info, "clock", detail);
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Option<T> {
    row.try_get::<_, Option<T>>(name).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lasts_is_complained_about() {
        let none = Ages::default();
        assert_eq!(none.complaint(), None);
        let young =
            Ages { snapshot_s: Some(30), snapshot_xids: Some(100_000), slot_xids: Some(9), prepared_s: Some(1) };
        assert_eq!(young.complaint(), None);
        for (old, word) in [
            (Ages { snapshot_s: Some(31), ..young }, "31 s"),
            (Ages { prepared_s: Some(40), ..young }, "prepared"),
            (Ages { snapshot_xids: Some(100_001), ..young }, "100001"),
            (Ages { slot_xids: Some(200_000), ..young }, "slot"),
        ] {
            assert!(old.complaint().is_some_and(|text| text.contains(word)), "{old:?}");
        }
    }
}
