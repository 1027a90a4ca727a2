//! Which file, and how careful with it?
//!
//! Given by code, or by a URL (see [`crate::url`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use syncguard_core::{Clock, Result, SystemClock};

use crate::backend::SqliteBackend;
use crate::pool;

/// When an acquisition counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Synchronous {
    /// When it is on the disk: a power cut never makes a fence repeat. The default.
    #[default]
    Full,
    /// When the system has it: several times faster, safe against crashes of programs, but a power cut may undo the last
    /// acquisitions and **their fences may then be given again**.
    Normal,
}

/// How to open a file of locks. Made by [`SqliteBackend::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SqliteBuilder {
    pub(crate) path: PathBuf,
    pub(crate) synchronous: Synchronous,
    pub(crate) cleanup_in_is_locked: bool,
    clock: Arc<dyn Clock>,
}

impl SqliteBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            synchronous: Synchronous::default(),
            cleanup_in_is_locked: false,
            clock: Arc::new(SystemClock),
        }
    }

    /// When an acquisition counts as done. Backends of one file in one process share a writer: the more careful one wins.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Whether `is_locked` also removes the key's lock if it has been dead for two seconds. Off by default.
    pub fn cleanup_in_is_locked(mut self, cleanup: bool) -> Self {
        self.cleanup_in_is_locked = cleanup;
        self
    }

    /// The clock whose wall time decides liveness and whose boot time guards live by. For tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the file, creating it (mode 0600) if there is none. Blocks for a few milliseconds.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) when the path cannot hold locks or holds something else (nothing is
    /// changed then), [`ServiceUnavailable`](syncguard_core::ErrorCode::ServiceUnavailable) when the disk is full or fails,
    /// [`Internal`](syncguard_core::ErrorCode::Internal) when the file is damaged.
    pub fn open(self) -> Result<SqliteBackend> {
        let durable = self.synchronous == Synchronous::Full;
        let pool = pool::open(&self.path, durable).map_err(|fault| fault.error())?;
        Ok(SqliteBackend::new(pool, self.clock, self.cleanup_in_is_locked))
    }
}
