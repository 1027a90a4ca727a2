//! How are locks kept in `PostgreSQL`?
//!
//! One row per lock, one row per fence counter, and the server's clock. Each operation is one transaction in one round trip
//! ([`pipeline`](crate::pipeline)); what it decides stands in `sql/*.sql`. This file turns requests into parameters and rows
//! into outcomes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::storage_key::{StorageLimit, fence_key, lock_key};
use syncguard_core::time::{free_in, is_live};
use syncguard_core::{
    AbsentReason, AcquireOutcome, AcquireRequest, Capabilities, Contention, ExtendOutcome, Fence, HealthReport, Key,
    Lease, LockBackend, LockError, LockId, LockInfo, Lookup, ReleaseOutcome, Result, TimeAuthority, Timestamp, Ttl,
    WakeHint,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::connect::Target;
use crate::error;
use crate::listener::Listener;
use crate::options::{PostgresBuilder, Prepared};
use crate::pool::{KeyGates, OwnPool, Pool, Session, acquire_slots, deadline};
use crate::statement::{Call, Hidden, Statements, flag, number, text};
use crate::table::Tables;
use crate::{health, pipeline, schema, url};

/// Locks in a `PostgreSQL` database. Cheap to clone; clones share their connections.
///
/// ```no_run
/// # async fn example() -> Result<(), syncguard_core::LockError> {
/// use syncguard_core::Locker;
/// use syncguard_postgres::PostgresBackend;
///
/// let locker = Locker::new(PostgresBackend::connect("postgres://app@localhost/app").await?);
/// locker.lock("nightly-report").run(async |lock| println!("fence {}", lock.fence())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresBackend(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) pool: Pool,
    pub(crate) tables: Tables,
    statements: Statements,
    options: PostgresBuilder,
    lock_timeout: String,
    statement_timeout: String,
    gates: KeyGates,
    acquires: Semaphore,
    listener: Option<Listener>,
}

impl fmt::Debug for PostgresBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresBackend({})", self.0.tables.locks.display())
    }
}

