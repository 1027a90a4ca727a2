//! Do the examples do what they say?
//!
//! Their own code, called from here with assertions; `cargo run --example …` prints the same.

#![allow(dead_code)]

#[path = "../../examples/axum_lock.rs"]
mod axum_lock;
#[path = "../../examples/fenced_write.rs"]
mod fenced_write;
#[path = "../../examples/follow_the_leader.rs"]
mod follow_the_leader;
#[path = "../../examples/once_per_night.rs"]
mod once_per_night;
#[path = "../../examples/own_backend.rs"]
mod own_backend;
#[path = "../../examples/quickstart.rs"]
mod quickstart;

use std::time::Duration;

use syncguard::{Fence, Locker, MemoryBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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

#[tokio::test(start_paused = true)]
async fn each_candidate_leads_once_in_a_term_of_its_own() {
    let led = follow_the_leader::story("memory:").await.unwrap();
    let mut names: Vec<u32> = led.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(names, [1, 2, 3]);
    assert!(led.is_sorted_by(|(_, earlier), (_, later)| earlier < later), "{led:?}");
}

#[tokio::test]
async fn a_backend_of_ones_own_carries_the_whole_client() {
    assert_eq!(own_backend::story().await.unwrap(), (Fence::new(2).unwrap(), true));
}

async fn post(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_busy_report_is_423_with_a_time_to_come_back() {
    let locker = Locker::new(MemoryBackend::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(axum::serve(listener, axum_lock::app(locker.clone())).into_future());

    let first = tokio::spawn(async move { post(address, "/reports/march").await });
    let mut tries = 0;
    while !locker.is_locked("report:march").await.unwrap() {
        tries += 1;
        assert!(tries < 1_000, "the first request never got the lock");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let busy = post(address, "/reports/march").await;
    let other = post(address, "/reports/april").await;

    assert!(busy.starts_with("HTTP/1.1 423 Locked\r\n"), "{busy}");
    let retry = busy.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
    assert!((1..=32).contains(&retry.parse::<u32>().unwrap()), "{retry}");
    assert!(other.starts_with("HTTP/1.1 200 OK\r\n"), "{other}");
    assert!(first.await.unwrap().ends_with("report march was made under fence 000000000000001\n"));
    server.abort();
}
