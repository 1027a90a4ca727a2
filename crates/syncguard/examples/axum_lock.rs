//! An HTTP service that does one thing at a time per name, on however many machines it runs.
//!
//! A name that is being worked on answers `423 Locked` with `Retry-After`, the time until its lease could be taken
//! over. A lock that was lost during the work answers `409`, because another machine may have begun.
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
    let held = locker
        .lock(format!("report:{name}"))
        .timeout(Duration::ZERO)
        .keep_alive()
        .run(async |lock| {
            tokio::time::sleep(Duration::from_millis(300)).await; // the work
            format!("report {name} was made under fence {}\n", lock.fence())
        })
        .await;
    match held {
        Ok(text) => text.into_response(),
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &LockError) -> Response {
    let status = match error.code() {
        ErrorCode::AcquisitionTimeout => StatusCode::LOCKED,
        ErrorCode::LockLost => StatusCode::CONFLICT,
        ErrorCode::InvalidArgument => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    // Whole seconds, rounded up. The error of contention carries it: nobody has to be asked again.
    let seconds = error.free_in().map_or(1, |free_in| free_in.as_secs() + 1);
    (status, [(header::RETRY_AFTER, seconds.to_string())], format!("{error}\n")).into_response()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let url = std::env::var("SYNCGUARD_URL").unwrap_or_else(|_| "memory:".to_owned());
    let locker = syncguard::connect(&url).await.map_err(std::io::Error::other)?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(locker.clone())).await?;
    locker.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
