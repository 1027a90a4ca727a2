//! Which file, and how careful with it?
//!
//! Given by code, or by a URL (see [`crate::url`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use syncguard_core::{Clock, LockError, Result, SystemClock};
use tokio::sync::oneshot;

use crate::backend::SqliteBackend;
use crate::error::Fault;
use crate::{pool, reserve};

/// When an acquisition counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Synchronous {
    /// When it is on the disk: a power cut undoes no lock.
    Full,
    /// When the system has it: several times faster. A power cut may undo the last locks, as it ends their holders, but
    /// never makes a fence repeat: fences are promised to the disk ahead. The default. Where the system does not tell its
    /// boots apart this is [`Full`](Self::Full).
    #[default]
    Normal,
}

/// How to open a file of locks. Made by [`SqliteBackend::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SqliteBuilder {
    pub(crate) path: PathBuf,
    pub(crate) synchronous: Synchronous,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) mode: Option<u32>,
    clock: Arc<dyn Clock>,
}

impl SqliteBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            synchronous: Synchronous::default(),
            cleanup_in_is_locked: false,
            mode: None,
            clock: Arc::new(SystemClock),
        }
    }

    /// When an acquisition counts as done. Backends of one file in one process share a writer: the more careful one
    /// wins.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Whether `is_locked` also removes the key's lock if it has been dead for two seconds. Off by default.
    pub fn cleanup_in_is_locked(mut self, cleanup: bool) -> Self {
        self.cleanup_in_is_locked = cleanup;
        self
    }

    /// Who may use the file: `0o600`, its owner alone (the default for a new file), or `0o660`, its group as well.
    ///
    /// It holds for the file when it is created and for all files beside it. A file that exists already must have the
    /// mode: it is checked, never changed. Put a shared file into a directory that belongs to the group and has the
    /// setgid bit (`chmod 2770`), so that files made by each user belong to the group.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// The clock whose wall time decides liveness and whose boot time guards live by. For tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the file, creating it if there is none. It needs no runtime.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) when the path cannot hold locks or holds
    /// something else (nothing is changed then),
    /// [`ServiceUnavailable`](syncguard_core::ErrorCode::ServiceUnavailable) when the disk is full or fails,
    /// [`Internal`](syncguard_core::ErrorCode::Internal) when the file is damaged.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the opening; nothing is locked by it.
    pub async fn connect(self) -> Result<SqliteBackend> {
        check_mode(self.mode)?;
        let (answer, opened) = oneshot::channel();
        let (path, mode) = (self.path, self.mode);
        let durable = self.synchronous == Synchronous::Full || reserve::boot().is_none();
        // Opening waits for the disk, and perhaps for another process: not on a thread that serves tasks. The thread goes
        // on as the writer: a second one would be felt by commands that last for milliseconds.
        let opening = move || match pool::open(&path, durable, mode) {
            Ok((pool, writer)) => {
                // Who asked may have left: then this drops the pool, and the writer finds nobody to serve.
                drop(answer.send(Ok(pool)));
                if let Some(writer) = writer {
                    writer.run();
                }
            }
            Err(fault) => _ = answer.send(Err(fault)),
        };
        pool::start_thread("syncguard-write", opening).map_err(|fault| fault.error())?;
        let pool = opened.await.unwrap_or_else(|_| Err(Fault::unavailable("opening the lock file failed")));
        Ok(SqliteBackend::new(pool.map_err(|fault| fault.error())?, self.clock, self.cleanup_in_is_locked))
    }
}

fn check_mode(mode: Option<u32>) -> Result<()> {
    match mode {
        None | Some(0o600 | 0o660) => Ok(()),
        // A mode for everybody would give every user of the machine the lock ids; one without writing locks nobody.
        Some(_) => Err(LockError::invalid("the mode of a lock file is 600 or 660")),
    }
}
