//! PostgreSQL's own load generator, in C, sending the very same statements.

use std::process::Command;

use syncguard_testkit::PostgresServer;
use syncguard_testkit::bench::{Figure, Report};

use crate::Choice;

/// When a release notifies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notify {
    /// Never, and without asking whether anybody waits.
    Never,
    /// As this crate does.
    IfWaited,
    /// Always.
    Always,
}

/// How an operation is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// As this crate does on connections of its own.
    OneStatement,
    /// Four messages in one pipeline, as behind a pooler.
    Transaction,
    /// Only the writes: count, insert, delete. Nobody looks whether the lock is free, so it is none; but nothing that
    /// keeps a row and a counter can be faster.
    BareWrites,
}

/// Pairs per second.
pub(crate) fn pairs(server: &PostgresServer, clients: usize, choice: Choice, way: Way, notify: Notify) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("pair.sql");
    std::fs::write(&script, script_text(way, notify)).unwrap();
    let bindir = Command::new("pg_config").arg("--bindir").output().map(|output| output.stdout).unwrap_or_default();
    let bindir = String::from_utf8_lossy(&bindir).trim().to_owned();
    let program = std::path::Path::new(&bindir).join("pgbench");
    let output = Command::new(if program.exists() { program } else { "pgbench".into() })
        .args(["-n", "-M", "prepared", "-h", "127.0.0.1", "-U", "postgres", "-p", &server.port().to_string()])
        .args(["-c", &clients.to_string(), "-j", "1", "-T", &choice.seconds.to_string(), "-f"])
        .arg(&script)
        .arg("postgres")
        .output()
        .expect("pgbench is installed with the server");
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.unwrap_or_else(|| panic!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

const BARE_ACQUIRE: &str = "WITH counter AS (\
     INSERT INTO syncguard_fence_counters AS c (fence_key, fence) VALUES ('bare:' || :key, 1) \
     ON CONFLICT (fence_key) DO UPDATE SET fence = c.fence + 1 RETURNING c.fence\
     ) INSERT INTO syncguard_locks (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key) \
     SELECT 'bare-' || :key, :id, 1, 1, lpad(counter.fence::text, 15, '0'), 'bare-' || :key FROM counter";

fn script_text(way: Way, notify: Notify) -> String {
    let release = match notify {
        Notify::IfWaited => release_sql(),
        Notify::Never => replaced(
            &release_sql(),
            "pg_try_advisory_xact_lock(1397184331, hashtext(seen.tableoid || ':' || seen.key))",
            "true",
        ),
        Notify::Always => replaced(
            &release_sql(),
            "pg_try_advisory_xact_lock(1397184331, hashtext(seen.tableoid || ':' || seen.key))",
            "false",
        ),
    };
    let acquire = statement(
        include_str!("../../sql/acquire.sql"),
        &[":key", "'fence:' || :key", ":id", "30000", ":key", "NULL", "false"],
    );
    let variables = "\\set key :client_id\n\\set id random(1, 9000000000000000000)\n";
    match way {
        Way::OneStatement => format!("{variables}{acquire};\n{release};\n"),
        Way::Transaction => {
            let gate = statement(include_str!("../../sql/bounds_gate.sql"), &["'1000'", "'5000'"]);
            let begin = include_str!("../../sql/begin.sql").trim();
            format!(
                "{variables}\\startpipeline\n{begin};\n{gate};\n{acquire};\nCOMMIT;\n\\endpipeline\n\
                 \\startpipeline\n{begin};\n{gate};\n{release};\nCOMMIT;\n\\endpipeline\n"
            )
        }
        Way::BareWrites => {
            format!("{variables}{BARE_ACQUIRE};\nDELETE FROM syncguard_locks WHERE lock_id = :id::text;\n")
        }
    }
}

fn release_sql() -> String {
    statement(include_str!("../../sql/release.sql"), &[":id"])
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the statement has changed");
    text.replace(from, to)
}

/// The statement with table names and pgbench's variables put in; parameters from the highest down, so that $1 does not
/// hit $10.
fn statement(text: &str, values: &[&str]) -> String {
    let lines = text.lines().filter(|line| {
        let dropped = [" -- unless holder", " -- if many"].iter().any(|end| line.ends_with(end));
        !line.trim_start().starts_with("--") && !dropped
    });
    let lines: Vec<&str> = lines.map(|line| line.split(" -- ").next().unwrap_or(line)).collect();
    let mut text =
        lines.join(" ").replace("{locks}", "syncguard_locks").replace("{fences}", "syncguard_fence_counters");
    for (index, value) in values.iter().enumerate().rev() {
        text = text.replace(&format!("${}", index + 1), value);
    }
    text
}

/// What finding out whether anybody waits costs, and what it saves.
pub(crate) fn report_notify(server: &PostgresServer, choice: Choice, report: &mut Report) {
    println!(
        "\ncost of wake-ups in releases that nobody waits for (pgbench, pairs per second relative to no wake-ups)"
    );
    for clients in [1, 8, 32] {
        let mut rates = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..choice.rounds {
            for (rates, notify) in rates.iter_mut().zip([Notify::Never, Notify::IfWaited, Notify::Always]) {
                rates.push(pairs(server, clients, choice, Way::OneStatement, notify));
            }
        }
        let figure = |name: &str, rates: &[f64]| {
            Figure::of("throughput of releases that notify", "pairs/s", name, rates)
                .at("tasks", clients)
                .setting(choice.setting)
        };
        let [never, probing, always] = &rates;
        let asking = figure("if waited", probing).beside("never", never);
        let telling = figure("always", always).beside("never", never);
        println!("{clients:5} clients   if waited {}   always {}", asking.ratio(), telling.ratio());
        report.extend([figure("never", never), asking, telling]);
    }
}
