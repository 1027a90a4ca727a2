//! How does a server misbehave on request?
//!
//! A layer in front of the emulator's gRPC service. It counts the calls by method and, for the next calls of a method,
//! answers with a status, waits, or lets the server act and then loses the answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use tonic::{Code, Status};

/// What befalls one call.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The server does nothing and answers with this code.
    Refuse(Code),
    /// The server acts, and the caller hears this code instead of the answer.
    LoseReply(Code),
    /// The call reaches the server this much later.
    Delay(Duration),
    /// The server acts, and nobody ever hears of it.
    Hang,
}

/// The switchboard. Clones share it.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    calls: HashMap<String, u32>,
    planned: HashMap<String, Vec<Fault>>,
    link: Duration,
    fired: u32,
    /// The values of the `authorization` header, as they came.
    tokens: Vec<String>,
}

impl Faults {
    /// Wraps the emulator's service.
    pub fn layer(&self, service: Router) -> Router {
        service.layer(middleware::from_fn_with_state(self.clone(), pass))
    }

    /// The next call of a method meets this fault; several calls queue up.
    pub fn next(&self, method: &str, fault: Fault) {
        self.inner().planned.entry(method.to_owned()).or_default().push(fault);
    }

    /// Every call takes this much longer.
    pub fn set_link(&self, delay: Duration) {
        self.inner().link = delay;
    }

    /// Forgets the calls counted so far.
    pub fn reset_calls(&self) {
        self.inner().calls.clear();
    }

    /// The calls since the last reset, in the order of their names.
    pub fn calls(&self) -> Vec<(String, u32)> {
        let mut calls: Vec<_> = self.inner().calls.iter().map(|(name, count)| (name.clone(), *count)).collect();
        calls.sort();
        calls
    }

    /// The number of calls since the last reset.
    pub fn total(&self) -> u32 {
        self.inner().calls.values().sum()
    }

    /// How many planned faults have happened: a test that injects one makes sure that it did.
    pub fn fired(&self) -> u32 {
        self.inner().fired
    }

    pub fn tokens(&self) -> Vec<String> {
        self.inner().tokens.clone()
    }

    fn begin(&self, request: &Request) -> (Option<Fault>, Duration) {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let token = request.headers().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut inner = self.inner();
        inner.tokens.extend(token);
        *inner.calls.entry(method.clone()).or_default() += 1;
        let fault =
            inner.planned.get_mut(&method).filter(|planned| !planned.is_empty()).map(|planned| planned.remove(0));
        inner.fired += u32::from(fault.is_some());
        (fault, inner.link)
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }
}

async fn pass(State(faults): State<Faults>, request: Request, next: Next) -> Response {
    let (fault, link) = faults.begin(&request);
    if !link.is_zero() {
        tokio::time::sleep(link).await;
    }
    match fault {
        None => next.run(request).await,
        Some(Fault::Refuse(code)) => status(code),
        Some(Fault::LoseReply(code)) => {
            finish(next.run(request).await).await;
            status(code)
        }
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            next.run(request).await
        }
        Some(Fault::Hang) => {
            finish(next.run(request).await).await;
            std::future::pending().await
        }
    }
}

/// The message repeats a key, as real ones do, and a word that a careless reader would take for a code.
fn status(code: Code) -> Response {
    Status::new(code, "injected PERMISSION_DENIED for documents/locks/canary-key").into_http()
}

async fn finish(response: Response) {
    let _ = axum::body::to_bytes(response.into_body(), usize::MAX).await;
}
