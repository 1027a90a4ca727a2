//! What should an operator know about this Redis?
//!
//! Whether it answers, lets us in and runs the scripts; and whether its settings keep the fences: eviction and missing
//! persistence lose counters, replication alone does not save them.

use redis::{Cmd, Value};
use syncguard_core::time::{Clock, SystemClock};
use syncguard_core::{HealthReport, HealthStatus, LockId};

use crate::error::CallError;
use crate::operations::Operations;
use crate::pool::Pool;
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
    let before = SystemClock.wall();
    let mut time = Cmd::new();
    time.arg("TIME");
    let answer = match pool.command(&time, operations.timeout).await {
        Ok(answer) => answer,
        Err(error) => return fail(report, format!("reachable{suffix}"), error),
    };
    let after = SystemClock.wall();
    report.push(HealthStatus::Pass, format!("reachable{suffix}"), pool.connector().name());
    report.push(HealthStatus::Pass, format!("authenticated{suffix}"), "the server answers commands");
    if let Ok(now) = reply::time(&answer) {
        let middle = i64::midpoint(before.as_millis(), after.as_millis());
        let offset = now.as_millis() - middle;
        report.push(
            HealthStatus::Info,
            format!("clock{suffix}"),
            format!("the server is {offset} ms ahead of this machine; its clock decides"),
        );
    }
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
        }
        Some(_) => {
            report
                .push(HealthStatus::Fail, format!("role{suffix}"), "a replica: it takes no writes")
                .hint("point the url at the master, or use redis+sentinel://");
        }
        None => {}
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
