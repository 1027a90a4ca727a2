//! How does Firestore carry a lock?
//!
//! Optimistically: read, decide on this machine's clock, then one Commit whose every write names the version that was
//! read. Whoever commits first wins; the others see the new state when they read again. Two calls each for acquire, release and
//! extend, one when the lock is held and for every look.

use std::fmt;
use std::sync::Arc;

use syncguard_core::time::{Clock, free_in, is_live};
use syncguard_core::{
    AcquireOutcome, AcquireRequest, Capabilities, Contention, ExtendOutcome, Fence, HealthReport, Key, Lease,
    LockBackend, LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Timestamp, Ttl, WakeHint,
};

use crate::attempt::Attempt;
use crate::crowd::Crowd;
use crate::document::{Ids, NewLock, StoredCounter, StoredLock, expect_key, refuse_clash, write_counter};
use crate::error::RpcError;
use crate::listen::Listener;
use crate::options::FirestoreBuilder;
use crate::rpc::{Answer, Rpc};
use crate::skew::{ClockOffset, Skew};

/// Locks in a Firestore database.
///
/// Liveness is decided by each client's own clock: **every machine needs a working NTP client**. See
/// [`clock_offset`](Self::clock_offset) and [`strict_clock`](FirestoreBuilder::strict_clock).
pub struct FirestoreBackend {
    pub(crate) rpc: Rpc,
    pub(crate) options: FirestoreBuilder,
    pub(crate) skew: Arc<Skew>,
    listener: Listener,
    crowd: Arc<Crowd>,
}

impl fmt::Debug for FirestoreBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreBackend").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FirestoreBackend {
    /// Prepares a backend for `firestore://PROJECT[/DATABASE][?option=value…]`; see [`FirestoreBuilder::from_url`].
    ///
    /// # Errors
    /// [`InvalidArgument`](syncguard_core::ErrorCode::InvalidArgument) for a URL that cannot work,
    /// [`AuthFailed`](syncguard_core::ErrorCode::AuthFailed) when there are no credentials. Nothing is sent yet.
    pub async fn connect(url: &str) -> Result<Self> {
        FirestoreBuilder::from_url(url)?.connect().await
    }

    /// Starts the settings of a backend for a project.
    pub fn builder(project: impl Into<String>) -> FirestoreBuilder {
        FirestoreBuilder::new(project)
    }

    // The connection's worker is spawned here, so this must run inside a runtime: being async says so.
    #[allow(clippy::unused_async, reason = "spawns on the runtime that polls it")]
    pub(crate) async fn from_builder(options: FirestoreBuilder) -> Result<Self> {
        options.check()?;
        let skew = Arc::new(Skew::default());
        let rpc = Rpc::new(&options, skew.clone())?;
        let crowd = Arc::new(Crowd::default());
        let listener = Listener::new(rpc.clone(), crowd.clone());
        Ok(Self { rpc, options, skew, listener, crowd })
    }

    /// How far the server's clock is from this machine's, by the best of the recent answers; `None` before the first.
    pub fn clock_offset(&self) -> Option<ClockOffset> {
        self.skew.best()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.options.clock.wall()
    }

    pub(crate) fn begin(&self) -> Attempt {
        Attempt::begin(self.options.request_timeout)
    }

    pub(crate) fn lock_name(&self, ids: &Ids) -> String {
        self.rpc.name(&self.options.collection, &ids.lock)
    }

    async fn try_acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let ids = Ids::of(request.key)?;
        let lock_name = self.lock_name(&ids);
        let counter_name = self.rpc.name(&self.options.fence_collection, &ids.counter);
        let mut attempt = self.begin();
        loop {
            let names = [lock_name.clone(), counter_name.clone()];
            let read = self.rpc.read(names, attempt.deadline).await.map_err(|error| attempt.read_failed(error))?;
            if self.options.strict_clock {
                self.skew.require_sane()?;
            }
            // Read after the wait for the answer, and again in every try: a lease is never granted from an old time.
            let now = self.now();
            let grant = match decide(read, request, now, self.options.fence_floor)? {
                Decision::Answer(outcome) => return Ok(outcome),
                Decision::Take(grant) => grant,
            };
            let new = NewLock {
                lock_id: request.lock_id,
                key: request.key,
                fence: grant.fence,
                acquired_at: now,
                expires_at: now.plus(request.ttl),
            };
            // Both documents were read, so both writes name the version that was seen.
            let writes = vec![
                new.write(lock_name.clone(), grant.lock_version),
                write_counter(counter_name.clone(), grant.fence, request.key, grant.counter_version),
            ];
            match self.rpc.commit(writes, attempt.deadline).await {
                Ok(()) => {
                    if !attempt.was_disputed() {
                        self.crowd.won();
                    }
                    warn_near_limit(grant.fence, request.key);
                    return Ok(AcquireOutcome::Acquired(Lease { fence: grant.fence, expires_at: new.expires_at }));
                }
                Err(error) => {
                    if error.is_conflict() {
                        self.crowd.lost();
                    }
                    attempt.write_failed(error).await?;
                }
            }
        }
    }

    async fn read_lock(&self, key: &Key) -> Result<Option<StoredLock>> {
        let name = self.lock_name(&Ids::of(key)?);
        let read = self.rpc.read([name], self.begin().deadline).await.map_err(RpcError::into_lock_error)?;
        let [document] = read.documents;
        let Some(document) = document else { return Ok(None) };
        let lock = StoredLock::read(document)?;
        expect_key(&lock.key, key)?;
        Ok(Some(lock))
    }

    fn info(lock: StoredLock, now: Timestamp) -> LockInfo {
        LockInfo::new(lock.key, lock.lock_id, lock.fence, lock.acquired_at, lock.expires_at, now)
    }
}

