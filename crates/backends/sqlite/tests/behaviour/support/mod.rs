//! What do the tests of this crate have in common?
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of it")]

pub(crate) mod children;
pub(crate) mod mount;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use syncguard_core::{AcquireOutcome, AcquireRequest, Key, Lease, LockBackend, LockId, Ttl};
use syncguard_sqlite::{SqliteBackend, SqliteBuilder};
use tempfile::TempDir;

/// A directory of its own with a file of locks.
pub(crate) struct Scene {
    pub(crate) directory: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    pub(crate) fn open(&self) -> SqliteBackend {
        open(self.path()).unwrap()
    }

    /// Stands in the writers' queue as a process that was stopped in the middle of a write would. Ends when dropped.
    pub(crate) fn block_writers(&self) -> File {
        let mut name = self.path().into_os_string();
        name.push("-queue");
        let file = File::options().read(true).write(true).open(name).unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        file
    }

    /// Puts a lock there by hand.
    pub(crate) fn put(&self, name: &str, lock_id: &LockId, expires_at: i64) {
        let sql = "INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
                   VALUES (?1, ?2, ?3, 0, '000000000000001', ?1)";
        self.sql().execute(sql, rusqlite::params![name, lock_id.as_str(), expires_at]).unwrap();
    }

    /// A connection past the backend.
    pub(crate) fn sql(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(self.path()).unwrap();
        db.busy_timeout(Duration::from_secs(5)).unwrap();
        db
    }
}

/// Opens a file with the defaults.
pub(crate) fn open(path: impl AsRef<Path>) -> syncguard_core::Result<SqliteBackend> {
    connect(SqliteBackend::builder(path))
}

/// Connects on this thread, inside a runtime or not.
pub(crate) fn connect(builder: SqliteBuilder) -> syncguard_core::Result<SqliteBackend> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut connecting = pin!(builder.connect());
    loop {
        match connecting.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(connected) => return connected,
            Poll::Pending => std::thread::park(),
        }
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A lock that was granted.
pub(crate) struct Held {
    pub(crate) lock_id: LockId,
    pub(crate) lease: Lease,
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn ttl() -> Ttl {
    Ttl::new(Duration::from_secs(30)).unwrap()
}

pub(crate) async fn acquire(backend: &SqliteBackend, key: &Key, lock_id: &LockId) -> (LockId, AcquireOutcome) {
    let request = AcquireRequest::new(key, lock_id, ttl());
    (lock_id.clone(), backend.acquire(request).await.unwrap())
}

pub(crate) fn holder((lock_id, outcome): (LockId, AcquireOutcome)) -> Option<Held> {
    match outcome {
        AcquireOutcome::Acquired(lease) => Some(Held { lock_id, lease }),
        AcquireOutcome::Contended(_) => None,
    }
}
