//! The commands beside `run`: for scripts (`acquire`, `extend`, `release`, `status`, `wait`, `fence`), for operators
//! (`list`, `watch`, `break`, `purge`, `doctor`, `bench`), and what is printed for others (`schema`, `completions`, `man`).

pub(crate) mod acquire;
pub(crate) mod bench;
pub(crate) mod break_lock;
pub(crate) mod doctor;
pub(crate) mod documents;
pub(crate) mod extend;
pub(crate) mod fence;
pub(crate) mod list;
pub(crate) mod purge;
pub(crate) mod release;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod wait;
pub(crate) mod watch;

use std::io::Read;

use syncguard::{Inspector, LockBackend, LockId, Locker};

use crate::args::Handle;
use crate::config::Backend;
use crate::exit::{Failure, Stage};

/// Opens the backend without waiting for it.
pub(crate) async fn open(backend: &Backend) -> Result<Locker, Failure> {
    let opened = backend.options.open(&backend.url).await;
    opened.map(Locker::new).map_err(|error| Failure::from_lock(&error, Stage::Opening).on(backend))
}

/// The ability to see locks, where the backend has it.
pub(crate) fn inspector(locker: &Locker) -> Result<Inspector, Failure> {
    locker.backend().inspector().ok_or_else(|| {
        let name = locker.backend().capabilities().backend;
        Failure::config(format!("the backend {name} cannot list its locks"))
            .hint("look at one of them: syncguard status KEY")
    })
}

/// The secret that the caller names by argument, variable or stdin.
pub(crate) fn lock_id(handle: &Handle) -> Result<LockId, Failure> {
    let text = match handle.lock_id.as_deref() {
        Some("-") => {
            let mut text = String::new();
            // A lock id is 22 characters; nobody who pipes more of it than this means a lock id.
            let read = std::io::stdin().take(1024).read_to_string(&mut text);
            read.map_err(|error| Failure::usage(format!("cannot read the lock id from stdin: {error}")))?;
            text.trim_end_matches(['\n', '\r']).to_owned()
        }
        Some(text) => text.to_owned(),
        None => {
            return Err(Failure::usage("no LOCK_ID is given")
                .hint("set SYNCGUARD_LOCK_ID, or pipe it in: syncguard release - <file"));
        }
    };
    parse_lock_id(&text)
}

/// Refuses a malformed id without repeating it.
pub(crate) fn parse_lock_id(text: &str) -> Result<LockId, Failure> {
    LockId::parse(text).map_err(|error| Failure::from_lock(&error, Stage::Operating))
}
