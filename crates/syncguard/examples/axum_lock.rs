//! An HTTP service that does one thing at a time per name, on however many machines it runs.
//!
//! A name that is being worked on answers `423 Locked` with `Retry-After`, the time until its lease could be taken over. A
//! lock that was lost during the work answers `409`, because another machine may have begun.
//! `cargo run -p syncguard --example axum_lock`, then `curl -i -X POST http://127.0.0.1:3000/reports/march`

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use syncguard::{ErrorCode, LockError, Locker};

/// The service, on any locker.
pub(crate) fn app(locker: Locker) -> Router {
    Router::new().route("/reports/{name}", post(report)).with_state(locker)
}

async fn report(State(locker): State<Locker>, Path(name): Path<String>) -> Response {
    let key = format!("report:{name}");
    let held = locker
        .lock(&key)
        .timeout(Duration::ZERO)
        .keep_alive()
        .run(async |lock| {
            tokio::time::sleep(Duration::from_millis(300)).await; // the work
            format!("report {name} was made under fence {}\n", lock.fence())
        })
        .await;
    match held {
        Ok(text) => text.into_response(),
        Err(error) => refuse(&locker, &key, &error).await,
    }
}

async fn refuse(locker: &Locker, key: &str, error: &LockError) -> Response {
    let status = match error.code() {
        ErrorCode::AcquisitionTimeout => StatusCode::LOCKED,
        ErrorCode::LockLost => StatusCode::CONFLICT,
        ErrorCode::InvalidArgument => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    // Whole seconds, rounded up; a lock that is gone by now is worth an early try.
    let info = locker.inspect(key).await.ok().flatten();
    let seconds = info.map_or(1, |info| info.free_in().as_secs() + 1);
    (status, [(header::RETRY_AFTER, seconds.to_string())], format!("{error}\n")).into_response()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let url = std::env::var("SYNCGUARD_URL").unwrap_or_else(|_| "memory:".to_owned());
    let backend = syncguard::open(&url).await.map_err(std::io::Error::other)?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(Locker::new(backend))).await
}
