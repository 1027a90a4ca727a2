//! Is this backend fit to carry locks?
//!
//! The backend's own report, one line per check, after the two that are the same everywhere: a probe lock on a reserved
//! key, and the difference between the backend's clock and ours.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use syncguard::{
    Clock, HealthCheck, HealthReport, HealthStatus, Key, LockBackend, LockError, Locker, Lookup, RedactedUrl,
    SystemClock, TimeAuthority,
};

use crate::args::DoctorArgs;
use crate::config::{Backend, SHARE_ONE};
use crate::exit::{self, Failure};
use crate::output::{ERROR, GOOD, HINT, Output, WARNING, escape};

/// Nobody else's locks live under this name.
const PROBE_KEY: &str = "syncguard:doctor:probe";
const ROUND_TRIPS: usize = 8;
/// Enough for a slow link; a probe that hangs must not.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Serialize)]
struct Report {
    ok: bool,
    backend: String,
    checks: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: String,
    status: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

pub(crate) async fn doctor(args: &DoctorArgs, backend: &Backend, output: Output) -> Result<u8, Failure> {
    let mut report = HealthReport::default();
    if tokio::time::timeout(LIMIT, examine(backend, &mut report)).await.is_err() {
        let limit = LIMIT.as_secs();
        report
            .push(HealthStatus::Fail, "time", format!("the checks did not end within {limit} s"))
            .hint("the backend answers slowly or not at all; check the network between here and there");
    }
    let worst = report.worst();
    let failed = worst == HealthStatus::Fail || (args.strict && worst == HealthStatus::Warn);
    print(&report, backend, !failed, output);
    Ok(if failed { exit::NO } else { exit::OK })
}

async fn examine(backend: &Backend, report: &mut HealthReport) {
    if let Some(detail) = backend.two_stores() {
        report.push(HealthStatus::Info, "another store", detail).hint(SHARE_ONE);
    }
    if let Some(path) = backend.missing_file() {
        // Opening it would make it, and a look must not change what is looked at.
        let detail = format!("{} does not exist yet; the first lock makes it", path.display());
        report.push(HealthStatus::Info, "store", detail);
        return;
    }
    let opened = match backend.options.only_existing(true).open(&backend.url).await {
        Ok(opened) => opened,
        Err(error)
            if !backend.url.contains("auto_create_tables=")
                && error.hint().is_some_and(|hint| hint.starts_with(NOT_CREATED)) =>
        {
            let detail = format!("{error} yet; the first lock makes them, or the SQL of `syncguard schema`");
            report.push(HealthStatus::Info, "store", detail);
            return;
        }
        Err(error) => return fail(report, "connect", &error),
    };
    report.push(HealthStatus::Pass, "connect", "the backend was opened");
    let own = opened.health().await;
    let locker = Locker::new(opened);
    if !has(&own, "probe") {
        probe(&locker, report, !has(&own, "clock")).await;
    }
    let counted = has(&own, "counters") || has(&own, "contents");
    report.checks.extend(own.checks);
    if !counted {
        count(&locker, report).await;
    }
}

/// How many keys were ever locked: counters stay, and are what a fleet pays for.
async fn count(locker: &Locker, report: &mut HealthReport) {
    let Some(inspector) = locker.backend().inspector() else { return };
    match inspector.count().await {
        Ok(counts) => {
            let detail = format!("{} live locks, {} fence counters", counts.locks, counts.counters);
            report.push(HealthStatus::Info, "counters", detail);
        }
        Err(error) => {
            report.push(HealthStatus::Info, "counters", format!("not counted: {error}"));
        }
    }
}

/// How the hint begins when tables are missing that were not to be created.
const NOT_CREATED: &str = "auto_create_tables is off";

fn has(report: &HealthReport, word: &str) -> bool {
    report.checks.iter().any(|check| check.name.contains(word))
}

fn fail(report: &mut HealthReport, name: &'static str, error: &LockError) {
    let failure = Failure::from_lock(error, exit::Stage::Opening);
    let text = std::iter::once(failure.message).chain(failure.details).collect::<Vec<_>>().join("; ");
    let line = report.push(HealthStatus::Fail, name, text);
    if let Some(hint) = error.hint() {
        line.hint(hint.to_owned());
    }
}

/// A whole life of one lock, and the clock while it lives unless the backend looked at it.
async fn probe(locker: &Locker, report: &mut HealthReport, with_clock: bool) {
    let request = locker.lock(PROBE_KEY).ttl(Duration::from_secs(10)).timeout(Duration::from_secs(5));
    let guard = match request.acquire().await {
        Ok(guard) => guard,
        Err(error) => return fail(report, "probe lock", &error),
    };
    let clock = if with_clock { measure_clock(locker).await } else { Ok(None) };
    let life = async {
        // A lock that cannot be extended cannot be released either, and the answer to that is shown.
        let _ = guard.extend(Duration::from_secs(10)).await?;
        guard.release().await
    };
    match life.await {
        Ok(outcome) if outcome.is_released() => {
            report.push(
                HealthStatus::Pass,
                "probe lock",
                format!("acquired with fence {}, extended, released", guard.fence()),
            );
        }
        Ok(_) => {
            report.push(HealthStatus::Fail, "probe lock", "it was gone when it was to be released");
        }
        Err(error) => fail(report, "probe lock", &error),
    }
    match clock {
        Ok(Some(clock)) => judge_clock(clock, locker.backend().capabilities().time_authority, report),
        Ok(None) => {}
        Err(error) => fail(report, "clock", &error),
    }
}

/// The backend's clock minus ours, and how wrong that may be.
#[derive(Clone, Copy, Debug)]
struct Offset {
    millis: i64,
    error: i64,
}

async fn measure_clock(locker: &Locker) -> Result<Option<Offset>, LockError> {
    let key = Key::new(PROBE_KEY)?;
    let mut best: Option<Offset> = None;
    for _ in 0..ROUND_TRIPS {
        let (sent, start) = (SystemClock.wall().as_millis(), SystemClock.boot());
        let Some(info) = locker.backend().lookup(Lookup::Key(&key)).await? else { return Ok(best) };
        let round_trip = i64::try_from(SystemClock.boot().since(start).as_millis()).unwrap_or(i64::MAX);
        // Both clocks are cut to whole milliseconds, hence the one.
        let error = round_trip / 2 + 1;
        let millis = info.observed_at.as_millis().saturating_sub(sent.saturating_add(round_trip / 2));
        if best.is_none_or(|best| error < best.error) {
            best = Some(Offset { millis, error });
        }
    }
    Ok(best)
}

/// `0.7 s behind ours`
fn distance(millis: i64) -> String {
    let size = millis.unsigned_abs();
    let way = if millis < 0 { "behind" } else { "ahead of" };
    match size {
        0 => "as ours".to_owned(),
        1..100 => format!("{size} ms {way} ours"),
        _ => format!("{}.{} s {way} ours", (size + 50) / 1000, (size + 50) % 1000 / 100),
    }
}

fn judge_clock(offset: Offset, authority: TimeAuthority, report: &mut HealthReport) {
    let detail = format!("the backend's clock is {} (± {} ms)", distance(offset.millis), offset.error);
    if authority == TimeAuthority::Server {
        report.push(HealthStatus::Info, "clock", format!("{detail}; the backend's alone counts"));
        return;
    }
    let (size, error) = (offset.millis.saturating_abs(), offset.error);
    let sync = "synchronise this machine's clock (chrony, systemd-timesyncd): leases are judged by it";
    if size - error >= 500 {
        report.push(HealthStatus::Fail, "clock", detail).hint(sync);
    } else if size + error >= 500 && size >= 200 {
        report.push(HealthStatus::Warn, "clock", format!("{detail}; inconclusive")).hint(sync);
    } else if size >= 200 {
        report.push(HealthStatus::Warn, "clock", detail).hint(sync);
    } else {
        report.push(HealthStatus::Pass, "clock", detail);
    }
}

fn print(report: &HealthReport, backend: &Backend, ok: bool, output: Output) {
    let shown = RedactedUrl::new(&backend.url).to_string();
    if output.json {
        let checks = report.checks.iter().map(line).collect();
        output.object(&Report { ok, backend: shown, checks });
        return;
    }
    let width = report.checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = format!("backend {}", escape(&shown));
    for check in &report.checks {
        let style = match check.status {
            HealthStatus::Info => HINT,
            HealthStatus::Pass => GOOD,
            HealthStatus::Warn => WARNING,
            _ => ERROR,
        };
        let (status, name, detail) = (word(check.status), &check.name, escape(&check.detail));
        let _ = write!(text, "\n{style}{status:<4}{style:#}  {name:<width$}  {detail}");
        if let Some(hint) = &check.hint {
            // Some are SQL to be copied.
            let hint: Vec<String> = exit::for_a_shell(hint).lines().map(escape).collect();
            let _ = write!(text, "\n      {:<width$}  {HINT}hint:{HINT:#} {}", "", hint.join("\n"));
        }
    }
    output.data(&text);
}

fn line(check: &HealthCheck) -> Line {
    Line {
        name: check.name.clone().into_owned(),
        status: word(check.status),
        detail: check.detail.clone(),
        hint: check.hint.as_deref().map(exit::for_a_shell),
    }
}

fn word(status: HealthStatus) -> &'static str {
    match status {
        HealthStatus::Info => "INFO",
        HealthStatus::Pass => "PASS",
        HealthStatus::Warn => "WARN",
        // A status that this command does not know yet is not one to be calm about.
        _ => "FAIL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_fails_only_when_it_is_certainly_wrong_and_only_where_it_counts() {
        let judge = |millis, error, authority| {
            let mut report = HealthReport::default();
            judge_clock(Offset { millis, error }, authority, &mut report);
            report.checks[0].status
        };
        assert_eq!(distance(-700), "0.7 s behind ours");
        assert_eq!((distance(12), distance(960)), ("12 ms ahead of ours".to_owned(), "1.0 s ahead of ours".to_owned()));
        let client = TimeAuthority::Client;
        assert_eq!(judge(20, 5, client), HealthStatus::Pass);
        assert_eq!(judge(-250, 5, client), HealthStatus::Warn);
        assert_eq!(judge(550, 5, client), HealthStatus::Fail);
        assert_eq!(judge(-550, 100, client), HealthStatus::Warn, "450 ms would still be possible");
        assert_eq!(judge(9_999, 5, TimeAuthority::Server), HealthStatus::Info);
    }
}
