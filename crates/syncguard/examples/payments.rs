//! A service that charges an order once, on however many machines it runs: axum, sqlx, one PostgreSQL.
//!
//! The lock keeps two machines from charging at once. The fence, checked by the database in the same transaction,
//! keeps one from it that was paused for longer than its lease. The key of the table keeps a client from paying twice.
//! `DATABASE_URL=postgres://… cargo run -p syncguard --features postgres,fenced-sqlx --example payments`, then
//! `curl -i -X POST http://127.0.0.1:3000/orders/42/charge`

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sqlx::PgPool;
use syncguard::Locker;
use syncguard::fenced::{self, FenceError, RunFenced};

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) locker: Locker,
    pool: PgPool,
}

impl App {
    /// Locks, marks and charges in one database.
    pub(crate) async fn connect(url: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let (locker, pool) = (syncguard::connect(url).await?, PgPool::connect(url).await?);
        fenced::sqlx::install(&pool).await?;
        sqlx::query("CREATE TABLE IF NOT EXISTS charges (order_id bigint PRIMARY KEY)").execute(&pool).await?;
        Ok(Self { locker, pool })
    }

    pub(crate) fn routes(self) -> Router {
        Router::new().route("/orders/{order}/charge", post(charge)).with_state(self)
    }
}

async fn charge(State(mut app): State<App>, Path(order): Path<i64>) -> Result<&'static str, Failure> {
    let lock = app.locker.lock(format!("order:{order}")).timeout(Duration::ZERO).keep_alive();
    let charged = lock.run_fenced(&mut app.pool, |tx| {
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO charges VALUES ($1) ON CONFLICT DO NOTHING").bind(order);
            if insert.execute(&mut **tx).await?.rows_affected() == 0 {
                return Ok("charged before\n");
            }
            ask_the_bank(order).await;
            Ok::<_, Failure>("charged\n")
        })
    });
    charged.await
}

async fn ask_the_bank(_order: i64) {
    tokio::time::sleep(Duration::from_millis(300)).await; // with an idempotency key: a bank can compare as well
}

/// Why an order was not charged.
pub(crate) enum Failure {
    Fence(FenceError),
    Database(sqlx::Error),
}

impl From<FenceError> for Failure {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        if let Self::Database(error) = &self {
            eprintln!("database: {error}");
        }
        let (status, text, free_in) = match &self {
            Self::Fence(FenceError::Stale(_)) => (409, "another machine has been at this order", None),
            Self::Fence(FenceError::Contended(held)) => (409, "another machine is at this order", held.free_in()),
            Self::Fence(FenceError::Lost(_)) | Self::Database(_) => (503, "perhaps charged: ask again", None),
            Self::Fence(failed) => (failed.http_status(), "not charged", None),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Until then a dead machine would keep it; a living one is done sooner.
        let seconds = free_in.map_or(1, |free_in| free_in.as_secs() + 1);
        (status, [(header::RETRY_AFTER, seconds.to_string())], format!("{text}\n")).into_response()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = App::connect(&std::env::var("DATABASE_URL")?).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let locker = app.locker.clone();
    axum::serve(listener, app.routes()).await?;
    locker.shutdown(Duration::from_secs(5)).await; // the last releases reach the backend
    Ok(())
}
