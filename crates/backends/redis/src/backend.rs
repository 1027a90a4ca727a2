//! How do the operations of a lock become calls to Redis?
//!
//! Each is one script and one round trip. Names are in [`names`](crate::names), replies in [`reply`](crate::reply), and where a
//! call goes in [`router`](crate::router).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Cmd;
use redis::aio::ConnectionLike;
use syncguard_core::time::TOLERANCE_MS;
use syncguard_core::{
    AbsentReason, AcquireOutcome, AcquireRequest, Capabilities, ErrorCode, ExtendOutcome, Fence, HealthReport, Key,
    Lease, LockBackend, LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Ttl, WakeHint,
};

use crate::error::CallError;
use crate::held::Held;
use crate::listener::Listener;
use crate::names::{KeyNames, Names};
use crate::options::{RedisOptions, WaitReplicas};
use crate::reply::{self, AcquireReply, Stored};
use crate::router::Router;
use crate::{health, purge, script};

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
pub struct RedisBackend(Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    pub(crate) names: Names,
    pub(crate) timeout: Duration,
    // Acquires that wait for replicas block their connection; releases and renewals must not queue behind them.
    careful: Option<(Router, WaitReplicas)>,
    fence_floor: bool,
    cleanup_in_is_locked: bool,
    held: Held,
    listener: Option<Listener>,
    publish: AtomicBool,
}

impl RedisBackend {
    /// Connects to the server that a URL names; `docs/backends/redis.md` lists the schemes and options.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) for a malformed URL; otherwise what kept it from connecting, with the
    /// address and a hint, and never with the password.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::open(RedisOptions::from_url(url)?).await
    }

    /// Options to begin with: `redis://127.0.0.1:6379/0`.
    pub fn builder() -> RedisOptions {
        RedisOptions::default()
    }

    /// Connects as the options say.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future abandons the connection.
    pub async fn open(options: RedisOptions) -> Result<Self> {
        options.validate()?;
        warn_of_plaintext(&options);
        let router = Router::new(&options)?;
        let backend = Self::assemble(router, &options)?;
        backend.0.router.ready().await?;
        Ok(backend)
    }

    /// Uses a connection that you made: a multiplexed or managed one, or a cluster connection.
    ///
    /// Of the options only those about names and operations count. Waiters are not woken, because a shared connection
    /// cannot listen; they poll. If your connection repeats commands by itself, switch that off.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) for options that contradict each other.
    pub fn from_connection(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
        options: &RedisOptions,
    ) -> Result<Self> {
        options.validate()?;
        if options.wait_replicas.is_some() {
            return Err(
                LockError::invalid("`wait_replicas` needs a connection of its own").with_hint("connect by url instead")
            );
        }
        Self::assemble(Router::Given(Box::new(connection)), options)
    }

    fn assemble(router: Router, options: &RedisOptions) -> Result<Self> {
        let careful = match options.wait_replicas {
            Some(wait) => Some((Router::new(&RedisOptions { connections: 1, ..options.clone() })?, wait)),
            None => None,
        };
        let router = Arc::new(router);
        let listens = options.wake && !matches!(*router, Router::Given(_));
        Ok(Self(Arc::new(Shared {
            names: options.names()?,
            timeout: options.timeout,
            careful,
            fence_floor: options.fence_floor,
            cleanup_in_is_locked: options.cleanup_in_is_locked,
            held: Held::default(),
            listener: listens.then(|| Listener::new(router.clone())),
            publish: AtomicBool::new(options.wake),
            router,
        })))
    }
}

fn warn_of_plaintext(options: &RedisOptions) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let sends_password = options.login.password.is_some() && options.tls.is_none();
    if sends_password && !options.topology.is_local() && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(target: "syncguard", "the redis password travels unencrypted to another host; use rediss://");
    }
}

impl Shared {
    /// The bound of an operation that sets a lease: an answer that comes later is of no use.
    fn bound(&self, ttl: Ttl) -> Duration {
        (ttl.duration() / 3).max(Duration::from_secs(1)).min(self.timeout)
    }

    async fn acquire(&self, router: &Router, request: AcquireRequest<'_>, names: &KeyNames) -> Result<AcquireOutcome> {
        let index = self.names.index(request.lock_id);
        let life = life(request.ttl);
        let (head, tail) = (value_head(request.lock_id), value_tail(request.key));
        let floor = if self.fence_floor { "1" } else { "" };
        let mut dead: Option<(String, Option<String>)> = None;
        // Each round removes one dead holder; a second one can only appear if others acquire in between.
        for _ in 0..4 {
            let mut keys = vec![names.lock.as_str(), &index, &names.counter];
            let mut args = vec![life.as_str(), &head, &tail];
            if let Some((id, dead_index)) = &dead {
                keys.extend(dead_index.as_deref());
                args.extend([floor, id]);
            } else if self.fence_floor {
                args.push(floor);
            }
            let answer = router.script(&script::ACQUIRE, &keys, &args, self.bound(request.ttl)).await;
            match reply::acquire(&answer.map_err(CallError::into_lock_error)?, &head)? {
                AcquireReply::Decided(outcome) => return Ok(outcome),
                AcquireReply::Dead(id) => {
                    let dead_index = LockId::parse(&id).ok().map(|id| self.names.index(&id));
                    dead = Some((id, dead_index));
                }
            }
        }
        Err(LockError::new(ErrorCode::ServiceUnavailable, "the lock changed hands too often to be taken over"))
    }

