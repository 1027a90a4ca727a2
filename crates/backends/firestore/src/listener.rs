//! How does this process hear that a lock document went away?
//!
//! By one Listen stream with one target per waited-for document. A deleted document is a hint. Core's
//! [`Listener`](syncguard_core::listener::Listener) decides when to connect, subscribe and wake; here is only what
//! Firestore needs for it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream;
use googleapis_tonic_google_firestore_v1::google::firestore::v1 as proto;
use proto::listen_request::TargetChange as Change;
use proto::listen_response::ResponseType;
use proto::target_change::TargetChangeType;
use syncguard_core::listener::stagger::Window;
use syncguard_core::listener::{self, Commands, Ended, Heard, Messages, Settings, Source};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::Instant;
use tonic::{Code, Streaming};

use crate::error::{Kind, RpcError};
use crate::rpc::Rpc;

const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Waiters come and go, and coming back costs a round trip and a read.
const LINGER: Duration = Duration::from_secs(5);
const CONFIRM_WITHIN: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// What one stream is asked to watch at most. Further waiters poll.
const MAX_TARGETS: usize = 100;

pub(crate) type Listener = listener::Listener<Documents>;

/// The documents of a database, as something to listen to.
pub(crate) struct Documents {
    pub(crate) rpc: Rpc,
    pub(crate) window: Arc<Window>,
}

/// What the stream watches now, by the number that the server knows it by.
type Targets = Arc<Mutex<HashMap<i32, Arc<str>>>>;

pub(crate) struct Requests {
    database: String,
    outgoing: UnboundedSender<proto::ListenRequest>,
    targets: Targets,
    last_id: i32,
}

pub(crate) struct Answers {
    stream: Stream,
    targets: Targets,
    rpc: Rpc,
    window: Arc<Window>,
    /// Whether the server has begun to watch anything: what is refused after that is a passing trouble.
    worked: bool,
}

type Opened = Result<Streaming<proto::ListenResponse>, RpcError>;

enum Stream {
    /// The server may not answer before it has heard the first target, so nobody waits for it when connecting.
    Opening(Pin<Box<dyn Future<Output = Opened> + Send>>),
    Open(Box<Streaming<proto::ListenResponse>>),
}

impl Source for Documents {
    type Commands = Requests;
    type Messages = Answers;

    async fn connect(&self) -> Result<(Requests, Answers), Ended> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let outgoing = stream::poll_fn(move |context| receiver.poll_recv(context));
        let (rpc, targets) = (self.rpc.clone(), Targets::default());
        let opening = async move { rpc.listen(outgoing, Instant::now() + OPEN_WITHIN).await };
        let database = self.rpc.database().to_owned();
        let requests = Requests { database, outgoing: sender, targets: targets.clone(), last_id: 0 };
        let stream = Stream::Opening(Box::pin(opening));
        let (rpc, window) = (self.rpc.clone(), self.window.clone());
        Ok((requests, Answers { stream, targets, rpc, window, worked: false }))
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.max_topics = MAX_TARGETS;
        settings.linger = LINGER;
        settings.confirm_within = CONFIRM_WITHIN;
        settings.longest_pause = LONGEST_PAUSE;
        settings.close_when_idle = true;
        settings
    }
}

impl Commands for Requests {
    async fn subscribe(&mut self, topics: &[Arc<str>]) -> Result<Vec<Arc<str>>, Ended> {
        for document in topics {
            self.last_id += 1;
            lock(&self.targets).insert(self.last_id, document.clone());
            let documents = proto::target::DocumentsTarget { documents: vec![document.to_string()] };
            self.send(Change::AddTarget(proto::Target {
                target_id: self.last_id,
                target_type: Some(proto::target::TargetType::Documents(documents)),
                ..Default::default()
            }))?;
        }
        Ok(Vec::new())
    }

