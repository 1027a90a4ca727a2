//! How does a client send its fence with everything?

use std::fmt;
use std::task::{Context, Poll};

use http::Request;
use syncguard_core::LockHandle;
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
#[derive(Clone)]
pub struct FenceHeadersLayer(LockHandle);

impl FenceHeadersLayer {
    /// Speaks for this lock.
    pub fn new(lock: LockHandle) -> Self {
        Self(lock)
    }
}

impl fmt::Debug for FenceHeadersLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceHeadersLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for FenceHeadersLayer {
    type Service = FenceHeaders<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceHeaders { lock: self.0.clone(), inner }
    }
}

/// A client under a [`FenceHeadersLayer`].
pub struct FenceHeaders<S> {
    lock: LockHandle,
    inner: S,
}

impl<S: Clone> Clone for FenceHeaders<S> {
    fn clone(&self) -> Self {
        Self { lock: self.lock.clone(), inner: self.inner.clone() }
    }
}

impl<S: fmt::Debug> fmt::Debug for FenceHeaders<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceHeaders").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for FenceHeaders<S> {
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
