//! How does an operator see all locks, and ask for one?
//!
//! A listing looks at every name of every server that takes writes, one bounded step at a time, and at a pace at which
//! those who lock hardly notice it.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};

use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use syncguard_core::{
    AskOutcome, Counts, Cursor, ErrorCode, Inspect, ListRequest, LockError, LockId, LockInfo, Page, Result, Timestamp,
    WakeHint,
};
use tokio::time::Instant;

use crate::backend::RedisBackend;
use crate::error::CallError;
use crate::operations::{Located, Operations, scan};
use crate::pool::Pool;
use crate::reply::{self, Stored};
use crate::router::Master;
use crate::script;

/// So many names are known apart while they are counted. A scan may meet a name twice while the server makes room;
/// among more names than these that hardly matters, and the memory stays bounded.
const TOLD_APART: usize = 100_000;

impl Inspect for RedisBackend {
    async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        self.0.list(request).await
    }

    async fn count(&self) -> Result<Counts> {
        self.0.count().await
    }

    async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        self.0.ask(lock_id).await
    }

    /// Releases are heard; acquisitions and renewals are not published, and watchers find them by their schedule.
    async fn changes(&self) -> WakeHint {
        match &self.0.overhearer {
            Some(overhearer) => overhearer.subscribe(&self.0.names.pattern("")).await,
            None => WakeHint::never(),
        }
    }
}

/// Where a listing goes on.
struct Place {
    /// Which of the servers.
    server: usize,
    cursor: String,
}

impl Operations {
    pub(crate) async fn list(&self, request: ListRequest<'_>) -> Result<Page> {
        let masters = self.router.masters().await.map_err(CallError::into_lock_error)?;
        let place = match request.cursor {
            None => Place { server: 0, cursor: scan::START.to_owned() },
            Some(cursor) => {
                self.pace.wait().await;
                place(cursor, &masters)?
            }
        };
        let Some(master) = masters.get(place.server) else { return Ok(Page::new(Vec::new(), None)) };
        let began = Instant::now();
        // Read first: if a connection is replaced under this step, the next one must not go on from it.
        let replaced = master.pool().replaced();
        let pattern = self.names.pattern(request.prefix);
        let step = scan::step(self, master.pool(), &pattern, &place.cursor, request.page_size).await?;
        let (values, now) = self.values(master.pool(), step.locks).await?;
        let locks = values.iter().filter_map(|(name, value)| self.live(name, value, now));
        let locks = locks.filter(|info| info.reveal().key.as_str().starts_with(request.prefix)).collect();
        self.pace.took(began.elapsed());
        let next = match step.next {
            Some(cursor) => Some(cursor_at(master, replaced, &cursor)),
            None => masters.get(place.server + 1).map(|next| cursor_at(next, next.pool().replaced(), scan::START)),
        };
        Ok(Page::new(locks, next))
    }

    pub(crate) async fn count(&self) -> Result<Counts> {
        let masters = self.router.masters().await.map_err(CallError::into_lock_error)?;
        let pattern = self.names.pattern("");
        let mut counts = Counts::default();
        let mut seen = HashSet::new();
        for master in &masters {
            let mut cursor = scan::START.to_owned();
            loop {
                let began = Instant::now();
                let mut step = scan::step(self, master.pool(), &pattern, &cursor, scan::STEP).await?;
                step.locks.retain(|(_, name)| is_new(&mut seen, name));
                step.counters.retain(|name| is_new(&mut seen, name));
                counts.counters += u64::try_from(step.counters.len()).unwrap_or(0);
                let (values, now) = self.values(master.pool(), step.locks).await?;
                let live = values.iter().filter(|(name, value)| self.live(name, value, now).is_some()).count();
                counts.locks += u64::try_from(live).unwrap_or(0);
                self.pace.took(began.elapsed());
                let Some(next) = step.next else { break };
                cursor = next;
                self.pace.wait().await;
            }
        }
        Ok(counts)
    }

    pub(crate) async fn ask(&self, lock_id: &LockId) -> Result<AskOutcome> {
        let Some(Located { lock, index }) = self.locate(lock_id).await? else { return Ok(AskOutcome::Absent) };
        let answer = self.router.script(&script::ASK, &[&lock, &index], &[lock_id.as_str()], self.timeout).await;
        reply::ask(&answer.map_err(CallError::into_lock_error)?)
    }

