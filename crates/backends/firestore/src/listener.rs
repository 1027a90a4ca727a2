//! How does a waiter hear that a lock document went away?
//!
//! By one Listen stream per backend, opened when somebody waits, with one target per waited-for document. A deleted
//! document is a hint. The stream may break, lag or be forbidden: waiters then follow their schedule, and only lose time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::listen_request::TargetChange as Change;
use proto::listen_response::ResponseType as Heard;
use proto::target_change::TargetChangeType;
use syncguard_core::{WakeHint, WakeHub};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::Code;

use crate::error::{Kind, RpcError};
use crate::rpc::Rpc;
use crate::stagger::Stagger;

/// How long a waiter waits for the stream to watch its document before it goes on without.
const READY_WITHIN: Duration = Duration::from_secs(2);
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// A target outlives its last waiter by up to this, since waiters come and go: opening one costs a round trip and a read.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// What one stream is asked to watch at most. Further waiters poll.
const MAX_TARGETS: usize = 100;

/// The one listener of a backend. Idle until somebody waits. Not `Debug`: it knows keys.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    rpc: Rpc,
    hub: WakeHub,
    stagger: Arc<Stagger>,
    /// Rings when the set of waited-for documents changed.
    nudge: Arc<Notify>,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    /// Documents whose deletion will be noticed.
    watched: HashSet<Arc<str>>,
    broken: bool,
    /// The server does not let us listen at all.
    refused: bool,
}

impl Listener {
    pub(crate) fn new(rpc: Rpc, stagger: Arc<Stagger>) -> Self {
        let nudge = Arc::new(Notify::new());
        let ring = nudge.clone();
        let hub = WakeHub::new(move |_, _| ring.notify_one());
        let shared = Shared { rpc, hub, stagger, nudge, state: watch::Sender::default() };
        Self { shared: Arc::new(shared), task: Mutex::default() }
    }

    /// Counts a waiter in, and returns once a deletion of the document from now on will be noticed.
    pub(crate) async fn wake(&self, document: &str) -> WakeHint {
        if self.shared.state.borrow().refused {
            return WakeHint::never();
        }
        self.keep_running();
        let hint = self.shared.hub.subscribe(document);
        let mut state = self.shared.state.subscribe();
        let ready = state.wait_for(|state| state.refused || state.broken || state.watched.contains(document));
        match timeout(READY_WITHIN, ready).await {
            Ok(Ok(state)) if state.refused => WakeHint::never(),
            _ => hint,
        }
    }

    /// The task ends with the runtime that it was made on; the next waiter's runtime takes over.
    fn keep_running(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(run(self.shared.clone())));
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

async fn run(shared: Arc<Shared>) {
    let mut pause = FIRST_PAUSE;
    loop {
        while shared.hub.waited_for().is_empty() {
            shared.nudge.notified().await;
        }
        let mut stream = Stream::new(&shared);
        let ended = stream.follow().await;
        let worked = stream.worked;
        shared.state.send_modify(|state| state.watched.clear());
        let Err(error) = ended else {
            pause = FIRST_PAUSE;
            continue;
        };
        let forbidden = matches!(error.kind, Kind::Answered(Code::PermissionDenied | Code::Unimplemented));
        if forbidden && !worked {
            tracing::debug!(target: "syncguard", kind = ?error.kind, "listening is not allowed; waiters poll");
            shared.state.send_modify(|state| state.refused = true);
            return;
        }
        tracing::debug!(target: "syncguard", kind = ?error.kind, "the listen stream broke; waiters poll until it is back");
        shared.state.send_modify(|state| state.broken = true);
        pause = if worked { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        sleep(pause).await;
    }
}

/// One stream's life.
struct Stream<'a> {
    shared: &'a Shared,
    requests: mpsc::UnboundedSender<proto::ListenRequest>,
    outgoing: Option<mpsc::UnboundedReceiver<proto::ListenRequest>>,
    targets: HashMap<i32, Arc<str>>,
    /// Documents that went away, and when to say so.
    gone: HashMap<String, Instant>,
    last_id: i32,
    /// Whether the server has begun to watch anything.
    worked: bool,
}

impl<'a> Stream<'a> {
    fn new(shared: &'a Shared) -> Self {
        let (requests, outgoing) = mpsc::unbounded_channel();
        Self {
            shared,
            requests,
            outgoing: Some(outgoing),
            targets: HashMap::new(),
            gone: HashMap::new(),
            last_id: 0,
            worked: false,
        }
    }

