//! A service that refuses a late holder: axum with the layer, and two clients, hyper and reqwest.
//!
//! `cargo run -p syncguard-fenced --features http --example http`

use std::time::Duration;

use axum::body::Body;
use axum::{Router, routing::put};
use http::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use syncguard_core::{Locker, MemoryBackend};
use syncguard_fenced::MemoryMarks;
use syncguard_fenced::http::{FenceHeadersLayer, FenceLayer, fence_headers};
use tower::{Layer, Service, ServiceExt};

/// Serves a ledger on a free port of this machine, and returns where.
async fn serve() -> std::io::Result<String> {
    let service = Router::new().route("/ledger", put(async || "stored")).layer(FenceLayer::new(MemoryMarks::new())); // or FileMarks, which outlive the process
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/ledger", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}

/// One holder falls asleep, a second one writes, the first one wakes up and tries to. What they were answered.
pub(crate) async fn story() -> Result<(StatusCode, StatusCode), Box<dyn std::error::Error>> {
    let url = serve().await?;
    let locker = Locker::new(MemoryBackend::new()); // a backend that all your processes share
    let sleeper = locker.lock("ledger").ttl(Duration::from_millis(50)).acquire().await?;
    let successor = locker.lock("ledger").acquire().await?; // as soon as the lease of the sleeper is over

    // hyper: every request of this client carries the fence.
    let hyper = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let mut hyper = FenceHeadersLayer::new(successor.handle()).layer(hyper);
    let stored = hyper.ready().await?.call(Request::put(&url).body(Body::empty())?).await?.status();

    // reqwest: two headers.
    let late = reqwest::Client::new().put(&url).headers(fence_headers(&sleeper)).send().await?.status();
    Ok((stored, late))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (stored, late) = story().await?;
    println!("the successor got {stored}, the sleeper {late}");
    Ok(())
}