    /// Waits until enough replicas have the lock; gives it back otherwise.
    async fn replicate(
        &self,
        router: &Router,
        wait: WaitReplicas,
        request: AcquireRequest<'_>,
        names: &KeyNames,
    ) -> Result<()> {
        let mut command = Cmd::new();
        command.arg("WAIT").arg(wait.count).arg(u64::try_from(wait.timeout.as_millis()).unwrap_or(u64::MAX));
        let answer = router.command(&command, &names.lock, self.timeout).await;
        let reached = match answer {
            Ok(redis::Value::Int(reached)) => Ok(u32::try_from(reached).unwrap_or(0)),
            Ok(_) => Ok(0),
            Err(error) => Err(error.into_lock_error()),
        };
        if reached.as_ref().is_ok_and(|reached| *reached >= wait.count) {
            return Ok(());
        }
        let given_back = self.give_back(request, names).await;
        let error = reached.map_or_else(|error| error, |reached| too_few_replicas(reached, wait.count, given_back));
        // The lock was stored. Unless it is known to be gone again, this id may own it: whatever the error itself says.
        Err(if given_back { error } else { error.ambiguous() })
    }

    /// Whether the server said that the lock is free again.
    async fn give_back(&self, request: AcquireRequest<'_>, names: &KeyNames) -> bool {
        let index = self.names.index(request.lock_id);
        let keys = [names.lock.as_str(), &index];
        let answer = self.router.script(&script::RELEASE, &keys, &[&value_head(request.lock_id)], self.timeout).await;
        answer.is_ok_and(|answer| reply::release(&answer).is_ok_and(|(outcome, _)| outcome.is_released()))
    }

    /// The storage name of an id's lock: remembered, or read from the index.
    async fn locate(&self, lock_id: &LockId) -> Result<Option<(Arc<str>, String)>> {
        let index = self.names.index(lock_id);
        if let Some(lock) = self.held.name(lock_id) {
            return Ok(Some((lock, index)));
        }
        let mut get = Cmd::new();
        get.arg("GET").arg(&index);
        let answer = self.router.command(&get, &index, self.timeout).await.map_err(CallError::into_lock_error)?;
        // An index may lead only to a lock of this prefix: never to a counter, an index or somebody else's key.
        let lock = reply::string(&answer)?.filter(|lock| self.names.is_lock(lock));
        Ok(lock.map(|lock| (Arc::from(lock), index)))
    }

    /// Publishing is not permitted: said once, and not tried again.
    fn stop_publishing(&self) {
        if self.publish.swap(false, Ordering::Relaxed) {
            tracing::warn!(target: "syncguard", "redis does not permit this user to publish; waiters elsewhere poll (grant &prefix:*)");
        }
    }

    /// The lock on a key, if it lives.
    async fn look(&self, key: &Key) -> Result<Option<LockInfo>> {
        let name = self.names.lock(key)?;
        let (value, time) = self.router.get_with_time(&name, self.timeout).await.map_err(CallError::into_lock_error)?;
        let now = reply::time(&time)?;
        match Stored::parse(&value)? {
            Some(stored) if stored.is_live(now) => stored.info(now).map(Some),
            _ => Ok(None),
        }
    }
}

fn too_few_replicas(reached: u32, wanted: u32, given_back: bool) -> LockError {
    let then = if given_back { "it was given back" } else { "giving it back failed too, so it may be held" };
    let message = format!("only {reached} of {wanted} replicas acknowledged the lock in time; {then}");
    LockError::new(ErrorCode::ServiceUnavailable, message)
        .with_hint("look at `INFO replication`, or raise `wait_timeout`")
}

/// How long the names live in Redis: as long as every backend calls the lock alive.
fn life(ttl: Ttl) -> String {
    (ttl.as_millis() + TOLERANCE_MS).to_string()
}