    /// The lock that lies there, if it is one, alive, and lies where its key belongs.
    fn live(&self, name: &str, value: &Value, now: Timestamp) -> Option<LockInfo> {
        let stored = Stored::parse(value).ok().flatten().filter(|stored| stored.is_live(now))?;
        let info = stored.info(now).ok()?;
        self.names.lock(info.reveal().key).is_ok_and(|own| own == name).then_some(info)
    }

    /// What lies under these names, and the time just after it was read: no lock is younger than its look.
    async fn values(&self, pool: &Pool, names: Vec<(usize, String)>) -> Result<(Vec<(String, Value)>, Timestamp)> {
        // Names of one prefix share a slot; MGET takes no others on a cluster.
        let mut groups: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (prefix, name) in names {
            groups.entry(prefix).or_default().push(name);
        }
        let mut commands = Pipeline::with_capacity(groups.len() + 1);
        for names in groups.values() {
            commands.cmd("MGET").arg(names);
        }
        commands.cmd("TIME");
        let mut replies = pool.commands(&commands, self.timeout).await.map_err(CallError::into_lock_error)?;
        let now = reply::time(&replies.pop().unwrap_or(Value::Nil))?;
        let mut values = Vec::new();
        for (names, reply) in groups.into_values().zip(replies) {
            match reply {
                Value::Array(found) => values.extend(names.into_iter().zip(found)),
                Value::ServerError(error) => {
                    let error = CallError::Redis(error.into());
                    let moves = [ServerErrorKind::Moved, ServerErrorKind::Ask, ServerErrorKind::TryAgain];
                    if !moves.into_iter().any(|kind| error.is_server(kind)) {
                        return Err(error.into_lock_error());
                    }
                    self.values_of_moving(names, &mut values).await?;
                }
                _ => return Err(LockError::internal("redis answered MGET with something else")),
            }
        }
        Ok((values, now))
    }

    /// Their slot is on its way to another server: each is looked for where it is now.
    async fn values_of_moving(&self, names: Vec<String>, values: &mut Vec<(String, Value)>) -> Result<()> {
        for name in names {
            let mut get = Cmd::new();
            get.arg("GET").arg(&name);
            match self.router.command(&get, &name, self.timeout).await {
                Ok(value) => values.push((name, value)),
                Err(error) if error.word() == Some("WRONGTYPE") => {}
                Err(error) => return Err(error.into_lock_error()),
            }
        }
        Ok(())
    }
}

fn is_new(seen: &mut HashSet<u64>, name: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let hash = hasher.finish();
    if seen.len() < TOLD_APART { seen.insert(hash) } else { !seen.contains(&hash) }
}

fn cursor_at(master: &Master<'_>, replaced: usize, cursor: &str) -> Cursor {
    Cursor::new(format!("{cursor} {replaced} {}", master.pool().connector().name()))
}

/// Where a cursor leads today. A server that has restarted, or that another one stands in for, keeps its names in
/// another order: it is listed again from its beginning. If it is gone, so is the order of the servers.
fn place(cursor: &Cursor, masters: &[Master<'_>]) -> Result<Place> {
    let parts: Vec<&str> = cursor.as_str().splitn(3, ' ').collect();
    let [cursor, replaced, name] = parts.as_slice() else { return Err(not_ours()) };
    if cursor.is_empty() || !cursor.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(not_ours());
    }
    let replaced: usize = replaced.parse().map_err(|_| not_ours())?;
    let server = masters.iter().position(|master| master.pool().connector().name() == *name);
    let goes_on = server.is_some_and(|server| masters[server].pool().replaced() == replaced);
    let cursor = if goes_on { *cursor } else { scan::START };
    Ok(Place { server: server.unwrap_or(0), cursor: cursor.to_owned() })
}

fn not_ours() -> LockError {
    LockError::new(ErrorCode::InvalidArgument, "this cursor was not made by the redis backend")
        .with_hint("begin the listing again without a cursor")
}