    async fn unsubscribe(&mut self, topics: &[Arc<str>]) -> Result<(), Ended> {
        // Forgotten before their removal is asked for: a known target that the server removes was taken from us.
        let gone: Vec<i32> =
            lock(&self.targets).extract_if(|_, document| topics.contains(document)).map(|(id, _)| id).collect();
        gone.into_iter().try_for_each(|id| self.send(Change::RemoveTarget(id)))
    }

    /// The protocol has no question for this. The pings of HTTP/2 ask it, and end a stream that is dead.
    async fn ping(&mut self) -> Result<(), Ended> {
        Ok(())
    }
}

impl Requests {
    fn send(&self, change: Change) -> Result<(), Ended> {
        let request =
            proto::ListenRequest { database: self.database.clone(), target_change: Some(change), ..Default::default() };
        self.outgoing.send(request).map_err(|_| Ended::Lost)
    }
}

impl Messages for Answers {
    async fn next(&mut self) -> Result<Heard, Ended> {
        loop {
            match &mut self.stream {
                Stream::Opening(opening) => match opening.as_mut().await {
                    Ok(open) => self.stream = Stream::Open(Box::new(open)),
                    Err(error) => return Err(self.ended(error.kind)),
                },
                Stream::Open(open) => {
                    return match open.message().await {
                        Ok(Some(answer)) => self.hear(answer.response_type),
                        Ok(None) => Err(Ended::Lost),
                        Err(status) => Err(self.ended(RpcError::from(status).kind)),
                    };
                }
            }
        }
    }
}

impl Answers {
    fn hear(&mut self, answer: Option<ResponseType>) -> Result<Heard, Ended> {
        Ok(match answer {
            Some(ResponseType::DocumentDelete(gone)) => self.released(gone.document.into()),
            Some(ResponseType::DocumentRemove(gone)) => self.released(gone.document.into()),
            Some(ResponseType::Filter(filter)) if filter.count == 0 => {
                let document = lock(&self.targets).get(&filter.target_id).cloned();
                document.map_or(Heard::Nothing, |document| self.released(document))
            }
            // Somebody has it again, so there is nothing to wake anybody for.
            Some(ResponseType::DocumentChange(change)) => {
                change.document.map_or(Heard::Nothing, |document| Heard::Taken(document.name.into()))
            }
            Some(ResponseType::TargetChange(change)) => return self.target_changed(&change),
            Some(ResponseType::Filter(_)) | None => Heard::Nothing,
        })
    }

    fn released(&self, topic: Arc<str>) -> Heard {
        Heard::Released { topic, hold_back: self.window.hold_back(self.rpc.round_trip()) }
    }

    fn target_changed(&mut self, change: &proto::TargetChange) -> Result<Heard, Ended> {
        let targets = lock(&self.targets);
        match change.target_change_type() {
            TargetChangeType::Current => {
                self.worked = true;
                let meant = |id: &i32| change.target_ids.is_empty() || change.target_ids.contains(id);
                let current = targets.iter().filter(|(id, _)| meant(id)).map(|(_, document)| document.clone());
                Ok(Heard::Confirmed(current.collect()))
            }
            TargetChangeType::Remove if change.target_ids.iter().any(|id| targets.contains_key(id)) => {
                drop(targets);
                let code = change.cause.as_ref().map_or(Code::Unknown, |cause| Code::from(cause.code));
                Err(self.ended(Kind::Answered(code)))
            }
            _ => Ok(Heard::Nothing),
        }
    }

    fn ended(&self, kind: Kind) -> Ended {
        let forbidden = matches!(kind, Kind::Answered(Code::PermissionDenied | Code::Unimplemented));
        let refused = forbidden && !self.worked;
        if refused {
            tracing::debug!(target: "syncguard", ?kind, "listening is not allowed; waiters poll");
            return Ended::Refused;
        }
        tracing::debug!(target: "syncguard", ?kind, "the listen stream broke; waiters poll until it is back");
        Ended::Lost
    }
}

// Each change is one step.
fn lock(targets: &Targets) -> MutexGuard<'_, HashMap<i32, Arc<str>>> {
    targets.lock().unwrap_or_else(PoisonError::into_inner)
}
