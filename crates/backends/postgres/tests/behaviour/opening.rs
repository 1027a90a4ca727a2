//! How does a backend open, on which servers, and from which runtime?

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use syncguard_core::{ErrorCode, LockBackend};
use syncguard_postgres::{PostgresBackend, PostgresBuilder};
use syncguard_testkit::postgres_url;
use tokio::time::timeout;

use crate::support::{PATIENCE, Tables, try_acquire};

/// A server that greets, answers the first question with one row, and says nothing after it.
fn greeter(columns: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/db?sslmode=disable&connect_timeout=60", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().take(10) {
            std::thread::spawn(move || greet(stream.unwrap(), columns));
        }
    });
    url
}

fn greet(mut stream: TcpStream, columns: &[&str]) {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut start_up = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap() - 4];
    stream.read_exact(&mut start_up).unwrap();
    // No password needed, the process id 7, ready.
    stream.write_all(b"R\0\0\0\x08\0\0\0\0K\0\0\0\x0c\0\0\0\x07\0\0\0\0Z\0\0\0\x05I").unwrap();
    let mut kind = [0; 1];
    stream.read_exact(&mut kind).unwrap();
    let count = u16::try_from(columns.len()).unwrap().to_be_bytes();
    let (mut head, mut row) = (count.to_vec(), count.to_vec());
    for column in columns {
        // A name, no table, the type text of any length, as text.
        head.extend(b"c\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
        row.extend(u32::try_from(column.len()).unwrap().to_be_bytes());
        row.extend(column.as_bytes());
    }
    for (kind, body) in [(b'T', &head[..]), (b'D', &row), (b'C', b"SELECT 1\0"), (b'Z', b"I")] {
        stream.write_all(&[kind]).unwrap();
        stream.write_all(&u32::try_from(body.len() + 4).unwrap().to_be_bytes()).unwrap();
        stream.write_all(body).unwrap();
    }
    // Whatever else is asked stays unanswered until the client leaves.
    while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {}
}

#[tokio::test]
async fn opening_ends_by_its_timeout_when_the_server_falls_silent() {
    let url = greeter(&["7", "f", "f"]);
    let opening = PostgresBuilder::from_url(&url).unwrap().timeout(Duration::from_secs(1)).connect();
    let error = timeout(PATIENCE, opening).await.expect("opening has an end").unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
}

#[tokio::test]
async fn an_odd_row_in_the_greeting_is_no_panic() {
    for columns in [&[][..], &["x"], &["7", "f", "f", "more"]] {
        let url = greeter(columns);
        let opening = PostgresBuilder::from_url(&url).unwrap().timeout(Duration::from_secs(1)).connect();
        let error = timeout(PATIENCE, opening).await.expect("opening has an end").unwrap_err();
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{columns:?} {error:?}");
    }
}

#[test]
fn a_backend_outlives_the_runtime_that_made_it() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (ended, idle, current) = (runtime(), runtime(), runtime());
    let backend = ended.block_on(async {
        let backend = tables.at(&url).timeout(PATIENCE).connect().await.unwrap();
        assert!(try_acquire(&backend, "first", 60_000).await.is_some());
        backend
    });
    drop(ended);
    // This one is kept, but nobody runs it any more: its connections look alive and are not.
    idle.block_on(async { assert!(try_acquire(&backend, "second", 60_000).await.is_some()) });

    current.block_on(async {
        for name in ["third", "fourth"] {
            // A lock that hangs on a dead connection would take the whole timeout of an operation.
            let trying = timeout(PATIENCE / 2, try_acquire(&backend, name, 600_000));
            let (id, _) = trying.await.expect("it uses a connection of its own runtime").unwrap();
            assert!(backend.release(&id).await.unwrap().is_released());
        }
    });
    drop(idle);
}

#[tokio::test]
async fn an_address_without_a_url_will_do() {
    let (url, tables) = (postgres_url(), Tables::fresh());
    let address = url.split_once('@').unwrap().1.split_once('/').unwrap();
    let backend = PostgresBackend::builder(address.0)
        .user("postgres")
        .database(address.1.split('?').next().unwrap())
        .table(&tables.locks)
        .fence_table(&tables.fences)
        .connect()
        .await
        .unwrap();
    assert!(try_acquire(&backend, "k", 1000).await.is_some());
    for bad in ["", "u:canary@host", "host:port"] {
        let error = PostgresBackend::builder(bad).connect().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
        assert!(!format!("{error:?}").contains("canary"), "{error:?}");
    }
}

#[tokio::test]
async fn a_backend_can_be_shared_and_shown_without_its_secrets() {
    fn shared<T: Clone + std::fmt::Debug + Send + Sync + 'static>(_: &T) {}
    let (url, tables) = (postgres_url(), Tables::fresh());
    let backend = tables.at(&url).password("canary").connect().await.unwrap();
    shared(&backend);
    let builder = tables.at(&url).password("canary").wake_url("postgres://u:canary@h/db");
    shared(&builder);
    assert!(!format!("{backend:?} {builder:?} {builder:#?}").contains("canary"));
}
