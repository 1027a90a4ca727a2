//! What does a user of Redis locks hold?
//!
//! The type, the ways to make it, and the contract; what each operation does is in [`operations`](crate::operations).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use syncguard_core::inspect::Pace;
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, ExtendOutcome, HealthReport, Inspector, Key, LockBackend, LockId,
    LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Ttl, WakeHint,
};

use crate::builder::{RedisAddress, RedisBuilder};
use crate::health;
use crate::listener::{Channels, Listener, NAME_LENGTH, Topics};
use crate::operations::{Operations, purge};
use crate::own_locks::OwnLocks;
use crate::router::Router;
use crate::turns::Turns;

/// Locks in Redis. Cheap to clone; clones share their connections.
///
/// ```no_run
/// use syncguard_core::{Key, LockBackend};
/// use syncguard_redis::RedisBackend;
///
/// # async fn example() -> Result<(), syncguard_core::LockError> {
/// let backend = RedisBackend::connect("redis://127.0.0.1/?prefix=app").await?;
/// assert!(!backend.is_locked(&Key::new("nightly-report")?).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisBackend(pub(crate) Arc<Operations>);

impl RedisBackend {
    /// Connects to the server that a URL names; `docs/backends/redis.md` lists the schemes and options.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for a malformed URL; otherwise what kept it from
    /// connecting, with the address and a hint, and never with the password.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection.
    pub async fn connect(url: &str) -> Result<Self> {
        RedisBuilder::from_url(url)?.connect().await
    }

    /// Begins with the address of a server, `(host, port)`, or any other [`RedisAddress`].
    pub fn builder(address: impl Into<RedisAddress>) -> RedisBuilder {
        RedisBuilder::of(address.into().0)
    }

    pub(crate) async fn open(options: RedisBuilder) -> Result<Self> {
        options.validate()?;
        let router = Router::new(&options)?;
        let backend = Self::assemble(router, &options)?;
        backend.0.router.ready().await?;
        Ok(backend)
    }

    /// Uses a connection that you made (feature `client`): a multiplexed or managed one, or a cluster connection.
    ///
    /// Of the options only those about names and operations count. Waiters are not woken, because a shared connection
    /// cannot listen; they poll. If your connection repeats commands by itself, switch that off.
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for options that contradict each other.
    #[cfg(feature = "client")]
    pub fn from_connection(
        connection: impl redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
        options: &RedisBuilder,
    ) -> Result<Self> {
        options.validate()?;
        if options.wait_replicas.is_some() {
            let message = "`wait_replicas` needs a connection of its own";
            return Err(syncguard_core::LockError::invalid(message).with_hint("connect by url instead"));
        }
        Self::assemble(Router::Given(Box::new(connection)), options)
    }

    fn assemble(router: Router, options: &RedisBuilder) -> Result<Self> {
        let careful = match options.wait_replicas {
            Some(wait) => Some((Router::new(&RedisBuilder { connections: 1, ..options.clone() })?, wait)),
            None => None,
        };
        let router = Arc::new(router);
        let listens = options.wake && !matches!(*router, Router::Given(_));
        // A part of what makes lock ids: as unlikely to come twice as it must be among those who wait for one lock.
        let listener_name: Arc<str> = Arc::from(&LockId::random().as_str()[..NAME_LENGTH]);
        let turns = Arc::new(Turns::default());
        let listener = |topics| {
            let (router, name, turns) = (router.clone(), listener_name.clone(), turns.clone());
            listens.then(|| Listener::new(Channels { router, name, turns, topics }))
        };
        Ok(Self(Arc::new(Operations {
            names: options.names()?,
            timeout: options.timeout,
            careful,
            fence_floor: options.fence_floor,
            cleanup_in_is_locked: options.cleanup_in_is_locked,
            is_cleaning: AtomicBool::new(false),
            own_locks: OwnLocks::default(),
            listener: listener(Topics::Names),
            listener_name: listener_name.clone(),
            turns: turns.clone(),
            overhearer: listener(Topics::Patterns),
            pace: Pace::default(),
            publish: AtomicBool::new(options.wake),
            router,
        })))
    }
}

impl LockBackend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("redis", TimeAuthority::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.0.acquire(request).await
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.0.release(lock_id).await
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.0.extend(lock_id, ttl).await
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.0.is_locked(key).await
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.0.lookup(query).await
    }

    async fn purge_expired(&self) -> Result<u64> {
        purge::all(&self.0).await
    }

    async fn subscribe(&self, key: &Key) -> WakeHint {
        let (Some(listener), Ok(name)) = (&self.0.listener, self.0.names.lock(key)) else { return WakeHint::never() };
        listener.subscribe(&name).await
    }

    async fn health(&self) -> HealthReport {
        health::check(&self.0).await
    }

    /// None on a connection that was brought along: it cannot be asked which servers there are.
    fn inspector(&self) -> Option<Inspector> {
        (!matches!(*self.0.router, Router::Given(_))).then(|| Inspector::new(self.clone()))
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.0.names.lock_id(key)
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &*self.0.router {
            Router::Server(_) => "server",
            Router::Cluster(_) => "cluster",
            Router::Given(_) => "given connection",
        };
        f.debug_struct("RedisBackend").field("router", &kind).finish_non_exhaustive()
    }
}
