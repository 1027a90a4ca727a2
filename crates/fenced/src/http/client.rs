//! How does a client send its fence with everything?

use std::fmt;
use std::task::{Context, Poll};

use http::Request;
use syncguard_core::{Fence, HasFence, LockHandle};
use tower_layer::Layer;
use tower_service::Service;

use super::headers::insert;

/// A tower layer that adds the key and the fence of a held lock to every request.
///
/// It does so also when the lock is lost: that is when the server has to see the fence.
///
/// ```
/// use syncguard_core::{Locker, MemoryBackend};
/// use syncguard_fenced::http::FenceHeadersLayer;
/// use tower::{ServiceExt, service_fn, Layer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let lock = Locker::new(MemoryBackend::new()).lock("ledger").acquire().await?;
/// let client = service_fn(async |request: http::Request<()>| {
///     Ok::<_, std::convert::Infallible>(request.headers()["syncguard-fence"].clone())
/// }); // hyper's client in its place
///
/// let fence = FenceHeadersLayer::new(lock.handle()).layer(client).oneshot(http::Request::new(())).await?;
/// assert_eq!(fence, "000000000000001");
/// # Ok(())
/// # }
/// ```
pub struct FenceHeadersLayer<F: HasFence = Fence>(LockHandle<F>);

impl<F: HasFence> FenceHeadersLayer<F> {
    /// Speaks for this lock.
    pub fn new(lock: LockHandle<F>) -> Self {
        Self(lock)
    }
}

impl<F: HasFence> Clone for FenceHeadersLayer<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<F: HasFence> fmt::Debug for FenceHeadersLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceHeadersLayer").finish_non_exhaustive()
    }
}

impl<S, F: HasFence> Layer<S> for FenceHeadersLayer<F> {
    type Service = FenceHeaders<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceHeaders { lock: self.0.clone(), inner }
    }
}

/// A client under a [`FenceHeadersLayer`].
pub struct FenceHeaders<S, F: HasFence = Fence> {
    lock: LockHandle<F>,
    inner: S,
}

impl<S: Clone, F: HasFence> Clone for FenceHeaders<S, F> {
    fn clone(&self) -> Self {
        Self { lock: self.lock.clone(), inner: self.inner.clone() }
    }
}

impl<S: fmt::Debug, F: HasFence> fmt::Debug for FenceHeaders<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceHeaders").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Service<Request<B>>, B, F: HasFence> Service<Request<B>> for FenceHeaders<S, F> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        insert(request.headers_mut(), self.lock.key(), self.lock.fence());
        self.inner.call(request)
    }
}