enum Decision {
    Answer(AcquireOutcome),
    Take(Grant),
}

struct Grant {
    fence: Fence,
    lock_version: Option<prost_types::Timestamp>,
    counter_version: Option<prost_types::Timestamp>,
}

/// What the two documents mean for somebody who wants the lock now.
fn decide(read: Answer<2>, request: AcquireRequest<'_>, now: Timestamp, floor: bool) -> Result<Decision> {
    let [lock, counter] = read.documents;
    let lock = lock.map(StoredLock::read).transpose()?;
    if let Some(held) = &lock {
        expect_key(&held.key, request.key)?;
        if is_live(held.expires_at, now) {
            return Ok(Decision::Answer(answer_held(held, request.lock_id, now)));
        }
    }
    let counter = counter.as_ref().map(StoredCounter::read).transpose()?;
    if let Some(key) = counter.as_ref().and_then(|counter| counter.key.as_ref()) {
        refuse_clash(key, request.key)?;
    }
    // A dead lock remembers a fence too: should its counter have been lost, the next one still rises.
    let last = counter.as_ref().map_or(0, |counter| counter.value);
    let seen = lock.as_ref().map_or(0, |lock| lock.fence.get());
    let next = last.max(seen).saturating_add(1);
    let fence = Fence::new(if floor { next.max(server_millis(read.read_time)?) } else { next })?;
    Ok(Decision::Take(Grant {
        fence,
        lock_version: lock.map(|lock| lock.version),
        counter_version: counter.map(|counter| counter.version),
    }))
}

/// A lock held under the very id that asks was taken by this caller: an earlier answer was lost.
fn answer_held(held: &StoredLock, asking: &LockId, now: Timestamp) -> AcquireOutcome {
    if held.lock_id == *asking {
        return AcquireOutcome::Acquired(Lease { fence: held.fence, expires_at: held.expires_at });
    }
    AcquireOutcome::Contended(Contention { free_in: Some(free_in(held.expires_at, now)) })
}

fn server_millis(read_time: Option<prost_types::Timestamp>) -> Result<u64> {
    let time = read_time.ok_or_else(|| LockError::internal("firestore gave no read time to base the fence on"))?;
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    Ok(seconds.saturating_mul(1000).saturating_add(u64::try_from(time.nanos / 1_000_000).unwrap_or(0)))
}

fn warn_near_limit(fence: Fence, key: &Key) {
    if fence.is_near_limit() {
        tracing::warn!(target: "syncguard", key_hash = %key.hash(), %fence, "the fence counter nears its limit");
    }
}

impl LockBackend for FirestoreBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities { backend: "firestore".into(), fencing: true, time_authority: TimeAuthority::Client }
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        self.try_acquire(request).await.map_err(|error| error.with_key(request.key).with_lock_id(request.lock_id))
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.release_owned(lock_id).await.map_err(|error| error.with_lock_id(lock_id))
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.extend_owned(lock_id, ttl).await.map_err(|error| error.with_lock_id(lock_id))
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let Some(lock) = self.read_lock(key).await.map_err(|error| error.with_key(key))? else { return Ok(false) };
        let now = self.now();
        if self.options.cleanup_in_is_locked {
            self.clean_up(&lock, now).await;
        }
        Ok(is_live(lock.expires_at, now))
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        match query {
            Lookup::Key(key) => {
                let lock = self.read_lock(key).await.map_err(|error| error.with_key(key))?;
                let now = self.now();
                Ok(lock.filter(|lock| is_live(lock.expires_at, now)).map(|lock| Self::info(lock, now)))
            }
            Lookup::LockId(lock_id) => {
                let attempt = self.begin();
                let owned = self.find_owned(lock_id, &attempt).await.map_err(|error| error.with_lock_id(lock_id))?;
                Ok(owned.live.map(|lock| Self::info(lock, owned.now)))
            }
        }
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.purge().await
    }

    async fn wake(&self, key: &Key) -> WakeHint {
        match Ids::of(key) {
            Ok(ids) => self.listener.wake(&self.lock_name(&ids)).await,
            Err(_) => WakeHint::never(),
        }
    }

    async fn health(&self) -> HealthReport {
        self.check_health().await
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.options.clock.clone()
    }
}
