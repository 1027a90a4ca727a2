//! With which code does the command end, and what does it say then?
//!
//! Codes are those of `sysexits.h` where one fits, because cron, systemd and shells already treat them as such. Every
//! failure passes through [`Failure`], so that the human form, the JSON form and the code cannot disagree.

use std::error::Error;

use rustix::process::Signal;
use syncguard::{ErrorCode, HashId, LockError, LockInfo};

use crate::config::Backend;

/// Ended well.
pub(crate) const OK: u8 = 0;
/// `extend` or `release` found no lock; `status` found it free; `doctor` found a FAIL.
pub(crate) const NO: u8 = 1;
/// Usage, bad key, bad ttl.
pub(crate) const USAGE: u8 = 64;
/// The backend is unreachable, slow or throttled.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Ours, or a fence past its limit.
pub(crate) const INTERNAL: u8 = 70;
/// Not acquired; `-E` changes it.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// The backend refused the credentials.
pub(crate) const CREDENTIALS: u8 = 77;
/// The configuration is wrong.
pub(crate) const CONFIG: u8 = 78;
/// Acquired, then lost; the command was stopped.
pub(crate) const LOST: u8 = 79;
/// The command ran longer than `--max-runtime`, as timeout(1) says it.
pub(crate) const TIMED_OUT: u8 = 124;
/// The command is not executable.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code of a process that a signal ended.
pub(crate) fn from_signal(signal: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(signal)).unwrap_or(u8::MAX)
}

/// Where an error came from: the same `InvalidArgument` is a bad configuration while opening and a bad key afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Reading the URL and opening the backend.
    Opening,
    /// Carrying out an operation.
    Operating,
}

/// Why the command ends without having done what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// The word for machines, as in the JSON form.
    pub(crate) reason: &'static str,
    /// What happened: lower case, no full stop, escaped where it holds user input.
    pub(crate) message: String,
    /// Who, since, until: printed indented under the message.
    pub(crate) details: Vec<String>,
    /// What to do; may have several lines.
    pub(crate) hint: Option<String>,
    /// Nothing at all is printed: `--skip-if-locked`.
    pub(crate) silent: bool,
    /// We end by this signal, so that a shell's loop around us ends too.
    pub(crate) signal: Option<Signal>,
    /// Who holds the lock that was not got, as far as it was seen.
    pub(crate) holder: Option<Box<LockInfo>>,
    /// The lock that was not got.
    pub(crate) key_hash: Option<HashId>,
}

impl Failure {
    pub(crate) fn new(code: u8, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Vec::new(),
            hint: None,
            silent: false,
            signal: None,
            holder: None,
            key_hash: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(CONFIG, "config", message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    /// Names the backend where it matters which one it was and the message does not say it yet.
    pub(crate) fn on(self, backend: &Backend) -> Self {
        let is_about_it =
            matches!(self.reason, "locked" | "unavailable" | "credentials" | "config" | "internal" | "lost");
        let shown = backend.shown();
        let is_said = self.message.contains(&shown) || self.details.iter().any(|line| line.contains(&shown));
        if is_about_it && !is_said { self.detail(format!("backend   {shown}")) } else { self }
    }

    /// Ends by INT if that is what came: whoever typed it means the whole script. Others end with a code, as
    /// documented.
    pub(crate) fn dying_from(mut self, signal: Signal) -> Self {
        self.signal = Some(signal).filter(|signal| *signal == Signal::INT);
        self
    }

    /// Takes over an error of the library with its hint and causes.
    pub(crate) fn from_lock(error: &LockError, stage: Stage) -> Self {
        let (code, reason) = match (error.code(), stage) {
            // The last of the places where credentials may be is a server that exists in Google's cloud only. That it
            // does not answer elsewhere is no outage, and what its library says about it helps nobody.
            (ErrorCode::ServiceUnavailable, Stage::Opening) if error.to_string() == NO_TOKEN => {
                return Self { hint: error.hint().map(for_a_shell), ..Self::new(CREDENTIALS, "credentials", NO_TOKEN) };
            }
            (ErrorCode::InvalidArgument, Stage::Opening) => (CONFIG, "config"),
            (ErrorCode::InvalidArgument, Stage::Operating) => (USAGE, "usage"),
            (ErrorCode::ServiceUnavailable | ErrorCode::RateLimited | ErrorCode::NetworkTimeout, _) => {
                (UNAVAILABLE, "unavailable")
            }
            (ErrorCode::AuthFailed, _) => (CREDENTIALS, "credentials"),
            (ErrorCode::AcquisitionTimeout, _) => (NOT_ACQUIRED, "locked"),
            (ErrorCode::LockLost, _) => (LOST, "lost"),
            _ => (INTERNAL, "internal"),
        };
        let mut failure = Self::new(code, reason, error.to_string());
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !failure.message.contains(&text) {
                failure.details.push(format!("cause: {}", crate::output::escape(&text)));
            }
            source = cause.source();
        }
        failure.hint = error.hint().map(for_a_shell);
        failure
    }
}

/// What the Firestore backend says when nobody gave it credentials.
const NO_TOKEN: &str = "no access token for firestore";

/// A hint of the library in the words of who has no library: its functions are commands here.
pub(crate) fn for_a_shell(hint: &str) -> String {
    hint.replace("call setup_schema(), or run", "run").replace("schema_sql() prints", "`syncguard schema` prints")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_the_library_has_its_exit_code() {
        let table = [
            (ErrorCode::ServiceUnavailable, UNAVAILABLE),
            (ErrorCode::RateLimited, UNAVAILABLE),
            (ErrorCode::NetworkTimeout, UNAVAILABLE),
            (ErrorCode::AuthFailed, CREDENTIALS),
            (ErrorCode::AcquisitionTimeout, NOT_ACQUIRED),
            (ErrorCode::LockLost, LOST),
            (ErrorCode::Internal, INTERNAL),
            (ErrorCode::InvalidArgument, USAGE),
        ];
        for (code, expected) in table {
            let failure = Failure::from_lock(&LockError::new(code, "x"), Stage::Operating);
            assert_eq!(failure.code, expected, "{code}");
        }
        let opening = Failure::from_lock(&LockError::invalid("x"), Stage::Opening);
        assert_eq!(opening.code, CONFIG);
    }

    #[test]
    fn missing_credentials_are_one_short_line_and_no_outage() {
        let error = LockError::new(ErrorCode::ServiceUnavailable, NO_TOKEN);
        let error = error.with_hint("run `gcloud …`").with_source("dns error: metadata.google.internal");

        let failure = Failure::from_lock(&error, Stage::Opening);
        assert_eq!((failure.code, failure.details.len()), (CREDENTIALS, 0));
        assert_eq!(failure.hint.as_deref(), Some("run `gcloud …`"));
        let later = Failure::from_lock(&error, Stage::Operating);
        assert_eq!(later.code, UNAVAILABLE, "a token that is not renewed at once is an outage");
    }

    #[test]
    fn a_signal_adds_128() {
        assert_eq!((from_signal(2), from_signal(15), from_signal(9)), (130, 143, 137));
        assert_eq!(from_signal(i32::MAX), u8::MAX);
    }
}
