//! What did a process see, and when?
//!
//! One file per process, one JSON line per event, written with one system call each: what was written before a `kill -9`
//! is in the file. Times are nanoseconds of the boot clock, which all processes of a machine share.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::time::{MILLI, Nanos, now};

/// One event: when, and what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event(pub Nanos, pub What);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "kebab-case")]
pub enum What {
    /// A call to the backend is about to be made.
    Invoke {
        /// Numbers the calls of this process.
        op: u64,
        /// Which of the operations.
        call: Call,
        /// The key, also where the operation is by lock id alone.
        key: String,
        /// The hash of the lock id.
        id: String,
    },
    /// The backend answered.
    Return {
        /// The call that is answered.
        op: u64,
        /// The answer.
        answer: Answer,
    },
    /// A guard was handed out.
    Granted {
        /// The key.
        key: String,
        /// The hash of the lock id.
        id: String,
        /// The fence of the acquisition.
        fence: u64,
    },
    /// At this moment, before it asked, the holder believed; and unless it hears of a loss or releases, it will until
    /// the deadline.
    Believed {
        /// The hash of the lock id.
        id: String,
        /// The earliest moment at which the belief ends by itself.
        deadline: Nanos,
    },
    /// The holder asked and was told that the lock is not held any more.
    Over {
        /// The hash of the lock id.
        id: String,
        /// Why.
        reason: String,
    },
    /// `lost()` resolved.
    Signalled {
        /// The hash of the lock id.
        id: String,
        /// Why.
        reason: String,
    },
    /// The holder begins to give the lock back.
    Releasing {
        /// The hash of the lock id.
        id: String,
    },
    /// The runtime of this process was not polled since then: it was stopped, or starved by the machine.
    Gap {
        /// The last moment at which it was.
        from: Nanos,
    },
    /// The resource that checks fences refused a write.
    Refused {
        /// The key.
        key: String,
        /// The fence of the write.
        fence: u64,
    },
    /// The process was forked while a guard was alive, and the child has dropped its copy of it.
    Forked,
    /// The runtime of a guard was shut down while the guard was alive.
    RuntimeEnded,
    /// The process ended in order.
    Left,
}

/// An operation of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Acquire.
    Acquire,
    /// Extend.
    Extend,
    /// Release.
    Release,
}

/// An answer of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The lock is ours, with this fence.
    Acquired(u64),
    /// Somebody else holds it.
    Contended,
    /// The lease was replaced.
    Extended,
    /// The lock was ours and is free now.
    Released,
    /// There was no live lock with this id.
    Absent,
    /// An error after which the operation may have taken effect or may yet.
    Unknown,
    /// An error after which the operation has certainly had no effect.
    Refused,
}

/// Writes the history of this process.
#[derive(Debug)]
pub struct Recorder {
    sink: Mutex<Sink>,
    /// Numbers the calls.
    next: AtomicU64,
}

#[derive(Debug)]
enum Sink {
    File(File),
    Memory(Vec<Event>),
}

impl Recorder {
    /// Starts a history in a new file.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path).context("cannot write a history")?;
        Ok(Self { sink: Mutex::new(Sink::File(file)), next: AtomicU64::new(0) })
    }

    /// Starts a history in memory, for a process that nobody kills.
    pub fn in_memory() -> Self {
        Self { sink: Mutex::new(Sink::Memory(Vec::new())), next: AtomicU64::new(0) }
    }

    /// Takes out what was written to memory so far.
    pub fn take(&self) -> History {
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::File(_) => History::default(),
            Sink::Memory(events) => History { events: std::mem::take(events) },
        }
    }

    /// How many calls were numbered.
    pub fn numbered(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// A number for the next call.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes an event of this moment.
    pub fn record(&self, what: What) {
        self.record_at(now(), what);
    }

    /// Writes an event of a moment that has just passed.
    ///
    /// # Panics
    /// When the disk is full: a history with holes would be worth nothing.
    pub fn record_at(&self, at: Nanos, what: What) {
        let (began, event) = (now(), Event(at, what));
        match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(events) => events.push(event),
            Sink::File(file) => {
                append(file, &event);
                // A disk that keeps a thread waiting keeps the tasks waiting that are queued behind it.
                let written = now();
                if written > began + PAUSE {
                    append(file, &Event(written, What::Gap { from: began }));
                }
            }
        }
    }
}

/// From which pause on a process counts as not run.
pub const PAUSE: Nanos = 250 * MILLI;

fn append(file: &mut File, event: &Event) {
    let mut line = serde_json::to_string(event).expect("events are plain data");
    line.push('\n');
    file.write_all(line.as_bytes()).expect("the history can be written");
}

/// The history of one process.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In the order in which they were written.
    pub events: Vec<Event>,
}

impl History {
    /// Reads a file. A last line that a kill cut off is left out.
    ///
    /// # Errors
    /// When it cannot be read, or another line is no event.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("no history at {}", path.display()))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |line: &str| serde_json::from_str(line).with_context(|| format!("no event: {line}"));
        Ok(Self { events: whole.lines().map(parse).collect::<Result<_>>()? })
    }

    /// Reads every history of a folder.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_all(folder: &Path) -> Result<Vec<Self>> {
        let mut paths: Vec<_> = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
        paths.sort_by_key(fs::DirEntry::path);
        let is_history = |path: &Path| path.extension().is_some_and(|extension| extension == "jsonl");
        paths.iter().map(fs::DirEntry::path).filter(|path| is_history(path)).map(|path| Self::read(&path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_a_cut_line_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.jsonl");
        let recorder = Recorder::create(&path).unwrap();
        let id = || "0123".to_owned();
        let events = [
            What::Invoke { op: 1, call: Call::Acquire, key: "k".to_owned(), id: id() },
            What::Return { op: 1, answer: Answer::Acquired(7) },
            What::Believed { id: id(), deadline: u64::MAX },
            What::Left,
        ];
        for (at, event) in (1..).zip(&events) {
            recorder.record_at(at, event.clone());
        }
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"[5,{\"e\":\"le").unwrap();

        let read = History::read_all(folder.path()).unwrap();

        let expected: Vec<Event> = (1..).zip(events).map(|(at, what)| Event(at, what)).collect();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].events, expected);
    }
}
