//! What do the errors of the migration's functions mean?
//!
//! Shared by the two drivers. An error is known by its code; the detail of a refusal is a number that our own function
//! wrote.

use std::error::Error;

use syncguard_core::{ErrorCode, Fence, LockError};

use crate::{FenceError, StaleFence};

/// The table, the functions and the trigger function, for your migrations. Safe to run again.
pub const MIGRATION: &str = include_str!("../sql/postgres.sql");

/// The error code of a refused write.
pub(crate) const STALE: &str = "SG001";
/// The error code of a write to a protected table without its fence.
const UNDECLARED: &str = "SG002";

/// The refusal in the words of this crate: its detail is the highest fence seen.
pub(crate) fn refusal(offered: Fence, detail: Option<&str>) -> FenceError {
    let seen = detail.and_then(|detail| detail.parse().ok()).and_then(|number| Fence::new(number).ok());
    match seen {
        Some(seen) => StaleFence { offered, seen }.into(),
        None => FenceError::damaged("the database refused the fence without saying which one it has seen"),
    }
}

/// By class: what a caller can do about it.
fn code_of(sqlstate: &str) -> ErrorCode {
    match sqlstate {
        UNDECLARED => ErrorCode::InvalidArgument,
        "55P03" | "57014" => ErrorCode::NetworkTimeout,
        "42501" => ErrorCode::AuthFailed,
        // No table, no function: the migration did not run.
        code if code.starts_with("42") || code.starts_with("3D") => ErrorCode::InvalidArgument,
        code if code.starts_with("28") => ErrorCode::AuthFailed,
        _ => ErrorCode::ServiceUnavailable,
    }
}

/// Any other error of the server.
pub(crate) fn by_code(sqlstate: &str, error: impl Into<Box<dyn Error + Send + Sync>>) -> FenceError {
    let mut failure = LockError::new(code_of(sqlstate), "postgres did not carry out the check of the fence");
    if matches!(sqlstate, "42P01" | "42883") {
        failure = failure.with_hint("run the migration of syncguard-fenced on this database first");
    }
    FenceError::Failed(failure.with_source(error))
}
