//! Does anything that is logged, even by the driver and at its most talkative, show a key, a lock id or a password?

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use syncguard_core::{AcquireRequest, LockBackend, LockId, Lookup};
use syncguard_testkit::{PostgresOptions, PostgresServer};

use crate::support::{Tables, key, sql, ttl};

/// Keeps every line that the `log` crate carries; the driver speaks through it.
struct Listener(Mutex<String>);

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let mut text = self.0.lock().unwrap();
        text.push_str(&record.args().to_string());
        text.push('\n');
    }

    fn flush(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_log_line_and_no_error_shows_a_key_a_lock_id_or_a_password() {
    static HEARD: OnceLock<Listener> = OnceLock::new();
    let heard = HEARD.get_or_init(|| Listener(Mutex::default()));
    log::set_logger(heard).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = PostgresServer::start(PostgresOptions::new().hba("host all bob 127.0.0.1/32 scram-sha-256"));
    server.query("CREATE ROLE bob LOGIN SUPERUSER PASSWORD 'canary-password'");
    let url = format!("postgres://bob:canary-password@127.0.0.1:{}/postgres", server.port());
    let tables = Tables::fresh();
    let (key, id) = (key("canary-key"), LockId::parse("canary-lock-id-0123456").unwrap());
    let request = AcquireRequest::new(&key, &id, ttl(30_000));
    let mut said = String::new();
    for prepared in ["always", "never"] {
        let backend = tables.at(&format!("{url}?prepared={prepared}")).connect().await.unwrap();
        let hint = backend.subscribe(&key).await;
        let _ = backend.acquire(request).await.unwrap();
        // Contended, and then a unique violation, which the server reports with the value in it.
        let stranger = LockId::random();
        let _ = backend.acquire(AcquireRequest::new(request.key, &stranger, request.ttl)).await.unwrap();
        let other = crate::support::key("canary-other-key");
        let error = backend.acquire(AcquireRequest::new(&other, request.lock_id, request.ttl)).await.unwrap_err();
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        write!(said, "{error} {error:?} {error:#?} {cause:?} {backend:?}").unwrap();
        let _ = backend.extend(&id, ttl(30_000)).await.unwrap();
        backend.lookup(Lookup::Key(&key)).await.unwrap().unwrap();
        backend.lookup(Lookup::LockId(&id)).await.unwrap().unwrap();
        backend.is_locked(&key).await.unwrap();
        assert!(backend.release(&id).await.unwrap().is_released());
        tokio::time::timeout(Duration::from_secs(3), hint.woken()).await.unwrap();
        backend.purge_expired().await.unwrap();
        write!(said, "{:?}", backend.health().await).unwrap();
    }

    let text = heard.0.lock().unwrap().clone() + &said;
    assert!(text.contains("executing statement"), "the driver's log was not heard");
    let shown: Vec<&str> = text.lines().filter(|line| line.contains("canary")).collect();
    assert!(shown.is_empty(), "{shown:?}");
    // The server's own words about the violation do contain it, which is why they are not passed on.
    let rows =
        format!("INSERT INTO {} VALUES ('a', 'canary', 0, 0, '', ''), ('b', 'canary', 0, 0, '', '')", tables.locks);
    let raw = sql(&server.url()).await.batch_execute(&rows).await.unwrap_err();
    assert!(raw.as_db_error().unwrap().detail().unwrap().contains("canary"));
}
