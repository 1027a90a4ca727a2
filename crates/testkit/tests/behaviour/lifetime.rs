//! Who stops the servers when nobody drops them?

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use syncguard_testkit::process::{is_alive, wait_for};
use syncguard_testkit::shared::{Servers, fresh_database_at, variables};
use syncguard_testkit::{PostgresOptions, PostgresServer, RedisOptions, RedisServer};

/// Set by the test below, which runs the one above it in a process of its own and kills that process.
const HOLD: &str = "SYNCGUARD_TESTKIT_HOLD";

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let start = || (RedisServer::start(RedisOptions::new()), PostgresServer::start(PostgresOptions::new()));
    let (redis, postgres) = std::thread::spawn(start).join().unwrap();
    if std::env::var_os(HOLD).is_some() {
        println!("\npids {} {}", redis.pid(), postgres.pid());
        std::io::stdin().read_line(&mut String::new()).unwrap();
    }

    assert_eq!(redis.command(&["PING"]), "PONG");
    assert_eq!(postgres.query("SELECT 1").len(), 1);
}

#[test]
fn servers_die_with_a_test_process_that_is_killed() {
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifetime::a_server_outlives_the_thread_that_started_it", "--nocapture"])
        .env(HOLD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.starts_with("pids ")).unwrap();
    let pids: Vec<u32> = line.split_whitespace().skip(1).map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.iter().filter(|pid| is_alive(**pid)).count(), 2);

    holder.kill().unwrap();
    holder.wait().unwrap();

    wait_for("the orphans to end", Duration::from_secs(30), || {
        Ok(pids.iter().all(|pid| !is_alive(*pid)).then_some(()))
    })
    .unwrap();
}

#[test]
fn the_shared_servers_answer_at_the_exported_addresses_and_end_with_their_owner() {
    let servers = Servers::start_all().unwrap();
    let exported = servers.environment();
    let value = |variable: &str| {
        let found = exported.iter().find(|(name, _)| *name == variable).map(|(_, value)| value.clone());
        found.unwrap_or_else(|| panic!("{variable} is not exported"))
    };
    for (variable, scheme) in [
        (variables::REDIS, "redis://127.0.0.1:"),
        (variables::REDIS_TLS, "rediss://localhost:"),
        (variables::REDIS_CLUSTER, "redis+cluster://127.0.0.1:"),
        (variables::REDIS_SENTINEL, "redis+sentinel://127.0.0.1:"),
        (variables::POSTGRES, "postgres://postgres@127.0.0.1:"),
        (variables::POSTGRES_TLS, "postgres://postgres@localhost:"),
        (variables::PGBOUNCER, "postgres://postgres@127.0.0.1:"),
    ] {
        let value = value(variable);
        assert!(value.starts_with(scheme), "{variable} is {value}");
    }
    assert!(std::path::Path::new(&value(variables::REDIS_CA)).is_file());
    assert!(std::path::Path::new(&value(variables::POSTGRES_CA)).is_file());
    assert_ne!(fresh_database_at(&value(variables::POSTGRES)), fresh_database_at(&value(variables::PGBOUNCER)));
    let pids = servers.pids();
    // Redis, six of the cluster, two and three of the sentinels, PostgreSQL and its pooler; the emulator may be absent.
    assert!(pids.len() >= 14, "{} servers", pids.len());
    assert!(pids.iter().all(|pid| is_alive(*pid)));

    drop(servers);

    assert!(pids.iter().all(|pid| !is_alive(*pid)));
}