impl PostgresBackend {
    /// Connects with the choices that the URL makes, and creates the tables if they are missing.
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, option or table; otherwise why the server cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder().connect(url).await
    }

    /// Uses a pool that was made elsewhere, with default choices.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn from_pool(pool: deadpool_postgres::Pool) -> Result<Self> {
        Self::builder().with_pool(pool).await
    }

    /// Starts from the default choices.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// Creates the tables and indexes that are missing. May be called again, and by many processes at once.
    ///
    /// # Errors
    /// `AuthFailed` when the role may not create tables; otherwise why the server cannot be used.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the schema as it was or complete.
    pub async fn setup_schema(&self) -> Result<()> {
        let mut session = self.0.pool.get(deadline(self.0.options.operation_timeout)).await?;
        session.begin();
        let outcome = schema::set_up(session.client(), &self.0.tables).await;
        if outcome.is_ok() {
            session.finished();
        }
        outcome
    }

    pub(crate) async fn with_target(options: PostgresBuilder, target: Target) -> Result<Self> {
        let direct = target.clone();
        let pool = Pool::Own(Box::new(OwnPool::new(target, options.pool_size)));
        Self::start(options, pool, Some(direct)).await
    }

    pub(crate) async fn with_brought_pool(options: PostgresBuilder, pool: deadpool_postgres::Pool) -> Result<Self> {
        options.validate()?;
        Self::start(options, Pool::Brought(pool), None).await
    }

    async fn start(options: PostgresBuilder, pool: Pool, direct: Option<Target>) -> Result<Self> {
        let tables = options.tables()?;
        let listen_at = match &options.listen_url {
            Some(url) => Some(url::read(PostgresBuilder { listen_url: None, ..options.clone() }, url)?.1),
            None => direct,
        };
        let listener = listen_at.filter(|_| options.listen).map(|target| Listener::new(target, &tables));
        let size = pool.size();
        let inner = Inner {
            statements: Statements::new(&tables),
            lock_timeout: options.lock_timeout.as_millis().to_string(),
            statement_timeout: options.operation_timeout.as_millis().to_string(),
            gates: KeyGates::default(),
            acquires: Semaphore::new(acquire_slots(size)),
            pool,
            tables,
            options,
            listener,
        };
        inner.ensure_schema().await?;
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    async fn ensure_schema(&self) -> Result<()> {
        let mut session = self.pool.get(deadline(self.options.operation_timeout)).await?;
        session.begin();
        let outcome = schema::ensure(session.client(), &self.tables, self.options.auto_create_tables).await;
        if outcome.is_ok() {
            session.finished();
        }
        outcome
    }

    pub(crate) fn operation_timeout(&self) -> Duration {
        self.options.operation_timeout
    }

    fn deadline(&self) -> Instant {
        deadline(self.options.operation_timeout)
    }

    /// A request that hangs for longer than a third of the lease is better given up and sent again.
    fn deadline_within(&self, ttl: Ttl) -> Instant {
        deadline(self.options.operation_timeout.min((ttl.duration() / 3).max(Duration::from_secs(1))))
    }

    /// Whether statements get names on this connection.
    fn prepared(&self, session: &Session) -> bool {
        match self.options.prepared {
            Prepared::Always => true,
            Prepared::Never => false,
            // Once one connection was seen to lead through a pooler, others may too.
            Prepared::Auto => session.behind_pooler() == Some(false) && self.pool.behind_pooler() == Some(false),
        }
    }

    /// The acquire of a key in its two statements, with all that they need.
    pub(crate) async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let deadline = self.deadline_within(request.ttl);
        let names = Names::new(request.key)?;
        // Waiting here costs no connection. The order matters: a place among the acquires is taken only by who can use it.
        let _pass = self.gates.enter(&names.lock, deadline).await?;
        let _slot = timeout_at(deadline, self.acquires.acquire()).await.map_err(|_| error::all_busy())?;
        let mut session = self.pool.get(deadline).await?;
        let prepared = self.prepared(&session);
        let storage_key = Hidden(&names.lock);
        let gate = [text(&storage_key), text(&self.lock_timeout), text(&self.statement_timeout)];
        let gate = Call { sql: &self.statements.acquire_gate, params: &gate };
        let values = AcquireValues::new(&names, request, self.options.clock_floored_fences);
        let row = {
            let params = values.params();
            let decision = Call { sql: &self.statements.acquire, params: &params };
            pipeline::transact(&mut session, prepared, gate, decision, deadline).await?
        };
        read_acquire(&row, request.key)
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        let deadline = self.deadline();
        let mut session = self.pool.get(deadline).await?;
        let prepared = self.prepared(&session);
        let id = Hidden(lock_id.as_str());
        let gate = [text(&self.lock_timeout), text(&self.statement_timeout)];
        let gate = Call { sql: &self.statements.release_gate, params: &gate };
        let decision = Call { sql: &self.statements.release, params: &[text(&id)] };
        let row = pipeline::transact(&mut session, prepared, gate, decision, deadline).await?;
        let released: bool = column(&row, "released")?;
        if released { Ok(ReleaseOutcome::Released) } else { absent(&row).map(|why| ReleaseOutcome::Absent(Some(why))) }
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        let deadline = self.deadline_within(ttl);
        let mut session = self.pool.get(deadline).await?;
        let prepared = self.prepared(&session);
        let (id, ttl) = (Hidden(lock_id.as_str()), ttl.as_millis());
        let gate = [text(&id), text(&self.lock_timeout), text(&self.statement_timeout)];
        let gate = Call { sql: &self.statements.extend_gate, params: &gate };
        let decision = Call { sql: &self.statements.extend, params: &[text(&id), number(&ttl)] };
        let row = pipeline::transact(&mut session, prepared, gate, decision, deadline).await?;
        match column::<Option<i64>>(&row, "expires_at_ms")? {
            Some(millis) => Ok(ExtendOutcome::Extended { expires_at: Timestamp::from_millis(millis) }),
            None => absent(&row).map(|why| ExtendOutcome::Absent(Some(why))),
        }
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        let names = Names::new(key)?;
        let storage_key = Hidden(&names.lock);
        let Some(row) = self.ask(&self.statements.is_locked, &storage_key).await? else { return Ok(false) };
        let live: Option<bool> = column(&row, "live")?;
        let removable: Option<bool> = column(&row, "removable")?;
        if self.options.cleanup_in_is_locked && removable == Some(true) {
            // Tidying up is a courtesy: it never changes the answer.
            drop(self.change(&self.statements.purge_key, &[text(&storage_key)]).await);
        }
        live.ok_or_else(|| error::damaged("expiry").with_key(key))
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        let row = match query {
            Lookup::Key(key) => {
                let names = Names::new(key)?;
                self.ask(&self.statements.lookup_by_key, &Hidden(&names.lock)).await?
            }
            Lookup::LockId(id) => self.ask(&self.statements.lookup_by_lock_id, &Hidden(id.as_str())).await?,
        };
        let Some(row) = row else { return Ok(None) };
        let Some(info) = read_info(&row)? else { return Ok(None) };
        let is_asked_for = match query {
            Lookup::Key(key) => info.reveal().key == key,
            Lookup::LockId(id) => info.reveal().lock_id == id,
        };
        Ok(is_asked_for.then_some(info))
    }

    async fn purge(&self) -> Result<u64> {
        let mut total = 0;
        loop {
            let row = self.change(&self.statements.purge, &[]).await?;
            let removed = u64::try_from(column::<i64>(&row, "removed")?).unwrap_or(0);
            total += removed;
            if removed < 1000 {
                return Ok(total);
            }
        }
    }

    async fn ask(&self, sql: &str, name: &Hidden<'_>) -> Result<Option<Row>> {
        let deadline = self.deadline();
        let mut session = self.pool.get(deadline).await?;
        let prepared = self.prepared(&session);
        pipeline::ask(&mut session, prepared, Call { sql, params: &[text(name)] }, deadline).await
    }

    async fn change(&self, sql: &str, params: &[crate::statement::Param<'_>]) -> Result<Row> {
        let deadline = self.deadline();
        let mut session = self.pool.get(deadline).await?;
        let prepared = self.prepared(&session);
        let gate = [text(&self.lock_timeout), text(&self.statement_timeout)];
        let gate = Call { sql: &self.statements.release_gate, params: &gate };
        pipeline::transact(&mut session, prepared, gate, Call { sql, params }, deadline).await
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.statements
    }

    pub(crate) fn lock_timeout(&self) -> &str {
        &self.lock_timeout
    }

    pub(crate) fn clock_floored(&self) -> bool {
        self.options.clock_floored_fences
    }
}

