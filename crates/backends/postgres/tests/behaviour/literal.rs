//! What do clients do that follow the specification to the letter?
//!
//! One statement per round trip and `NOW()`, the transaction's start, as the clock. [`original_acquire`] is the
//! TypeScript original's: it takes the advisory lock but does not lock the row.

use tokio_postgres::Client;

use crate::support::Tables;

const NOW: &str = "SELECT floor(extract(epoch FROM now()) * 1000)::bigint";

/// Extend as specified: the row lock, no advisory lock. Whether it succeeded.
pub(crate) async fn extend(client: &mut Client, tables: &Tables, lock_id: &str, ttl: i64) -> bool {
    let tx = client.transaction().await.unwrap();
    let now: i64 = tx.query_one(NOW, &[]).await.unwrap().get(0);
    let select = format!("SELECT key, expires_at_ms FROM {} WHERE lock_id = $1 FOR UPDATE", tables.locks);
    let Some(row) = tx.query_opt(&select, &[&lock_id]).await.unwrap() else { return false };
    let (key, expires_at): (String, i64) = (row.get(0), row.get(1));
    if expires_at <= now - 1000 {
        return false;
    }
    let update = format!("UPDATE {} SET expires_at_ms = $1 WHERE key = $2", tables.locks);
    tx.execute(&update, &[&(now + ttl), &key]).await.unwrap();
    tx.commit().await.unwrap();
    true
}

/// Acquire as the TypeScript original does it. Whether it succeeded.
pub(crate) async fn original_acquire(client: &mut Client, tables: &Tables, key: &str, lock_id: &str, ttl: i64) -> bool {
    let tx = client.transaction().await.unwrap();
    tx.execute("SELECT pg_advisory_xact_lock(hashtext($1))", &[&key]).await.unwrap();
    let now: i64 = tx.query_one(NOW, &[]).await.unwrap().get(0);
    let select = format!("SELECT expires_at_ms FROM {} WHERE key = $1", tables.locks);
    let held: Option<i64> = tx.query_opt(&select, &[&key]).await.unwrap().map(|row| row.get(0));
    if held.is_some_and(|expires_at| expires_at > now - 1000) {
        return false;
    }
    let counter = format!("fence:{key}");
    let insert = format!("INSERT INTO {} (fence_key, fence) VALUES ($1, 0) ON CONFLICT DO NOTHING", tables.fences);
    tx.execute(&insert, &[&counter]).await.unwrap();
    let count = format!("UPDATE {} SET fence = fence + 1 WHERE fence_key = $1 RETURNING fence", tables.fences);
    let fence: i64 = tx.query_one(&count, &[&counter]).await.unwrap().get(0);
    let upsert = format!(
        "INSERT INTO {} VALUES ($1, $2, $3, $4, $5, $1) ON CONFLICT (key) DO UPDATE SET lock_id = EXCLUDED.lock_id,
         expires_at_ms = EXCLUDED.expires_at_ms, acquired_at_ms = EXCLUDED.acquired_at_ms, fence = EXCLUDED.fence",
        tables.locks
    );
    tx.execute(&upsert, &[&key, &lock_id, &(now + ttl), &now, &format!("{fence:015}")]).await.unwrap();
    tx.commit().await.unwrap();
    true
}

/// This crate's acquire without its row lock: the broken twin. Whether it succeeded.
pub(crate) async fn acquire_without_row_lock(
    client: &mut Client,
    tables: &Tables,
    key: &str,
    lock_id: &str,
    ttl: i64,
) -> bool {
    acquire_by(client, &broken_acquire(tables), key, lock_id, ttl).await.is_some()
}

/// Acquires by a statement with the parameters of this crate's, under the advisory lock and without anything else that
/// this crate sets for its transaction. When the lease ends, if it was granted.
pub(crate) async fn acquire_by(
    client: &mut Client,
    statement: &str,
    key: &str,
    lock_id: &str,
    ttl: i64,
) -> Option<i64> {
    let tx = client.transaction().await.unwrap();
    tx.execute("SELECT pg_advisory_xact_lock(hashtext($1))", &[&key]).await.unwrap();
    let counter = format!("fence:{key}");
    let row = tx.query_one(statement, &[&key, &counter, &lock_id, &ttl, &key, &None::<String>, &false]).await.unwrap();
    let expires_at = row.get("expires_at_ms");
    tx.commit().await.unwrap();
    expires_at
}

/// This crate's statement for one lock.
pub(crate) fn acquire_statement(tables: &Tables) -> String {
    let lines = include_str!("../../sql/acquire.sql").lines().filter(|line| !line.ends_with(" -- if many"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text.replace("{locks}", &tables.locks).replace("{fences}", &tables.fences)
}

/// A copy of the statement without the row lock and without the upsert's second look at the row under its own lock.
fn broken_acquire(tables: &Tables) -> String {
    let mut text = acquire_statement(tables);
    for (from, to) in [
        ("FOR UPDATE SKIP LOCKED) AS dead", ") AS dead"),
        ("        WHERE l.expires_at_ms <= EXCLUDED.acquired_at_ms - 1000\n", ""),
    ] {
        assert_eq!(text.matches(from).count(), 1, "the statement has changed: {from}");
        text = text.replace(from, to);
    }
    text
}
