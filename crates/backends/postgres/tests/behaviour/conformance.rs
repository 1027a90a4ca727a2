//! Does the PostgreSQL backend keep the contract: on plain TCP, on TLS, and behind a transaction pooler?

use std::time::Duration;

use crate::support::rights::Role;
use crate::support::{Tables, sql};
use syncguard_conformance::{Break, Budget, Harness, Line, Poison, Unsupported, suite};
use syncguard_core::Key;
use syncguard_postgres::{PostgresBackend, PostgresBuilder};
use syncguard_testkit::{Fault, FaultProxy, pgbouncer_url, postgres_ca, postgres_tls_url, postgres_url};

suite!(tcp, PostgresHarness::start(postgres_url()).await);
suite!(least_rights, PostgresHarness::with_least_rights().await);
suite!(tls, PostgresHarness::start(tls_url()).await);
suite!(pgbouncer, PostgresHarness::start(pgbouncer_url()).await);

fn tls_url() -> String {
    let url = postgres_tls_url();
    let bare = url.split('?').next().unwrap();
    format!("{bare}?sslmode=verify-full&sslrootcert={}", postgres_ca().display())
}

struct PostgresHarness {
    url: String,
    here: Tables,
    elsewhere: Tables,
    budget: Budget,
    /// Who locks, where it is not the owner of the tables.
    role: Option<Role>,
}

impl PostgresHarness {
    async fn start(url: String) -> Self {
        let budget = Budget { contended_cycles: 2_000, ..Budget::default() };
        let harness = Self { url, here: Tables::fresh(), elsewhere: Tables::fresh(), budget, role: None };
        drop(harness.backend().await);
        harness
    }

    /// As a role with the grants that the documentation names and nothing else, on tables that somebody else made.
    async fn with_least_rights() -> Self {
        let owner = Self::start(postgres_url()).await;
        let role = Role::create(&owner.url, "locker", &owner.here).await;
        let url = role.url(&owner.url);
        // What many clients do at once is the same for every user.
        let budget = Budget { serial_cycles: 50, contended_cycles: 100, boundary_trials: 20, racers: 16 };
        Self { url, budget, role: Some(role), ..owner }
    }

    fn options(&self, tables: &Tables) -> PostgresBuilder {
        tables.at(&self.url).auto_create_tables(self.role.is_none())
    }
}

impl Harness for PostgresHarness {
    type Backend = PostgresBackend;

    async fn backend(&self) -> PostgresBackend {
        self.options(&self.here).connect().await.unwrap()
    }

    async fn elsewhere(&self) -> PostgresBackend {
        if let Some(role) = &self.role {
            drop(self.elsewhere.at(&postgres_url()).connect().await.unwrap());
            role.grant(&postgres_url(), &self.elsewhere).await;
        }
        self.options(&self.elsewhere).connect().await.unwrap()
    }

    async fn cleaning(&self) -> Result<PostgresBackend, Unsupported> {
        Ok(self.options(&self.here).cleanup_in_is_locked(true).connect().await.unwrap())
    }

    async fn set_counter(&self, key: &Key, value: u64) -> Result<(), Unsupported> {
        let statement = format!(
            "INSERT INTO {} (fence_key, fence) VALUES ($1, $2) ON CONFLICT (fence_key) DO UPDATE SET fence = $2",
            self.here.fences
        );
        let (name, value) = (format!("fence:{}", key.as_str()), i64::try_from(value).unwrap());
        sql(&postgres_url()).await.execute(&statement, &[&name, &value]).await.unwrap();
        Ok(())
    }

    async fn counter(&self, key: &Key) -> Result<Option<u64>, Unsupported> {
        let statement = format!("SELECT fence FROM {} WHERE fence_key = $1", self.here.fences);
        let name = format!("fence:{}", key.as_str());
        let row = sql(&postgres_url()).await.query_opt(&statement, &[&name]).await.unwrap();
        Ok(row.map(|row| u64::try_from(row.get::<_, i64>(0)).unwrap()))
    }

