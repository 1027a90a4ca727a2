//! What should an operator know about this Redis?
//!
//! Whether it answers, lets us in and runs the scripts; and whether its settings keep the fences: eviction and missing
//! persistence lose counters, replication alone does not save them.

use redis::{Cmd, Pipeline, Value};
use syncguard_core::time::{Clock, SystemClock};
use syncguard_core::{ErrorCode, HealthReport, HealthStatus, LockId};

use crate::builder::Address;
use crate::connect::{Connector, Target};
use crate::error::CallError;
use crate::operations::{Operations, scan};
use crate::pool::Pool;
use crate::router::Master;
use crate::{reply, script};

pub(crate) async fn check(operations: &Operations) -> HealthReport {
    let mut report = HealthReport::default();
    let masters = match operations.router.masters().await {
        Ok(masters) => masters,
        Err(error) => {
            fail(&mut report, "reachable", error);
            return report;
        }
    };
    let several = masters.len() > 1;
    for master in &masters {
        let name = if several { format!(" ({})", master.pool().connector().name()) } else { String::new() };
        server(operations, master.pool(), &name, &mut report).await;
    }
    scripts(operations, &mut report).await;
    counters(operations, &masters, &mut report).await;
    report
}

fn fail(report: &mut HealthReport, name: impl Into<String>, error: CallError) {
    let error = error.into_lock_error();
    let line = report.push(HealthStatus::Fail, name.into(), error.to_string());
    if let Some(hint) = error.hint() {
        line.hint(hint.to_owned());
    }
}

async fn server(operations: &Operations, pool: &Pool, suffix: &str, report: &mut HealthReport) {
    let (offset, error) = match clock(operations, pool).await {
        Ok(clock) => clock,
        Err(error) => return fail(report, format!("reachable{suffix}"), error),
    };
    report.push(HealthStatus::Pass, format!("reachable{suffix}"), pool.connector().name());
    report.push(HealthStatus::Pass, format!("authenticated{suffix}"), "the server answers commands");
    let (status, detail) = encryption(pool.connector());
    let line = report.push(status, format!("encryption{suffix}"), detail);
    if status != HealthStatus::Pass {
        line.hint("use rediss:// (or rediss+cluster://, rediss+sentinel://)");
    }
    report.push(
        HealthStatus::Info,
        format!("clock{suffix}"),
        format!("the server is {offset} ms ahead of this machine (± {error} ms); leases live by the server's"),
    );
    let mut info = Cmd::new();
    info.arg("INFO");
    match pool.command(&info, operations.timeout).await {
        Ok(Value::BulkString(bytes)) => settings(&Info(String::from_utf8_lossy(&bytes).into_owned()), suffix, report),
        Err(error) if error.word() == Some("NOPERM") => {
            report
                .push(HealthStatus::Info, format!("settings{suffix}"), "this user may not read INFO")
                .hint("grant +info to see persistence, eviction and replication here");
        }
        Ok(_) => {}
        Err(error) => fail(report, format!("settings{suffix}"), error),
    }
}

/// How the way to a server is protected. A certificate is always checked.
fn encryption(connector: &Connector) -> (HealthStatus, String) {
    match (&connector.target, connector.tls.is_some()) {
        (Target::Address(Address::Unix(_)), _) => (HealthStatus::Pass, "Unix socket".to_owned()),
        (Target::Address(Address::Tcp { host, .. }), true) => {
            (HealthStatus::Pass, format!("TLS, certificate verified for {host}"))
        }
        (Target::Master { .. }, true) => {
            (HealthStatus::Pass, "TLS, certificate verified for the master that the sentinels name".to_owned())
        }
        (Target::Address(address), false) if address.is_local() => {
            (HealthStatus::Pass, "plaintext on loopback".to_owned())
        }
        (Target::Address(_), false) => (HealthStatus::Warn, "plaintext to another machine".to_owned()),
        (Target::Master { .. }, false) => {
            (HealthStatus::Info, "plaintext, to the master that the sentinels name".to_owned())
        }
    }
}

