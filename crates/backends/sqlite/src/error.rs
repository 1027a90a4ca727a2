//! What does a failure of SQLite mean to somebody who wants a lock?
//!
//! Decided by result code, never by message text. A [`Fault`] can be told to many: one transaction carries the
//! operations of many tasks, and each of them hears of its end.

use std::path::Path;

use rusqlite::ffi;
use syncguard_core::{ErrorCode, LockError};

/// Why a transaction did not happen, or may not have.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    code: ErrorCode,
    message: String,
    hint: Option<&'static str>,
    ambiguous: bool,
    // Only the code: SQLite's own message may name what a statement was about.
    source: Option<ffi::Error>,
}

impl Fault {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None, ambiguous: false, source: None }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::ServiceUnavailable, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    pub(crate) fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// The commit may have happened although it did not say so.
    pub(crate) fn ambiguous(mut self) -> Self {
        self.ambiguous = true;
        self
    }

    #[cfg(test)]
    fn code(&self) -> ErrorCode {
        self.code
    }

    /// One copy of the news.
    pub(crate) fn error(&self) -> LockError {
        let mut error = LockError::new(self.code, self.message.clone());
        if let Some(hint) = self.hint {
            error = error.with_hint(hint);
        }
        if let Some(source) = self.source {
            error = error.with_source(source);
        }
        if self.ambiguous { error.ambiguous() } else { error }
    }

    /// A failure of a file that was fit to use when it was opened.
    pub(crate) fn while_in_use(path: &Path, error: &rusqlite::Error) -> Self {
        let Some(cause) = error.sqlite_error() else {
            return Self::new(ErrorCode::Internal, format!("{} holds a value that is not a lock", path.display()))
                .hint("something else wrote to the file; see `syncguard doctor`");
        };
        Self { source: Some(*cause), ..meaning(path, cause.extended_code) }
    }

    /// A failure of a file that is being opened: what is wrong with the file is then wrong with the configuration.
    pub(crate) fn while_opening(path: &Path, error: &rusqlite::Error) -> Self {
        let mut fault = Self::while_in_use(path, error);
        match error.sqlite_error().map(|cause| cause.extended_code & 0xff) {
            Some(ffi::SQLITE_NOTADB) => {
                fault.code = ErrorCode::InvalidArgument;
                fault.message = format!("{} is not an SQLite database; nothing was changed", path.display());
                fault.hint = Some("name a new file or one made by syncguard");
            }
            Some(ffi::SQLITE_READONLY | ffi::SQLITE_PERM) => fault.code = ErrorCode::InvalidArgument,
            _ => {}
        }
        fault
    }
}

fn meaning(path: &Path, code: i32) -> Fault {
    let path = path.display();
    match code {
        ffi::SQLITE_IOERR_CORRUPTFS => return malformed(&path),
        ffi::SQLITE_READONLY_DBMOVED => return moved(&path),
        ffi::SQLITE_CONSTRAINT_UNIQUE => return Fault::invalid("this lock id already owns another lock"),
        _ => {}
    }
    match code & 0xff {
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL => {
            Fault::new(ErrorCode::NetworkTimeout, format!("{path} stayed locked by another program"))
                .hint("close programs that keep a transaction open on the file")
        }
        ffi::SQLITE_FULL => Fault::unavailable(format!("the disk of {path} is full")).hint("free some space"),
        ffi::SQLITE_READONLY | ffi::SQLITE_PERM => Fault::unavailable(format!("{path} cannot be written"))
            .hint("check the file's permissions and whether its filesystem is mounted read-only"),
        ffi::SQLITE_IOERR => Fault::unavailable(format!("reading or writing {path} failed")).hint("check the disk"),
        ffi::SQLITE_CANTOPEN => Fault::unavailable(format!("{path} or a file beside it cannot be opened"))
            .hint("check permissions and free space of its directory"),
        ffi::SQLITE_NOMEM | ffi::SQLITE_INTERRUPT | ffi::SQLITE_ABORT => {
            Fault::unavailable(format!("sqlite gave up on {path}"))
        }
        ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => malformed(&path),
        ffi::SQLITE_ERROR | ffi::SQLITE_SCHEMA => {
            Fault::new(ErrorCode::Internal, format!("the tables in {path} are not the ones that syncguard made"))
                .hint("restore the file, or move it away to start over (fences start over too)")
        }
        _ => Fault::new(ErrorCode::Internal, format!("sqlite refused an operation on {path}")),
    }
}

fn malformed(path: &std::path::Display<'_>) -> Fault {
    Fault::new(ErrorCode::Internal, format!("{path} is malformed; nothing was rewritten"))
        .hint("restore it from a backup, or move it away to start over (fences start over too)")
}

fn moved(path: &std::path::Display<'_>) -> Fault {
    Fault::unavailable(format!("{path} was deleted or replaced while it was open"))
        .hint("put the file back, or restart to begin with a new one (fences start over then)")
}

/// The file, or one of SQLite's files beside it, is not the one that was opened.
pub(crate) fn replaced(path: &Path) -> Fault {
    moved(&path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_result_code_has_its_meaning() {
        use ErrorCode::{Internal, InvalidArgument, NetworkTimeout, ServiceUnavailable};
        let in_use = [
            (ffi::SQLITE_BUSY, NetworkTimeout),
            (ffi::SQLITE_BUSY_RECOVERY, NetworkTimeout),
            (ffi::SQLITE_LOCKED, NetworkTimeout),
            (ffi::SQLITE_FULL, ServiceUnavailable),
            (ffi::SQLITE_READONLY, ServiceUnavailable),
            (ffi::SQLITE_READONLY_DBMOVED, ServiceUnavailable),
            (ffi::SQLITE_IOERR_FSYNC, ServiceUnavailable),
            (ffi::SQLITE_CANTOPEN, ServiceUnavailable),
            (ffi::SQLITE_IOERR_CORRUPTFS, Internal),
            (ffi::SQLITE_CORRUPT, Internal),
            (ffi::SQLITE_CORRUPT_INDEX, Internal),
            (ffi::SQLITE_NOTADB, Internal),
            (ffi::SQLITE_ERROR, Internal),
            (ffi::SQLITE_CONSTRAINT_TRIGGER, Internal),
            (ffi::SQLITE_CONSTRAINT_UNIQUE, InvalidArgument),
        ];
        for (code, expected) in in_use {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("secret".to_owned()));
            let error = Fault::while_in_use(Path::new("locks.db"), &error).error();
            assert_eq!(error.code(), expected, "{code}");
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
        for (code, expected) in [
            (ffi::SQLITE_NOTADB, InvalidArgument),
            (ffi::SQLITE_READONLY, InvalidArgument),
            (ffi::SQLITE_CORRUPT, Internal),
            (ffi::SQLITE_FULL, ServiceUnavailable),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(Fault::while_opening(Path::new("locks.db"), &error).code(), expected, "{code}");
        }
    }
}
