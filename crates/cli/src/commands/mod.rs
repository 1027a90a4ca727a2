//! The commands that do one thing and end: `acquire`, `extend`, `release`, `status`, `wait`, `doctor`,
//! `schema`, `completions`, `man`.

pub(crate) mod acquire;
pub(crate) mod doctor;
pub(crate) mod documents;
pub(crate) mod extend;
pub(crate) mod fence;
pub(crate) mod release;
pub(crate) mod schema;
pub(crate) mod status;
pub(crate) mod wait;

use std::io::Read;

use syncguard::{Label, LockId, Locker};

use crate::args::Handle;
use crate::config::Backend;
use crate::exit::{Failure, Stage};

/// Opens the backend without waiting for it.
pub(crate) async fn open(backend: &Backend) -> Result<Locker, Failure> {
    let opened = syncguard::open(&backend.url).await;
    opened.map(Locker::new).map_err(|error| Failure::from_lock(&error, Stage::Opening).on(backend))
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

/// `user@host`, cut to what a label may be.
pub(crate) fn default_label() -> Label {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut text = format!("{}@{host}", user()).replace('\0', "");
    while text.len() > Label::MAX_BYTES {
        text.pop();
    }
    Label::new(text).unwrap_or_else(|_| Label::new("unknown").expect("a word is a label"))
}

// Under cron and in containers the variables are often missing, and the number alone would tell a waiter little.
fn user() -> String {
    let variable = |name| std::env::var(name).ok().filter(|user| !user.is_empty());
    if let Some(user) = variable("USER").or_else(|| variable("LOGNAME")) {
        return user;
    }
    let uid = rustix::process::getuid().as_raw().to_string();
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = table.lines().find(|line| line.split(':').nth(2) == Some(uid.as_str()));
    line.and_then(|line| line.split(':').next()).map_or_else(|| format!("uid-{uid}"), str::to_owned)
}
