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

use super::tree::Process;
use crate::Ending;
use crate::exit::{self, Failure};
use crate::output::{Output, escape};

/// How one child ended.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "four independent facts")]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// The lock was lost while the command ran.
    pub(crate) lost: bool,
    /// It ran longer than `--max-runtime` and was stopped.
    pub(crate) timed_out: bool,
    /// We were told to stop, and passed it on.
    pub(crate) was_asked_to_stop: bool,
    /// The watchdog was killed, and the command was stopped because nobody watched it any more.
    pub(crate) watchdog_died: bool,
    /// What could not be stopped.
    pub(crate) survivors: Vec<Process>,
}

impl Outcome {
    /// Whether `--respawn` may start the command again.
    pub(crate) fn may_start_again(&self) -> bool {
        let is_success = self.code == Some(0) && !self.lost;
        !self.was_asked_to_stop && !is_success && !self.timed_out && self.survivors.is_empty()
    }

    pub(crate) fn describe(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no code".to_owned(),
        }
    }

    /// What our own caller gets to see.
    pub(crate) fn ending(&self, lost_code: u8) -> Ending {
        if self.lost {
            return Ending::Code(lost_code);
        }
        if self.timed_out {
            return Ending::Code(exit::TIMED_OUT);
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
    /// The command's own code where ours says something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    child_exit_code: Option<i32>,
    /// The processes that could not be stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    still_running: Vec<i32>,
    /// How often a command was started; more than once with `--respawn`.
    starts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Whether the name leads to where a stranger would have a file emptied.
fn is_strangers_link(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Ok(link), Ok(directory)) = (path.symlink_metadata(), directory.metadata()) else { return false };
    let trusted = [rustix::process::geteuid().as_raw(), directory.uid()];
    link.is_symlink() && directory.mode() & 0o022 != 0 && !trusted.contains(&link.uid())
}

impl Report {
    pub(crate) fn create(path: Option<&Path>, key: &Key) -> Result<Self, Failure> {
        let file = match path {
            Some(path) => {
                if is_strangers_link(path) {
                    let shown = escape(&path.to_string_lossy());
                    return Err(Failure::usage(format!(
                        "--report is not written to {shown}: somebody else made it a link, where others may put files"
                    ))
                    .hint("name a file in a directory of your own"));
                }
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
            child_exit_code: None,
            still_running: Vec::new(),
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

    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        self.content.signal = outcome.signal;
        self.content.still_running =
            outcome.survivors.iter().map(|process| process.pid).filter(|pid| *pid != 0).collect();
        let is_ours = outcome.lost || outcome.timed_out;
        self.content.child_exit_code = outcome.code.filter(|_| is_ours);
        self.content.outcome = match outcome {
            Outcome { lost: true, .. } => "lost",
            Outcome { timed_out: true, .. } => "timeout",
            _ => "completed",
        };
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