/// How far the server's clock is ahead, in ms, and how far that may be wrong: the quickest of a few answers knows best.
async fn clock(operations: &Operations, pool: &Pool) -> Result<(i64, i64), CallError> {
    let mut time = Cmd::new();
    time.arg("TIME");
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..5 {
        let before = SystemClock.wall().as_millis();
        let answer = pool.command(&time, operations.timeout).await?;
        let after = SystemClock.wall().as_millis();
        let Ok(now) = reply::time(&answer) else { continue };
        // Both clocks are read in whole milliseconds: that is a part of the error too.
        let (offset, error) = (now.as_millis() - i64::midpoint(before, after), (after - before).abs() / 2 + 1);
        if best.is_none_or(|(_, known)| error < known) {
            best = Some((offset, error));
        }
    }
    best.ok_or(CallError::Timeout)
}

struct Info(String);

impl Info {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

fn settings(info: &Info, suffix: &str, report: &mut HealthReport) {
    if let Some(version) = info.field("valkey_version").or(info.field("redis_version")) {
        let (status, product) = (HealthStatus::Info, info.field("server_name").unwrap_or("redis"));
        report.push(status, format!("version{suffix}"), format!("{product} {version}"));
    }
    role(info, suffix, report);
    match info.field("maxmemory_policy") {
        Some("noeviction") => {
            report.push(HealthStatus::Pass, format!("eviction{suffix}"), "noeviction");
        }
        // Volatile policies spare counters, which have no expiry, but not locks.
        Some(policy) if policy.starts_with("volatile") => {
            report
                .push(HealthStatus::Warn, format!("eviction{suffix}"), format!("{policy}: live locks may be evicted"))
                .hint("set maxmemory-policy noeviction");
        }
        Some(policy) => {
            report
                .push(
                    HealthStatus::Fail,
                    format!("eviction{suffix}"),
                    format!("{policy}: fence counters may be evicted and repeat"),
                )
                .hint("set maxmemory-policy noeviction");
        }
        None => {}
    }
    persistence(info, suffix, report);
}

fn role(info: &Info, suffix: &str, report: &mut HealthReport) {
    let replicas = info.field("connected_slaves").unwrap_or("0");
    match info.field("role") {
        Some("master") => {
            report.push(HealthStatus::Pass, format!("role{suffix}"), format!("master with {replicas} replicas"));
            lagging_replicas(info, suffix, report);
        }
        Some(_) => {
            report
                .push(HealthStatus::Fail, format!("role{suffix}"), "a replica: it takes no writes")
                .hint("point the url at the master, or use redis+sentinel://");
        }
        None => {}
    }
}

/// A replica that is not in step has neither the newest locks nor the newest fences if it is promoted.
fn lagging_replicas(info: &Info, suffix: &str, report: &mut HealthReport) {
    let replicas: Vec<Replica<'_>> = info.0.lines().filter_map(Replica::parse).collect();
    if replicas.is_empty() {
        return;
    }
    let behind = replicas.iter().filter(|replica| !replica.is_in_step()).count();
    if behind == 0 {
        report.push(HealthStatus::Pass, format!("replicas{suffix}"), format!("{} in step", replicas.len()));
        return;
    }
    report
        .push(HealthStatus::Warn, format!("replicas{suffix}"), format!("{behind} of {} not in step", replicas.len()))
        .hint("a failover to it loses locks and may repeat fences: see `INFO replication`, or use fence_floor=clock");
}

/// `slave0:ip=…,port=…,state=online,offset=…,lag=0`
struct Replica<'a> {
    state: &'a str,
    lag_seconds: i64,
}

impl<'a> Replica<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (name, fields) = line.split_once(':')?;
        let number = name.strip_prefix("slave")?;
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let field = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let lag_seconds = field("lag").and_then(|lag| lag.trim().parse().ok()).unwrap_or(0);
        Some(Self { state: field("state").unwrap_or("online"), lag_seconds })
    }

    /// Replicas report once a second.
    fn is_in_step(&self) -> bool {
        self.state == "online" && (0..=5).contains(&self.lag_seconds)
    }
}

