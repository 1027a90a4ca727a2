//! Does every closure that the API takes compile where applications have them?
//!
//! In a handler of axum, in a boxed future (what async-trait and tonic make of a method), in a spawned task; each with
//! what it moves and what it borrows. Most of it need not run: it has to compile.

use std::pin::Pin;
#[cfg(feature = "fenced-sqlx")]
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use syncguard::{LockError, Locker, MemoryBackend};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Every closure under a lock, with something borrowed in each.
async fn all_of_core(locker: &Locker, name: &str) -> Result<usize, LockError> {
    let mut sum = locker.lock("a").run(async |lock| lock.fence().to_string().len() + name.len()).await?;
    sum += locker.lock("a").run(|_| async { name.len() }).await?;
    sum += locker.lock("a").run_and_report(async |_| name.len()).await?.value;
    sum += locker.lock_all(["a", "b"]).run(async |locks| locks.len() + name.len()).await?;
    sum += locker.elect("a").lead(async |_| name.len()).await?;
    sum += locker.lock("a").on_release_error(|_, _, _| ()).run(async |_| name.len()).await?;
    Ok(sum)
}

/// What async-trait writes.
trait Service: Sync {
    fn call<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<usize, LockError>>;
}

impl Service for Locker {
    fn call<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<usize, LockError>> {
        Box::pin(async move { all_of_core(self, name).await })
    }
}

#[tokio::test]
async fn closures_of_locks_compile_in_handlers_boxes_and_tasks() {
    let locker = Locker::new(MemoryBackend::new());
    let handler =
        async |State(locker): State<Locker>, name: String| all_of_core(&locker, &name).await.unwrap().to_string();
    let _: Router = Router::new().route("/", post(handler)).with_state(locker.clone());
    let boxed = locker.call("abc").await.unwrap();
    let spawned = tokio::spawn(async move { all_of_core(&locker, "abc").await }).await.unwrap().unwrap();
    assert_eq!((boxed, spawned), (15 + 2 + 6 * 3, 15 + 2 + 6 * 3));
}

#[cfg(feature = "fenced-sqlx")]
mod fenced {
    use super::*;
    use syncguard::fenced::{FenceError, RunFenced};

    #[derive(Clone)]
    struct App {
        locker: Locker,
        pool: sqlx::PgPool,
    }

    impl App {
        async fn all_gates(
            &self,
            client: &mut tokio_postgres::Client,
            file: &mut rusqlite::Connection,
            name: &str,
        ) -> Result<usize, FenceError> {
            let mut pool = self.pool.clone();
            let request = || self.locker.lock(name).ttl(Duration::from_secs(3)).keep_alive();
            let by_sqlx = request().run_fenced(&mut pool, |tx| {
                Box::pin(async move {
                    let done = sqlx::query("SELECT 1").execute(&mut **tx).await;
                    Ok::<_, FenceError>(done.map_or(0, |_| name.len()))
                })
            });
            let mut sum = by_sqlx.await?;
            let by_client = request().run_fenced(client, |tx| {
                Box::pin(
                    async move { Ok::<_, FenceError>(tx.execute("SELECT 1", &[]).await.map_or(0, |_| name.len())) },
                )
            });
            sum += by_client.await?;
            let by_file = request()
                .run_fenced(file, |tx| Ok::<_, FenceError>(tx.execute("SELECT 1", []).map_or(0, |_| name.len())));
            Ok(sum + by_file.await?)
        }

        fn boxed<'a>(
            &'a self,
            name: &'a str,
            client: &'a mut tokio_postgres::Client,
        ) -> BoxFuture<'a, Result<usize, FenceError>> {
            Box::pin(async move {
                let mut file = rusqlite::Connection::open_in_memory().unwrap();
                self.all_gates(client, &mut file, name).await
            })
        }
    }

    async fn charge(State(mut app): State<App>, name: String) -> String {
        let charge = app.locker.lock("charge").run_fenced(&mut app.pool, |tx| {
            Box::pin(async {
                let done = sqlx::query("SELECT $1").bind(&name).execute(&mut **tx).await;
                Ok::<_, FenceError>(done.is_ok())
            })
        });
        charge.await.unwrap().to_string()
    }

    #[test]
    fn run_fenced_compiles_in_handlers_boxes_and_tasks() {
        let _ = |app: App| Router::new().route("/", post(charge)).with_state::<()>(app);
        let _ = |app: App, mut client: tokio_postgres::Client| {
            tokio::spawn(async move { app.boxed(&String::from("borrowed"), &mut client).await.is_ok() })
        };
    }
}