    /// Watches until nobody waits any more (`Ok`) or the stream breaks.
    async fn follow(&mut self) -> Result<(), RpcError> {
        // The first target goes ahead of the opening: a server may not answer before it has heard one.
        self.add_targets();
        let mut outgoing = self.outgoing.take().ok_or_else(|| RpcError::new(Kind::BadReply))?;
        let outgoing = stream::poll_fn(move |context| outgoing.poll_recv(context));
        let mut answers = self.shared.rpc.listen(outgoing, Instant::now() + OPEN_WITHIN).await?;
        let mut sweep = tokio::time::interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        loop {
            let due = self.gone.values().min().copied();
            tokio::select! {
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.wake_due(),
                answer = answers.message() => match answer?.and_then(|answer| answer.response_type) {
                    Some(heard) => self.hear(heard)?,
                    None => return Err(RpcError::new(Kind::BadReply)),
                },
                () = self.shared.nudge.notified() => self.add_targets(),
                _ = sweep.tick() => {
                    self.remove_targets();
                    if self.targets.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn add_targets(&mut self) {
        let watched: HashSet<Arc<str>> = self.targets.values().cloned().collect();
        for document in self.shared.hub.waited_for() {
            if watched.contains(&document) || self.targets.len() >= MAX_TARGETS {
                continue;
            }
            self.last_id += 1;
            let documents = proto::target::DocumentsTarget { documents: vec![document.to_string()] };
            self.send(Change::AddTarget(proto::Target {
                target_id: self.last_id,
                target_type: Some(proto::target::TargetType::Documents(documents)),
                ..Default::default()
            }));
            self.targets.insert(self.last_id, document);
        }
    }

    fn remove_targets(&mut self) {
        let idle: Vec<i32> = (self.targets.iter())
            .filter(|(_, document)| !self.shared.hub.has_waiters(document))
            .map(|(id, _)| *id)
            .collect();
        for id in idle {
            self.send(Change::RemoveTarget(id));
            if let Some(document) = self.targets.remove(&id) {
                self.shared.state.send_modify(|state| _ = state.watched.remove(&document));
            }
        }
    }

    fn hear(&mut self, heard: Heard) -> Result<(), RpcError> {
        match heard {
            Heard::DocumentDelete(gone) => self.went_away(gone.document),
            Heard::DocumentRemove(gone) => self.went_away(gone.document),
            Heard::Filter(filter) if filter.count == 0 => {
                if let Some(document) = self.targets.get(&filter.target_id) {
                    self.went_away(document.to_string());
                }
            }
            // Somebody has it again, so there is nothing to wake anybody for.
            Heard::DocumentChange(change) => {
                if let Some(document) = change.document {
                    self.gone.remove(&document.name);
                }
            }
            Heard::TargetChange(change) => return self.target_changed(&change),
            Heard::Filter(_) => {}
        }
        Ok(())
    }

    fn went_away(&mut self, document: String) {
        let hold_back = self.shared.stagger.hold_back(self.shared.rpc.round_trip());
        if hold_back.is_zero() {
            self.shared.hub.wake(&document);
        } else {
            self.gone.insert(document, Instant::now() + hold_back);
        }
    }

    fn wake_due(&mut self) {
        let now = Instant::now();
        for (document, _) in self.gone.extract_if(|_, due| *due <= now) {
            self.shared.hub.wake(&document);
        }
    }

    fn target_changed(&mut self, change: &proto::TargetChange) -> Result<(), RpcError> {
        match change.target_change_type() {
            TargetChangeType::Current => {
                self.worked = true;
                let current: Vec<_> = (self.targets.iter())
                    .filter(|(id, _)| change.target_ids.is_empty() || change.target_ids.contains(id))
                    .map(|(_, document)| document.clone())
                    .collect();
                self.shared.state.send_modify(|state| {
                    state.broken = false;
                    state.watched.extend(current);
                });
                Ok(())
            }
            // We forget a target before we ask for its removal, so one that we know was taken from us.
            TargetChangeType::Remove if change.target_ids.iter().any(|id| self.targets.contains_key(id)) => {
                let code = change.cause.as_ref().map_or(Code::Unknown, |cause| Code::from(cause.code));
                Err(RpcError::new(Kind::Answered(code)))
            }
            _ => Ok(()),
        }
    }

    fn send(&self, change: Change) {
        let request = proto::ListenRequest {
            database: self.shared.rpc.database().to_owned(),
            target_change: Some(change),
            ..Default::default()
        };
        // Fails only when the stream has ended, which `follow` sees by itself.
        let _ = self.requests.send(request);
    }
}
