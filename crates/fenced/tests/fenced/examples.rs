//! Do the examples do what they say?
#![allow(dead_code, reason = "an example's own main is not called here")]

use syncguard_core::Fence;
use syncguard_fenced::StaleFence;

#[path = "../../examples/file.rs"]
mod file;
#[path = "../../examples/http.rs"]
mod http;
#[path = "../../examples/object.rs"]
mod object;
#[path = "../../examples/postgres.rs"]
mod postgres;
#[path = "../../examples/redis.rs"]
mod redis;
#[path = "../../examples/sqlite.rs"]
mod sqlite;

fn refusal(offered: u64, seen: u64) -> StaleFence {
    let fence = |number| Fence::new(number).unwrap();
    StaleFence { offered: fence(offered), seen: fence(seen) }
}

#[tokio::test]
async fn the_example_of_files_refuses_the_sleeper() {
    let folder = tempfile::tempdir().unwrap();
    let (contents, late) = file::story(&folder.path().join("report.txt")).await.unwrap();
    assert_eq!((contents.as_slice(), late), (b"by the successor".as_slice(), Some(refusal(1, 2))));
}

#[tokio::test]
async fn the_example_of_sqlite_refuses_the_sleeper() {
    let mut db = rusqlite::Connection::open_in_memory().unwrap();
    assert_eq!(sqlite::story(&mut db).await.unwrap(), (90, Some(refusal(1, 2))));
}

#[tokio::test]
async fn the_example_of_postgres_refuses_the_older_one() {
    let url = syncguard_testkit::fresh_postgres_database();
    assert_eq!(postgres::story(&url).await.unwrap(), (70, Some(refusal(41, 42))));
}

#[tokio::test]
async fn the_example_of_redis_refuses_the_older_one() {
    let key = format!("example:{}", std::process::id());
    assert_eq!(redis::story(&syncguard_testkit::redis_url(), &key).await.unwrap(), (80, Some(refusal(41, 42))));
}

#[tokio::test]
async fn the_example_of_a_service_refuses_the_sleeper() {
    // Another crate of this workspace switches the TLS of reqwest on, and leaves the choice of its provider to us.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (stored, late) = http::story().await.unwrap();
    assert_eq!((stored.as_u16(), late.as_u16()), (200, 412));
}

#[tokio::test]
async fn the_example_of_objects_refuses_the_older_one() {
    assert_eq!(object::story().await.unwrap(), [Some(refusal(41, 42)), Some(refusal(41, 42))]);
}
