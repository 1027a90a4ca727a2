//! What happened, for a machine that reads it later?
//!
//! `--report FILE` is opened before anything is acquired, so that a wrong path is found while nothing is at stake, and
//! written once at the end.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use syncguard::{BootTime, Clock, Fence, Guard, HashId, Key, SystemClock};

use crate::Ending;
use crate::exit::{self, Failure};
use crate::output::{Output, escape};

/// How one child ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// The lock was lost and the command was stopped for it.
    pub(crate) lost: bool,
    /// We were told to stop, and passed it on.
    pub(crate) was_asked_to_stop: bool,
}

impl Outcome {
    pub(crate) fn is_success(self) -> bool {
        self.code == Some(0) && !self.lost
    }

    pub(crate) fn describe(self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no code".to_owned(),
        }
    }

    /// What our own caller gets to see.
    pub(crate) fn ending(self) -> Ending {
        if self.lost {
            return Ending::Code(exit::LOST);
        }
        match (self.code, self.signal) {
            (Some(code), _) => Ending::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) if signal == Signal::INT.as_raw() => Ending::Signal(Signal::INT),
            (None, Some(signal)) if signal == Signal::TERM.as_raw() => Ending::Signal(Signal::TERM),
            (None, Some(signal)) => Ending::Code(exit::from_signal(signal)),
            (None, None) => Ending::Code(exit::INTERNAL),
        }
    }
}

/// The report of one run.
pub(crate) struct Report {
    file: Option<(File, PathBuf)>,
    content: Content,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    schema: u8,
    outcome: &'static str,
    exit_code: u8,
    key_hash: HashId,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_id_hash: Option<HashId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// How often a command was started; more than once with `--respawn`.
    starts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

impl Report {
    pub(crate) fn create(path: Option<&Path>, key: &Key) -> Result<Self, Failure> {
        let file = match path {
            Some(path) => {
                let file = File::create(path).map_err(|error| {
                    Failure::usage(format!(
                        "--report cannot be written to {}: {error}",
                        escape(&path.to_string_lossy())
                    ))
                })?;
                Some((file, path.to_owned()))
            }
            None => None,
        };
        let content = Content {
            schema: 1,
            outcome: "internal",
            exit_code: exit::INTERNAL,
            key_hash: key.hash(),
            backend: None,
            fence: None,
            lock_id_hash: None,
            waited_ms: None,
            held_ms: None,
            signal: None,
            starts: 0,
            message: None,
        };
        Ok(Self { file, content })
    }

    pub(crate) fn acquired(&mut self, guard: &Guard, backend: &str, waited: Duration) {
        self.content.backend = Some(backend.to_owned());
        self.content.fence = Some(guard.fence());
        self.content.lock_id_hash = Some(guard.lock_id().hash());
        self.content.waited_ms = Some(millis(waited));
    }

    pub(crate) fn held(&mut self, since: BootTime) {
        self.content.held_ms = Some(millis(SystemClock.boot().since(since)));
        self.content.starts = self.content.starts.saturating_add(1);
    }

    pub(crate) fn outcome(&mut self, outcome: Outcome) {
        self.content.signal = outcome.signal;
        self.content.outcome = if outcome.lost { "lost" } else { "completed" };
    }

    pub(crate) fn end(&mut self, result: &Result<Ending, Failure>) {
        match result {
            Ok(Ending::Code(code)) => self.content.exit_code = *code,
            Ok(Ending::Signal(signal)) => self.content.exit_code = exit::from_signal(signal.as_raw()),
            Err(failure) => {
                self.content.exit_code = failure.code;
                self.content.outcome = failure.reason;
                self.content.message = Some(failure.message.clone());
            }
        }
    }

    pub(crate) fn write(&mut self, output: Output) {
        let Some((file, path)) = &mut self.file else { return };
        let text = serde_json::to_string(&self.content).unwrap_or_default();
        if let Err(error) = writeln!(file, "{text}") {
            output.warn(&format!("the report {} was not written: {error}", escape(&path.to_string_lossy())), None);
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
