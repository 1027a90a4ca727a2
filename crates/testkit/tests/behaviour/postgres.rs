//! Does the testkit's PostgreSQL start, answer, die and come back as promised?

use std::time::Duration;

use syncguard_testkit::postgres::PgClient;
use syncguard_testkit::process::{is_alive, wait_for};
use syncguard_testkit::{PgBouncer, PgBouncerOptions, PostgresOptions, PostgresServer};

fn one(rows: &[Vec<Option<String>>]) -> &str {
    rows[0][0].as_deref().unwrap()
}

#[test]
fn a_postgres_answers_and_is_gone_after_the_drop() {
    let server = PostgresServer::start(PostgresOptions::new());
    let pid = server.pid();
    assert_eq!(server.query("SELECT 1, NULL, 'x'"), [[Some("1".into()), None, Some("x".into())]]);
    let refusal = server.try_query("postgres", "SELECT * FROM no_such_table").unwrap_err().to_string();
    assert!(refusal.contains("42P01"), "{refusal}");

    drop(server);

    assert!(!is_alive(pid));
}

#[test]
fn a_postgres_keeps_its_data_and_port_through_a_kill() {
    let mut server = PostgresServer::start(PostgresOptions::new().fsync());
    let port = server.port();
    server.query("CREATE TABLE t (v int)");
    server.query("INSERT INTO t VALUES (42)");
    assert_eq!(one(&server.query("SHOW fsync")), "on");

    server.kill_hard();
    assert!(server.try_query("postgres", "SELECT 1").is_err(), "nobody listens");
    server.restart();

    assert_eq!(server.port(), port);
    assert_eq!(one(&server.query("SELECT v FROM t")), "42");
}

#[test]
fn databases_do_not_see_each_other() {
    let server = PostgresServer::start(PostgresOptions::new().config("max_connections = 31"));
    assert_eq!(one(&server.query("SHOW max_connections")), "31");
    let first = server.create_database("first");
    let second = server.fresh_database();
    assert_ne!(first, second);

    server.try_query("first", "CREATE TABLE t (v int)").unwrap();

    let name = second.rsplit('/').next().unwrap();
    assert!(server.try_query(name, "SELECT * FROM t").is_err());
    assert!(server.try_query("first", "SELECT * FROM t").is_ok());
}

#[test]
fn a_paused_postgres_is_silent_until_it_is_resumed() {
    let server = PostgresServer::start(PostgresOptions::new());
    let mut client = PgClient::connect(server.port(), "postgres", "postgres").unwrap();
    server.pause();
    let (answered, answer) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || answered.send(client.query("SELECT 7").unwrap()).unwrap());

    assert!(answer.recv_timeout(Duration::from_millis(300)).is_err(), "a frozen backend answered");
    server.resume();

    assert_eq!(one(&answer.recv_timeout(Duration::from_secs(30)).unwrap()), "7");
    waiting.join().unwrap();
}

#[test]
fn a_tls_postgres_says_so_and_a_password_rule_comes_first() {
    let options = PostgresOptions::new().tls().hba("host all app 127.0.0.1/32 scram-sha-256");
    let server = PostgresServer::start(options);
    server.query("CREATE ROLE app LOGIN PASSWORD 'pw'");
    assert_eq!(one(&server.query("SHOW ssl")), "on");
    assert!(server.ca_path().is_file());

    let refusal = PgClient::connect(server.port(), "app", "postgres").unwrap_err().to_string();

    assert!(refusal.contains("password"), "{refusal}");
}

#[test]
fn pgbouncer_moves_transactions_between_server_connections() {
    let server = PostgresServer::start(PostgresOptions::new());
    let options = PgBouncerOptions::new().config("default_pool_size = 1");
    let pooler = PgBouncer::try_start(&server, &options).unwrap();
    let connect = || PgClient::connect(pooler.port(), "postgres", "postgres").unwrap();
    let (mut first, mut second) = (connect(), connect());

    let backend = "SELECT pg_backend_pid()";

    // With one server connection, two clients that stay connected share it: only transaction mode allows that.
    assert_eq!(one(&first.query(backend).unwrap()), one(&second.query(backend).unwrap()));
    let pid = pooler.pid();
    drop(pooler);
    assert!(!is_alive(pid));
}

#[test]
fn the_backends_of_a_killed_postgres_end_by_themselves() {
    let mut server = PostgresServer::start(PostgresOptions::new());
    let mut client = PgClient::connect(server.port(), "postgres", "postgres").unwrap();
    let backend: u32 = one(&client.query("SELECT pg_backend_pid()").unwrap()).parse().unwrap();
    assert!(is_alive(backend));

    server.kill_hard();

    wait_for("the backend to end", Duration::from_secs(30), || Ok((!is_alive(backend)).then_some(()))).unwrap();
}

#[test]
fn a_stepped_clock_moves_the_time_of_postgres_and_survives_a_restart() {
    let mut server = PostgresServer::start(PostgresOptions::new().steppable_clock());
    let seconds = |server: &PostgresServer| -> i64 {
        one(&server.query("SELECT extract(epoch FROM clock_timestamp())::bigint")).parse().unwrap()
    };
    let mut client = PgClient::connect(server.port(), "postgres", "postgres").unwrap();
    client.query("CREATE TEMP TABLE t AS SELECT clock_timestamp() AS start").unwrap();
    let before = seconds(&server);

    server.step_clock(3_600_000);

    let moved = client.query("SELECT clock_timestamp() - start > interval '59 minutes' FROM t").unwrap();
    assert_eq!(one(&moved), "t", "a connection from before the step");
    server.restart();
    assert!((3600..3700).contains(&(seconds(&server) - before)), "a new server process");
}
