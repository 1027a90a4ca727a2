//! Whose turn is it to write?
//!
//! SQLite's own answer is to try again after a nap, and with four busy processes the unlucky one naps for a second. A
//! kernel lock (`flock`) taken *before* the transaction queues the writers instead. It is an ordering, not the
//! exclusion: SQLite's locks stay in force, so a lost or bypassed queue costs time and never safety.
//!
//! The same small file carries the stamps of releases (see [`crate::listener`]); `flock` and its content do not
//! interfere.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use syncguard_core::{Clock, ErrorCode, SystemClock};

use crate::error::Fault;
use crate::file::{Identity, beside, open_beside};

/// The queue of writers of one database, across processes.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The database, after whose mode and owners a new queue file takes.
    database: PathBuf,
    path: PathBuf,
    file: Arc<File>,
}

/// The turn of this writer. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    file: Arc<File>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}

impl Queue {
    pub(crate) fn open(database: &Path) -> Result<Self, Fault> {
        let path = beside(database, "-queue");
        let file = open_beside(database, &path).map_err(|error| unopened(&path, &error))?;
        Ok(Self { database: database.to_path_buf(), path, file: Arc::new(file) })
    }

    /// The file itself, for the stamps of releases.
    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the turn if nobody has it.
    pub(crate) fn try_enter(&mut self) -> Result<Option<Turn>, Fault> {
        self.enter_by(FlockOperation::NonBlockingLockExclusive)
    }

    /// Waits for the turn, for as long as it takes: callers bound their own wait and leave.
    pub(crate) fn enter(&mut self) -> Result<Turn, Fault> {
        loop {
            if let Some(turn) = self.enter_by(FlockOperation::LockExclusive)? {
                return Ok(turn);
            }
        }
    }

    /// Waits for the turn where nobody else bounds the wait.
    pub(crate) fn enter_within(&mut self, limit: Duration) -> Result<Turn, Fault> {
        let deadline = SystemClock.boot() + limit;
        loop {
            if let Some(turn) = self.try_enter()? {
                return Ok(turn);
            }
            if SystemClock.boot() >= deadline {
                return Err(Fault::new(
                    ErrorCode::NetworkTimeout,
                    format!("another process kept its turn at {}", self.path.display()),
                )
                .hint("a process may be stopped in the middle of a write"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn enter_by(&mut self, operation: FlockOperation) -> Result<Option<Turn>, Fault> {
        // A deleted queue file is made anew; a second disappearance in a row is somebody's intent.
        for _ in 0..8 {
            match flock(&*self.file, operation) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(unopened(&self.path, &error.into())),
            }
            let turn = Turn { file: self.file.clone() };
            if self.is_current() {
                return Ok(Some(turn));
            }
            drop(turn);
            let file = open_beside(&self.database, &self.path).map_err(|error| unopened(&self.path, &error))?;
            self.file = Arc::new(file);
        }
        Err(Fault::unavailable(format!("{} keeps disappearing", self.path.display())))
    }

    fn is_current(&self) -> bool {
        let held = self.file.metadata().ok().map(|metadata| Identity::of(&metadata));
        held.is_some() && held == Identity::at(&self.path)
    }
}

fn unopened(path: &Path, error: &io::Error) -> Fault {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Fault::unavailable(format!("the disk of {shown} is full")).hint("free some space")
        }
        kind => Fault::invalid(format!("{shown} cannot be opened: {kind}"))
            .hint("it is where writers queue; remove it if it is not yours"),
    }
}
