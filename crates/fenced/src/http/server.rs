//! Which requests reach the handler?

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::body::FencedBody;
use super::gate::{Entry, Gates, Inside};
use super::headers::{FencedRequest, Said, read};
use super::problem;
use crate::{HighWater, Result};

/// A tower layer that lets requests through only under a current fence.
///
/// * A stale fence is answered with 412 and a problem document (RFC 9457) that names both fences.
/// * A write without a fence is answered with 428; `GET`, `HEAD` and `OPTIONS` pass without one.
/// * Headers that cannot be read are answered with 400, a mark store that fails with 503. The handler is not called.
///
/// The layer believes the headers: put it behind whatever decides who may call at all. Clones share the marks and the
/// waiting.
///
/// ```
/// use axum::{Router, routing::put};
/// use syncguard_fenced::{MemoryMarks, http::FenceLayer};
///
/// let service: Router = Router::new()
///     .route("/ledger", put(async || "stored"))
///     .layer(FenceLayer::new(MemoryMarks::new()));
/// ```
pub struct FenceLayer<M> {
    shared: Arc<Shared<M>>,
    optional: bool,
}

struct Shared<M> {
    marks: M,
    gates: Arc<Gates>,
}

impl<M: HighWater> FenceLayer<M> {
    /// Compares with these marks.
    pub fn new(marks: M) -> Self {
        Self { shared: Arc::new(Shared { marks, gates: Arc::default() }), optional: false }
    }

    /// Lets writes without any fence through: for the time until all clients send one. It protects nobody from those
    /// that do not.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }
}

impl<M> Clone for FenceLayer<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), optional: self.optional }
    }
}

impl<M> fmt::Debug for FenceLayer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("optional", &self.optional).finish_non_exhaustive()
    }
}

impl<M, S> Layer<S> for FenceLayer<M> {
    type Service = FenceService<M, S>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceService { layer: self.clone(), inner }
    }
}

/// A service behind a [`FenceLayer`].
pub struct FenceService<M, S> {
    layer: FenceLayer<M>,
    inner: S,
}

impl<M, S: Clone> Clone for FenceService<M, S> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), inner: self.inner.clone() }
    }
}

impl<M, S: fmt::Debug> fmt::Debug for FenceService<M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<M, S, B, R> Service<Request<B>> for FenceService<M, S>
where
    M: HighWater,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String> + Body + 'static,
{
    type Response = Response<FencedBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // The one that was polled ready goes with the call; its clone stays.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let fenced = match read(request.headers()) {
            Said::Fenced(fenced) => fenced,
            Said::Nonsense => return answer(problem::nonsense),
            Said::Nothing if self.layer.optional || reads_only(&request) => {
                let response = inner.call(request);
                return Box::pin(async move { Ok(response.await?.map(|body| FencedBody::new(body, None))) });
            }
            Said::Nothing => return answer(problem::missing),
        };
        let shared = self.layer.shared.clone();
        Box::pin(async move {
            let inside = match admit(&shared, &fenced).await {
                Ok(inside) => inside,
                Err(error) => return Ok(problem::of(&error).map(|body| FencedBody::new(body, None))),
            };
            request.extensions_mut().insert(fenced);
            let response = inner.call(request).await?;
            // A body that has ended already need not be asked for its end.
            Ok(response.map(|body| {
                let inside = (!body.is_end_stream()).then_some(inside);
                FencedBody::new(body, inside)
            }))
        })
    }
}

type Answer<R, E> = Pin<Box<dyn Future<Output = Result<Response<FencedBody<R>>, E>> + Send>>;

fn answer<R: 'static, E: 'static>(problem: fn() -> Response<R>) -> Answer<R, E> {
    Box::pin(async move { Ok(problem().map(|body| FencedBody::new(body, None))) })
}

fn reads_only<B>(request: &Request<B>) -> bool {
    matches!(*request.method(), http::Method::GET | http::Method::HEAD | http::Method::OPTIONS)
}

/// Waits until no older fence is inside.
async fn admit<M: HighWater>(shared: &Shared<M>, fenced: &FencedRequest) -> Result<Inside> {
    let mut waiting = None;
    loop {
        let entry = shared.gates.try_enter(&fenced.key, fenced.fence)?;
        // What was waited with is given back only now: in between, an older request would have found the gate open.
        drop(waiting.take());
        // Also by the one who waits: it may go away, and older ones are refused all the same.
        shared.marks.advance(&fenced.key, fenced.fence).await?;
        match entry {
            Entry::Inside(inside) => return Ok(inside),
            Entry::MustWait(place) => waiting.insert(place).over().await,
        }
    }
}
