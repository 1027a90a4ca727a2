//! How do changes reach a reader that may be slow?
//!
//! Through a queue with an end and a thread that writes. When the queue is full, changes are left out, and the reader is told
//! how many as soon as it reads again.

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use syncguard::{Fence, HashId, LockInfo, Transition, TransitionKind};
use tokio::sync::oneshot;

use crate::holder::{self, LockObject};
use crate::output::{Output, escape, with_schema};

/// How many changes wait for a reader.
const QUEUE: usize = 10_000;
/// How often we look whether anybody reads, while nothing happens.
const IDLE: Duration = Duration::from_millis(500);
/// How long what waits may hold up the end.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether a change found its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is in the queue.
    Soon,
    /// The queue is full.
    LeftOut,
    /// Nobody reads any more.
    Never,
}

pub(super) struct Stream {
    raw: bool,
    output: Output,
    queue: Option<SyncSender<String>>,
    /// Resolves when the thread has ended.
    ended: oneshot::Receiver<()>,
    left_out: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    event: &'static str,
    #[serde(flatten)]
    lock: LockObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous: Option<Previous>,
}

/// Whose lease ended before the lock was taken over.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Previous {
    lock_id_hash: HashId,
    fence: Fence,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

#[derive(Serialize)]
struct LeftOut {
    event: &'static str,
    count: u64,
}

impl Stream {
    pub(super) fn start(raw: bool, output: Output) -> Self {
        let (queue, lines) = sync_channel(QUEUE);
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            write_all(&lines, std::io::stdout());
            let _ = end.send(());
        });
        Self { raw, output, queue: Some(queue), ended, left_out: 0 }
    }

    pub(super) fn tell(&mut self, transition: &Transition) -> Heard {
        let line = self.line(transition);
        if self.left_out > 0 {
            match self.send(self.apology()) {
                Heard::Soon => self.left_out = 0,
                other => {
                    self.left_out += 1;
                    return other;
                }
            }
        }
        let heard = self.send(line);
        self.left_out += u64::from(heard == Heard::LeftOut);
        heard
    }

    fn send(&self, line: String) -> Heard {
        match self.queue.as_ref().map(|queue| queue.try_send(line)) {
            Some(Ok(())) => Heard::Soon,
            Some(Err(TrySendError::Full(_))) => Heard::LeftOut,
            Some(Err(TrySendError::Disconnected(_))) | None => Heard::Never,
        }
    }

    /// Resolves when nobody reads any more.
    pub(super) async fn closed(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Waits for what is in the queue, but not for long.
    pub(super) async fn finish(&mut self) {
        self.queue = None;
        let _ = tokio::time::timeout(PATIENCE, &mut self.ended).await;
    }

    fn apology(&self) -> String {
        let count = self.left_out;
        if self.output.json {
            return with_schema(&LeftOut { event: "leftOut", count });
        }
        format!("{count} changes were left out: the reader was too slow")
    }

    fn line(&self, transition: &Transition) -> String {
        if !self.output.json {
            return words(transition, self.raw);
        }
        let previous = transition.previous.as_ref().map(|info| Previous {
            lock_id_hash: info.lock_id_hash(),
            fence: info.fence,
            label: info.label().map(|label| label.as_str().to_owned()),
        });
        let lock = LockObject::new(&transition.lock, self.raw);
        with_schema(&Change { event: transition.kind.as_str(), lock, previous })
    }
}

/// Writes until there is nothing more to write, or nobody who reads it.
fn write_all(lines: &Receiver<String>, mut stdout: impl Write + AsFd) {
    loop {
        match lines.recv_timeout(IDLE) {
            Ok(line) if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_ok() => {}
            // Between two changes nothing is written that could fail: `| head` must not wait for the next one.
            Err(RecvTimeoutError::Timeout) if !is_abandoned(&stdout) => {}
            _ => return,
        }
    }
}

/// Whether the other end of a pipe is closed.
fn is_abandoned(stream: &impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let stream = &mut [PollFd::new(stream, PollFlags::empty())];
    poll(stream, Some(&now)).is_ok() && stream[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

pub(super) fn name(info: &LockInfo, raw: bool) -> String {
    if raw { escape(info.reveal().key.as_str()) } else { info.key_hash().to_string() }
}

/// A change in one line.
fn words(transition: &Transition, raw: bool) -> String {
    let info = &transition.lock;
    let what = match (&transition.previous, transition.kind) {
        (Some(old), _) => format!("{} from {} (fence {})", holder::who(info), holder::who(old), old.fence),
        (None, TransitionKind::Present) => {
            format!("{}, held for {}", holder::who(info), crate::output::human(info.held_for()))
        }
        _ => holder::who(info),
    };
    let (at, kind, name) = (holder::hour(info.observed_at), transition.kind.as_str(), name(info, raw));
    format!("{at} {kind:<8}  {name}  fence {}  {what}", info.fence)
}