/// The storage names of one key.
pub(crate) struct Names {
    pub(crate) lock: String,
    pub(crate) fence: String,
}

impl Names {
    pub(crate) fn new(key: &Key) -> Result<Self> {
        let lock = lock_key("", key, StorageLimit::POSTGRES)?;
        let fence = fence_key("", &lock, StorageLimit::POSTGRES)?;
        Ok(Self { lock, fence })
    }
}

/// The parameters of `acquire.sql`, kept alive while they are sent.
pub(crate) struct AcquireValues<'a> {
    storage_key: Hidden<'a>,
    fence_key: Hidden<'a>,
    lock_id: Hidden<'a>,
    ttl: i64,
    user_key: Hidden<'a>,
    floored: bool,
}

impl<'a> AcquireValues<'a> {
    pub(crate) fn new(names: &'a Names, request: AcquireRequest<'a>, floored: bool) -> Self {
        Self {
            storage_key: Hidden(&names.lock),
            fence_key: Hidden(&names.fence),
            lock_id: Hidden(request.lock_id.as_str()),
            ttl: request.ttl.as_millis(),
            user_key: Hidden(request.key.as_str()),
            floored,
        }
    }

    pub(crate) fn params(&self) -> [crate::statement::Param<'_>; 6] {
        [
            text(&self.storage_key),
            text(&self.fence_key),
            text(&self.lock_id),
            number(&self.ttl),
            text(&self.user_key),
            flag(&self.floored),
        ]
    }
}

/// What `acquire.sql` answered.
pub(crate) fn read_acquire(row: &Row, key: &Key) -> Result<AcquireOutcome> {
    let expires_at: Option<i64> = column(row, "expires_at_ms")?;
    let fence: Option<i64> = column(row, "fence")?;
    if let (Some(expires_at), Some(fence)) = (expires_at, fence) {
        let fence = Fence::new(u64::try_from(fence).unwrap_or(0))?;
        if fence.is_near_limit() {
            tracing::warn!(target: "syncguard", key_hash = %key.hash(), %fence, "the fence counter nears its limit");
        }
        return Ok(AcquireOutcome::Acquired(Lease::new(fence, Timestamp::from_millis(expires_at))));
    }
    let free: Option<bool> = column(row, "free")?;
    match (free, fence) {
        (None, _) => Err(error::damaged("expiry").with_key(key)),
        // Free, and yet no fence: the counter is outside its limits, and nothing was written.
        (Some(true), None) => Err(fence_exhausted().with_key(key)),
        // Free, a fence, and yet not taken: somebody inserted a lock without asking for the key's advisory lock.
        (Some(true), Some(_)) => Ok(AcquireOutcome::Contended(Contention::default())),
        (Some(false), _) => read_held(row, key),
    }
}