fn persistence(info: &Info, suffix: &str, report: &mut HealthReport) {
    let aof = info.field("aof_enabled") == Some("1");
    if aof {
        let failing = info.field("aof_last_write_status").is_some_and(|status| status != "ok");
        let (status, detail) = if failing {
            (HealthStatus::Fail, "append-only file: the last write failed")
        } else {
            (HealthStatus::Pass, "append-only file")
        };
        report.push(status, format!("persistence{suffix}"), detail);
        return;
    }
    report
        .push(HealthStatus::Warn, format!("persistence{suffix}"), "no append-only file: a crash may repeat fences")
        .hint("set appendonly yes (and appendfsync always against power cuts), or use fence_floor=clock");
}

/// An id that nobody has: the script runs, finds nothing and writes nothing.
async fn scripts(operations: &Operations, report: &mut HealthReport) {
    let probe = LockId::random();
    let index = operations.names.index(&probe);
    match operations.router.script(&script::LOOKUP, &[&index, &index], &[], operations.timeout).await {
        Ok(_) => {
            report.push(HealthStatus::Pass, "scripts", "run");
        }
        Err(error) => fail(report, "scripts", error),
    }
}

/// A health check makes no more than so many steps over the names of a server: it sees about 20 000 of them.
const STEPS: u32 = 40;

/// What a bounded look at the counters found.
#[derive(Default)]
struct Counters {
    seen: u64,
    /// Those that Redis will delete by itself.
    expiring: u64,
    /// Whether names were left that nobody looked at.
    is_partial: bool,
}

/// Counters stay for ever: how many there are is what a fleet pays, and one that expires repeats its fences.
async fn counters(operations: &Operations, masters: &[Master<'_>], report: &mut HealthReport) {
    let mut found = Counters::default();
    for master in masters {
        match look_at_counters(operations, master.pool(), &mut found).await {
            Ok(()) => {}
            Err(error) if error.code() == ErrorCode::AuthFailed => {
                report
                    .push(HealthStatus::Info, "counters", "this user may not look at them")
                    .hint("grant +scan and +pttl to see whether a fence counter expires");
                return;
            }
            Err(error) => {
                report.push(HealthStatus::Warn, "counters", error.to_string());
                return;
            }
        }
    }
    let seen = if found.is_partial { format!("at least {}", found.seen) } else { found.seen.to_string() };
    if found.expiring > 0 {
        let detail = format!("{} of {seen} fence counters have an expiry: fences will repeat", found.expiring);
        report.push(HealthStatus::Fail, "counters", detail).hint("PERSIST them, and find out who set it");
        return;
    }
    report.push(HealthStatus::Pass, "counters", format!("{seen} fence counters, none expires"));
}

async fn look_at_counters(operations: &Operations, pool: &Pool, found: &mut Counters) -> syncguard_core::Result<()> {
    let pattern = operations.names.counters();
    let mut cursor = scan::START.to_owned();
    for _ in 0..STEPS {
        let step = scan::step(operations, pool, &pattern, &cursor, scan::STEP).await?;
        if !step.counters.is_empty() {
            let mut commands = Pipeline::with_capacity(step.counters.len());
            for name in &step.counters {
                commands.cmd("PTTL").arg(name);
            }
            let replies = pool.commands(&commands, operations.timeout).await.map_err(CallError::into_lock_error)?;
            for reply in replies {
                match reply {
                    Value::Int(left) => {
                        found.seen += 1;
                        found.expiring += u64::from(left >= 0);
                    }
                    Value::ServerError(error) => return Err(CallError::Redis(error.into()).into_lock_error()),
                    _ => {}
                }
            }
        }
        let Some(next) = step.next else { return Ok(()) };
        cursor = next;
    }
    found.is_partial = true;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_not_in_step_is_a_warning() {
        let status = |replica: &str| {
            let info = Info(format!("role:master\r\nconnected_slaves:1\r\n{replica}\r\nslave_read_only:1\r\n"));
            let mut report = HealthReport::default();
            role(&info, "", &mut report);
            report.worst()
        };
        assert_eq!(status("slave0:ip=127.0.0.1,port=1,state=online,offset=5,lag=1"), HealthStatus::Pass);
        assert_eq!(status("slave0:ip=127.0.0.1,port=1,state=online,offset=5,lag=60"), HealthStatus::Warn);
        assert_eq!(status("slave0:ip=127.0.0.1,port=1,state=wait_bgsave,offset=0,lag=0"), HealthStatus::Warn);
    }
}