    async fn poison(&self, key: &Key, poison: Poison) -> Result<(), Unsupported> {
        let far = "9000000000000000";
        let (lock_id, expiry, fence) = match poison {
            Poison::NotALock => ("'not a lock'", far, "'abc'"),
            Poison::Empty => ("NULL", "NULL", "NULL"),
            Poison::NoExpiry => ("'AAAAAAAAAAAAAAAAAAAAAA'", "NULL", "'000000000000001'"),
            Poison::ExpiryIsText => {
                return Err(Unsupported::because("the column is a BIGINT, and one type holds for all rows"));
            }
            Poison::NoOwner => ("NULL", far, "'000000000000001'"),
            other => return Err(Unsupported::because(format!("the harness does not know {other:?}"))),
        };
        let table = &self.here.locks;
        // A careless hand took the constraints away.
        let statements = format!(
            "ALTER TABLE {table} ALTER lock_id DROP NOT NULL, ALTER expires_at_ms DROP NOT NULL, ALTER fence DROP NOT NULL;
             INSERT INTO {table} VALUES ('{}', {lock_id}, {expiry}, 0, {fence}, 'x')",
            key.as_str().replace('\'', "''")
        );
        sql(&postgres_url()).await.batch_execute(&statements).await.unwrap();
        Ok(())
    }

    async fn damage_counter(&self, _: &Key) -> Result<(), Unsupported> {
        Err(Unsupported::because("the column is a BIGINT, which holds nothing but numbers"))
    }

    async fn entries(&self) -> Result<usize, Unsupported> {
        let statement = format!("SELECT count(*) FROM {}", self.here.locks);
        let row = sql(&postgres_url()).await.query_one(&statement, &[]).await.unwrap();
        Ok(usize::try_from(row.get::<_, i64>(0)).unwrap())
    }

    async fn on_a_line(&self) -> Result<(PostgresBackend, Line), Unsupported> {
        if self.url != postgres_url() {
            return Err(Unsupported::because("tried as the owner on plain TCP; TLS and a pooler break with it"));
        }
        let port = self.url.split("127.0.0.1:").nth(1).and_then(|rest| rest.split('/').next()?.parse().ok());
        let proxy = FaultProxy::start(port.ok_or_else(|| Unsupported::because("the server is not of our making"))?);
        proxy.reset_holes();
        let options = self.here.at(&proxy.url(&self.url)).auto_create_tables(false);
        let backend = options.timeout(Duration::from_secs(1)).connect().await.unwrap();
        let line = Line::new(move |now| {
            proxy.set(match now {
                Break::Mended => Fault::Pass,
                Break::RepliesLost => Fault::DropReplies,
                Break::Silent => Fault::BlackHole,
            });
        });
        Ok((backend, line))
    }

    async fn hold_up(&self, key: &Key, time: Duration) -> Result<(), Unsupported> {
        let holder = sql(&postgres_url()).await;
        let lock = format!("BEGIN; SELECT 1 FROM {} WHERE key = '{}' FOR UPDATE", self.here.locks, key.as_str());
        holder.batch_execute(&lock).await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            holder.batch_execute("COMMIT").await.unwrap();
        });
        Ok(())
    }

    async fn backend_with_clock(&self, _: i64) -> Result<PostgresBackend, Unsupported> {
        Err(Unsupported::because("no client's clock is asked; the statements read the server's"))
    }

    async fn set_up_again(&self) {
        self.backend().await.setup_schema().await.unwrap();
    }

    // What it would prove is in crash.rs, with a server that is killed in the middle of a run.
    async fn restart(&self) -> Result<(), Unsupported> {
        Err(Unsupported::because("the server is shared; `crash` kills its own"))
    }

    fn budget(&self) -> Budget {
        self.budget
    }
}