fn fence_exhausted() -> LockError {
    LockError::internal("the fence counter is outside 1..=900000000000000, so no lock was taken")
        .with_hint("the counter was damaged or restored badly; use a new key or repair the counter by hand")
}

fn read_held(row: &Row, key: &Key) -> Result<AcquireOutcome> {
    let stored: Option<i64> = column(row, "stored_expires_at_ms")?;
    let expires_at = Timestamp::from_millis(stored.ok_or_else(|| error::damaged("expiry").with_key(key))?);
    if column::<Option<bool>>(row, "sound")? != Some(true) {
        return Err(error::damaged("lock id or fence").with_key(key));
    }
    if column::<Option<bool>>(row, "ours")? == Some(true) {
        let fence: Option<String> = column(row, "stored_fence")?;
        let fence = fence.and_then(|text| text.parse().ok()).ok_or_else(|| error::damaged("fence").with_key(key))?;
        return Ok(AcquireOutcome::Acquired(Lease::new(fence, expires_at)));
    }
    let now = Timestamp::from_millis(column(row, "now_ms")?);
    Ok(AcquireOutcome::Contended(Contention { free_in: Some(free_in(expires_at, now)) }))
}

fn absent(row: &Row) -> Result<AbsentReason> {
    match column::<i64>(row, "found")? {
        0 => Ok(AbsentReason::NotFound),
        1 => Ok(AbsentReason::Expired),
        _ => Err(LockError::internal("two stored locks have one lock id")
            .with_hint("the unique index on lock_id is missing; remove the duplicates, then call setup_schema()")),
    }
}

fn read_info(row: &Row) -> Result<Option<LockInfo>> {
    let time = |name: &'static str, what| {
        let millis: Option<i64> = column(row, name)?;
        millis.map(Timestamp::from_millis).ok_or_else(|| error::damaged(what))
    };
    let (expires_at, now) = (time("expires_at_ms", "expiry")?, time("now_ms", "clock")?);
    if !is_live(expires_at, now) {
        return Ok(None);
    }
    let word = |name: &'static str| column::<Option<String>>(row, name);
    let key = word("user_key")?.and_then(|text| Key::new(text).ok()).ok_or_else(|| error::damaged("key"))?;
    let lock_id =
        word("lock_id")?.and_then(|text| LockId::parse(&text).ok()).ok_or_else(|| error::damaged("lock id"))?;
    let fence = word("fence")?.and_then(|text| text.parse().ok()).ok_or_else(|| error::damaged("fence"))?;
    Ok(Some(LockInfo::new(key, lock_id, fence, time("acquired_at_ms", "time")?, expires_at, now)))
}

/// A column that the statement promises. Its absence means that a pooler or a proxy mixed up answers.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &'static str) -> Result<T> {
    row.try_get(name).map_err(|_| LockError::internal(format!("postgres answered without a usable `{name}`")))
}

impl LockBackend for PostgresBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities { backend: "postgres".into(), fencing: true, time_authority: TimeAuthority::Server }
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome> {
        let outcome = self.0.acquire(request).await;
        outcome.map_err(|error| error.with_key(request.key).with_lock_id(request.lock_id))
    }

    async fn release(&self, lock_id: &LockId) -> Result<ReleaseOutcome> {
        self.0.release(lock_id).await.map_err(|error| error.with_lock_id(lock_id))
    }

    async fn extend(&self, lock_id: &LockId, ttl: Ttl) -> Result<ExtendOutcome> {
        self.0.extend(lock_id, ttl).await.map_err(|error| error.with_lock_id(lock_id))
    }

    async fn is_locked(&self, key: &Key) -> Result<bool> {
        self.0.is_locked(key).await.map_err(|error| error.with_key(key))
    }

    async fn lookup(&self, query: Lookup<'_>) -> Result<Option<LockInfo>> {
        self.0.lookup(query).await.map_err(|error| match query {
            Lookup::Key(key) => error.with_key(key),
            Lookup::LockId(id) => error.with_lock_id(id),
        })
    }

    async fn purge_expired(&self) -> Result<u64> {
        self.0.purge().await
    }

    async fn wake(&self, key: &Key) -> WakeHint {
        match (&self.0.listener, Names::new(key)) {
            (Some(listener), Ok(names)) => listener.register(key, &names.lock).await,
            _ => WakeHint::never(),
        }
    }

    async fn health(&self) -> HealthReport {
        health::report(&self.0).await
    }
}
