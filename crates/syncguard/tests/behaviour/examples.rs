//! Do the examples do what they say?
//!
//! Their own code, called from here with assertions; `cargo run --example …` prints the same.

#![allow(dead_code)]

#[path = "../../examples/fenced_write.rs"]
mod fenced_write;
#[cfg(all(feature = "sqlite", feature = "fenced"))]
#[path = "../../examples/migrations.rs"]
mod migrations;
#[path = "../../examples/once_per_night.rs"]
mod once_per_night;
#[path = "../../examples/own_backend.rs"]
mod own_backend;
#[cfg(all(feature = "postgres", feature = "fenced-sqlx"))]
#[path = "../../examples/payments.rs"]
mod payments;
#[path = "../../examples/quickstart.rs"]
mod quickstart;
#[path = "../../examples/testing.rs"]
mod testing;
#[cfg(feature = "fenced")]
#[path = "../../examples/workers.rs"]
mod workers;

#[cfg(all(feature = "postgres", feature = "fenced-sqlx"))]
use std::time::Duration;

use syncguard::Fence;

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn quickstart_run_twice_shows_a_growing_fence() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("locks.db").display());

    let (text, first) = quickstart::story(&url).await.unwrap();
    let (_, second) = quickstart::story(&url).await.unwrap();

    assert_eq!(text, "hello from fence 000000000000001");
    assert!(second > first);
}

#[tokio::test(start_paused = true)]
async fn one_host_reports_and_the_others_skip() {
    use once_per_night::Night::{Reported, Skipped};
    let (nights, reports) = once_per_night::story("memory:").await.unwrap();
    assert_eq!((nights, reports), (vec![Reported, Skipped, Skipped], 1));
}

#[tokio::test(start_paused = true)]
async fn the_ledger_refuses_the_sleeper() {
    let (ledger, late) = fenced_write::story("memory:").await.unwrap();
    assert_eq!(ledger.value(), "written by the successor");
    assert_eq!(late.unwrap_err(), "fence 000000000000001 is stale");
}

#[cfg(feature = "fenced")]
#[tokio::test(start_paused = true)]
async fn each_worker_leads_once_and_is_followed() {
    let mut led = workers::story("memory:").await.unwrap();
    led.sort_unstable();
    assert_eq!(led, [1, 2, 3]);
}

#[cfg(all(feature = "sqlite", feature = "fenced"))]
#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_replicas_one_migrates() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut ran = migrations::story(&url, &folder.path().join("orders.db")).await.unwrap();
    ran.sort_unstable();
    assert_eq!((ran[18], ran[19]), (0, 3), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn code_that_takes_locks_is_tested_in_no_time() {
    testing::it_keeps_the_lock_for_an_hour().await;
    testing::it_skips_while_another_one_is_at_it().await;
    testing::it_stops_when_the_lock_is_taken_away().await;
    testing::it_comes_back_when_the_backend_is_down().await;
}

#[tokio::test]
async fn a_backend_of_ones_own_carries_the_whole_client() {
    assert_eq!(own_backend::story().await.unwrap(), (Fence::new(2).unwrap(), true));
}

#[cfg(all(feature = "postgres", feature = "fenced-sqlx"))]
async fn post(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[cfg(all(feature = "postgres", feature = "fenced-sqlx"))]
#[tokio::test]
async fn an_order_is_charged_once_and_whoever_comes_meanwhile_hears_when_to_come_back() {
    let app = payments::App::connect(&syncguard_testkit::fresh_postgres_database()).await.unwrap();
    let locker = app.locker.clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, app.routes()).into_future());

    let first = tokio::spawn(async move { post(address, "/orders/42/charge").await });
    while !locker.is_locked("order:42").await.unwrap() {
        assert!(!first.is_finished(), "the first request never got the lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let busy = post(address, "/orders/42/charge").await;
    let first = first.await.unwrap();
    let again = post(address, "/orders/42/charge").await;

    assert!(busy.starts_with("HTTP/1.1 409 Conflict\r\n"), "{busy}");
    let retry = busy.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!((1..=32).contains(&retry.parse::<u32>().unwrap()), "{retry}");
    assert!(first.starts_with("HTTP/1.1 200 OK\r\n") && first.ends_with("charged\n"), "{first}");
    assert!(again.ends_with("charged before\n"), "{again}");
    server.abort();
}