/// The stored JSON up to what only the server knows: `{"lockId":…,"expiresAtMs":…,"acquiredAtMs":…,"key":…,"fence":…}`.
fn value_head(lock_id: &LockId) -> String {
    format!(r#"{{"lockId":"{}","expiresAtMs":"#, lock_id.as_str())
}

fn value_tail(key: &Key) -> String {
    format!(r#","key":{},"fence":""#, serde_json::Value::from(key.as_str()))
}

impl LockBackend for RedisBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities { backend: "redis".into(), fencing: true, time_authority: TimeAuthority::Server }
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let shared = &*self.0;
        let names = shared.names.of(request.key)?;
        if !shared.names.accepts(request.lock_id, names.tag) {
            return Err(LockError::invalid("this lock id was not made for this key")
                .with_hint("on a cluster the id carries the slot: make it with `new_lock_id`"));
        }
        let router = shared.careful.as_ref().map_or(&*shared.router, |(router, _)| router);
        let outcome = shared.acquire(router, request, &names).await.map_err(|error| error.with_key(request.key))?;
        if let AcquireOutcome::Acquired(lease) = outcome {
            if let Some((router, wait)) = &shared.careful {
                shared.replicate(router, *wait, request, &names).await.map_err(|error| error.with_key(request.key))?;
            }
            shared.held.remember(request.lock_id, &names.lock, request.ttl);
            warn_near_limit(lease, request.key);
        }
        Ok(outcome)
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let shared = &*self.0;
        let Some((lock, index)) = shared.locate(lock_id).await.map_err(|error| error.with_lock_id(lock_id))? else {
            return Ok(ReleaseOutcome::Absent(Some(AbsentReason::NotFound)));
        };
        // Listeners need no more than the channel's name: the message is empty.
        let args = [&*value_head(lock_id), ""];
        let args = if shared.publish.load(Ordering::Relaxed) { &args[..] } else { &args[..1] };
        let answer = shared.router.script(&script::RELEASE, &[&lock, &index], args, shared.timeout).await;
        let answer = answer.map_err(|error| error.into_lock_error().with_lock_id(lock_id))?;
        let (outcome, heard) = reply::release(&answer)?;
        shared.held.forget(lock_id);
        if !heard {
            shared.stop_publishing();
        }
        Ok(outcome)
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let shared = &*self.0;
        let Some((lock, index)) = shared.locate(lock_id).await.map_err(|error| error.with_lock_id(lock_id))? else {
            return Ok(ExtendOutcome::Absent(Some(AbsentReason::NotFound)));
        };
        let args = [value_head(lock_id), life(ttl)];
        let args = args.each_ref().map(String::as_str);
        let answer = shared.router.script(&script::EXTEND, &[&lock, &index], &args, shared.bound(ttl)).await;
        let outcome = reply::extend(&answer.map_err(|error| error.into_lock_error().with_lock_id(lock_id))?)?;
        if outcome.is_extended() {
            shared.held.renew(lock_id, ttl);
        } else {
            shared.held.forget(lock_id);
        }
        Ok(outcome)
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let shared = &*self.0;
        let name = shared.names.lock(key)?;
        let answer = shared.router.get_with_time(&name, shared.timeout).await;
        let (value, time) = answer.map_err(|error| error.into_lock_error().with_key(key))?;
        let now = reply::time(&time)?;
        let Some(stored) = Stored::parse(&value).map_err(|error| error.with_key(key))? else { return Ok(false) };
        let live = stored.is_live(now);
        if !live && shared.cleanup_in_is_locked {
            purge::in_background(self.0.clone(), name, stored);
        }
        Ok(live)
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let shared = &*self.0;
        let lock_id = match query {
            Lookup::Key(key) => return shared.look(key).await.map_err(|error| error.with_key(key)),
            Lookup::LockId(lock_id) => lock_id,
        };
        let Some((lock, index)) = shared.locate(lock_id).await.map_err(|error| error.with_lock_id(lock_id))? else {
            return Ok(None);
        };
        let answer = shared.router.script(&script::LOOKUP, &[&lock, &index], &[], shared.timeout).await;
        let answer = answer.map_err(|error| error.into_lock_error().with_lock_id(lock_id))?;
        match reply::found(&answer)? {
            Some((stored, now)) if stored.lock_id.as_deref() == Some(lock_id.as_str()) && stored.is_live(now) => {
                stored.info(now).map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn purge_expired(&self) -> Result<u64> {
        purge::all(&self.0).await
    }

    async fn wake(&self, key: &Key) -> WakeHint {
        let (Some(listener), Ok(name)) = (&self.0.listener, self.0.names.lock(key)) else { return WakeHint::never() };
        listener.wake(&name).await
    }

    async fn health(&self) -> HealthReport {
        health::check(&self.0).await
    }

    fn new_lock_id(&self, key: &Key) -> LockId {
        self.0.names.lock_id(key)
    }
}

fn warn_near_limit(lease: Lease, key: &Key) {
    if lease.fence.is_near_limit() {
        tracing::warn!(target: "syncguard", key_hash = %key.hash(), fence = %lease.fence, "the fence counter nears its limit");
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
