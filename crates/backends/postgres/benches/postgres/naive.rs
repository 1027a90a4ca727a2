//! The sequence of the specification: eight round trips to acquire, five to release.

use std::time::Instant;

use syncguard_core::LockId;
use syncguard_testkit::PostgresServer;
use tokio_postgres::{Client, NoTls, Statement};

use crate::Choice;

pub(crate) async fn run(server: &PostgresServer, tasks: usize, choice: Choice) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..tasks {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let statements = Statements::prepare(&client).await;
        clients.push((client, statements));
    }
    let (start, mut running) = (Instant::now(), tokio::task::JoinSet::new());
    for (task, (mut client, statements)) in clients.into_iter().enumerate() {
        running.spawn(async move {
            let key = format!("naive-{task}");
            let mut pairs = 0_u64;
            while start.elapsed() < choice.time() {
                statements.pair(&mut client, &key).await;
                pairs += 1;
            }
            pairs
        });
    }
    let mut pairs = 0;
    while let Some(done) = running.join_next().await {
        pairs += done.unwrap();
    }
    pairs as f64 / start.elapsed().as_secs_f64()
}

struct Statements {
    advisory: Statement,
    now: Statement,
    held: Statement,
    insert: Statement,
    count: Statement,
    upsert: Statement,
    owned: Statement,
    delete: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Self {
        let prepare = async |sql: &str| client.prepare(sql).await.unwrap();
        Self {
            advisory: prepare("SELECT pg_advisory_xact_lock(hashtext($1))").await,
            now: prepare("SELECT floor(extract(epoch FROM now()) * 1000)::bigint").await,
            held: prepare("SELECT expires_at_ms FROM syncguard_locks WHERE key = $1 FOR UPDATE").await,
            insert: prepare(
                "INSERT INTO syncguard_fence_counters (fence_key, fence) VALUES ($1, 0) ON CONFLICT DO NOTHING",
            )
            .await,
            count: prepare(
                "UPDATE syncguard_fence_counters SET fence = fence + 1 WHERE fence_key = $1 RETURNING fence",
            )
            .await,
            upsert: prepare(
                "INSERT INTO syncguard_locks VALUES ($1, $2, $3, $4, $5, $1) ON CONFLICT (key) DO UPDATE SET
                 lock_id = EXCLUDED.lock_id, expires_at_ms = EXCLUDED.expires_at_ms,
                 acquired_at_ms = EXCLUDED.acquired_at_ms, fence = EXCLUDED.fence",
            )
            .await,
            owned: prepare("SELECT key, expires_at_ms FROM syncguard_locks WHERE lock_id = $1 FOR UPDATE").await,
            delete: prepare("DELETE FROM syncguard_locks WHERE key = $1").await,
        }
    }

    async fn pair(&self, client: &mut Client, key: &str) {
        let (id, counter) = (LockId::random(), format!("fence:{key}"));
        let tx = client.transaction().await.unwrap();
        tx.query(&self.advisory, &[&key]).await.unwrap();
        let now: i64 = tx.query_one(&self.now, &[]).await.unwrap().get(0);
        tx.query(&self.held, &[&key]).await.unwrap();
        tx.execute(&self.insert, &[&counter]).await.unwrap();
        let fence: i64 = tx.query_one(&self.count, &[&counter]).await.unwrap().get(0);
        tx.execute(&self.upsert, &[&key, &id.as_str(), &(now + 30_000), &now, &format!("{fence:015}")]).await.unwrap();
        tx.commit().await.unwrap();

        let tx = client.transaction().await.unwrap();
        tx.query_one(&self.now, &[]).await.unwrap();
        tx.query_one(&self.owned, &[&id.as_str()]).await.unwrap();
        tx.execute(&self.delete, &[&key]).await.unwrap();
        tx.commit().await.unwrap();
    }
}
