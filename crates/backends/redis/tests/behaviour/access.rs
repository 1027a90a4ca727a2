//! Who gets in, how, and what is said to those who do not?

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use crate::support::{attempt, eventually, key, refusal, take, ttl};
use syncguard_core::{ErrorCode, HealthStatus, LockBackend, LockError, Lookup, Ttl};
use syncguard_redis::{RedisAddress, RedisBackend, RedisBuilder};
use syncguard_testkit::rogue::Rogue;
use syncguard_testkit::{RedisOptions as Server, RedisServer, free_port};

async fn cycle(backend: &RedisBackend) {
    let held = take(backend, &key("k")).await;
    assert!(backend.extend(&held.id, Ttl::DEFAULT).await.unwrap().is_extended());
    assert!(backend.is_locked(&key("k")).await.unwrap());
    assert!(backend.lookup(Lookup::LockId(&held.id)).await.unwrap().is_some());
    assert!(attempt(backend, &key("k"), Ttl::DEFAULT).await.unwrap().is_err());
    assert!(backend.release(&held.id).await.unwrap().is_released());
}

async fn failure(url: &str) -> LockError {
    RedisBackend::connect(url).await.expect_err("the connection fails")
}

/// Every form in which an error can be printed.
fn printed(error: &LockError) -> String {
    format!("{error} {error:?} {error:#?} {:?}", error.hint())
}

#[tokio::test]
async fn a_greeting_without_end_is_given_up_before_it_fills_the_memory() {
    let endless = [b"$2147483647\r\n".as_slice(), &vec![b'x'; 8 << 20]].concat();
    let rogue = Rogue::start(move |_| endless.clone());
    let error = failure(&format!("redis://127.0.0.1:{}/?connect_timeout=30s", rogue.port())).await;
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error}");
    assert!(error.to_string().contains("does not speak the redis protocol"), "{error}");
}

#[tokio::test]
async fn tls_with_the_right_authority_works_and_without_it_is_refused_by_name() {
    let server = RedisServer::start(Server::new().tls());
    let url = format!("{}?tls_ca={}&tls=required", server.tls_url(), server.ca_path().display());
    let backend = RedisBackend::connect(&url).await.unwrap();
    cycle(&backend).await;
    let report = backend.health().await;
    let line = report.checks.iter().find(|check| check.name == "encryption").unwrap();
    assert!(line.status == HealthStatus::Pass && line.detail.starts_with("TLS, certificate verified for "), "{line:?}");

    let untrusted = failure(&server.tls_url()).await;
    // A machine without system roots fails earlier, by saying so.
    assert!(
        untrusted.to_string().contains("TLS check") || untrusted.to_string().contains("trusted certificates"),
        "{untrusted}"
    );

    let other = RedisServer::start(Server::new().tls());
    let wrong = failure(&format!("{}?tls_ca={}", server.tls_url(), other.ca_path().display())).await;
    assert_eq!(wrong.code(), ErrorCode::ServiceUnavailable);
    assert!(wrong.to_string().contains("TLS check"), "{wrong}");
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused() {
    let server = RedisServer::start(Server::new().tls());
    let url = format!("rediss://127.0.0.2:{}/?tls_ca={}", server.tls_port(), server.ca_path().display());
    let error = failure(&url).await;
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
}

#[tokio::test]
async fn client_certificates_are_shown_when_the_server_asks() {
    let server = RedisServer::start(Server::new().tls_with_client_certs());
    let url = format!("{}?tls_ca={}", server.tls_url(), server.ca_path().display());

    let without = failure(&url).await;
    assert_eq!(without.code(), ErrorCode::ServiceUnavailable, "{without}");

    let (cert, secret) = (server.client_cert_path().display(), server.client_key_path().display());
    cycle(&RedisBackend::connect(&format!("{url}&tls_cert={cert}&tls_key={secret}")).await.unwrap()).await;
}

#[tokio::test]
async fn tls_and_plaintext_never_stand_in_for_each_other() {
    let server = RedisServer::start(Server::new().tls());
    let ca = server.ca_path().display();

    let tls_to_plain = failure(&format!("rediss://localhost:{}/?tls_ca={ca}", server.port())).await;
    assert_eq!(tls_to_plain.code(), ErrorCode::ServiceUnavailable, "{tls_to_plain}");

    let plain_to_tls = failure(&format!("redis://127.0.0.1:{}/?connect_timeout=1s", server.tls_port())).await;
    assert!(plain_to_tls.is_transient(), "{plain_to_tls}");
}

#[tokio::test]
async fn certificate_files_are_read_at_once_and_not_at_the_first_lock() {
    for query in ["tls_ca=/nonexistent.pem", "tls_ca=/etc/hostname", "tls_cert=/nonexistent&tls_key=/nonexistent"] {
        let error = failure(&format!("rediss://127.0.0.1:1/?{query}")).await;
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{query}");
    }
}

#[tokio::test]
async fn a_unix_socket_and_a_database_number_work() {
    let server = RedisServer::start(Server::new().unix_socket());
    cycle(&RedisBackend::connect(&server.unix_url()).await.unwrap()).await;

    let third = RedisBackend::connect(&format!("redis://127.0.0.1:{}/3", server.port())).await.unwrap();
    let held = take(&third, &key("k")).await;
    let zeroth = RedisBackend::connect(&server.url()).await.unwrap();
    assert!(!zeroth.is_locked(&key("k")).await.unwrap());
    assert!(third.release(&held.id).await.unwrap().is_released());

    let missing = failure(&format!("redis://127.0.0.1:{}/999", server.port())).await;
    assert_eq!(missing.code(), ErrorCode::InvalidArgument, "{missing}");
    let nowhere = failure("redis+unix:///nonexistent/redis.sock").await;
    assert_eq!(nowhere.code(), ErrorCode::ServiceUnavailable, "{nowhere}");
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_never_printed() {
    let server = RedisServer::start(Server::new().password("right-canary"));
    cycle(&RedisBackend::connect(&server.url()).await.unwrap()).await;

    for url in [
        format!("redis://:wrong-canary@127.0.0.1:{}/", server.port()),
        format!("redis://somebody:wrong-canary@127.0.0.1:{}/", server.port()),
    ] {
        let error = failure(&url).await;
        assert_eq!(error.code(), ErrorCode::AuthFailed, "{error}");
        assert!(!printed(&error).contains("canary"), "{}", printed(&error));
    }
    let without = RedisBackend::connect(&format!("redis://127.0.0.1:{}/", server.port())).await;
    let code = match without {
        Err(error) => error.code(),
        Ok(backend) => refusal(&backend, &key("k")).await,
    };
    assert_eq!(code, ErrorCode::AuthFailed);
    let options = RedisBuilder::from_url(&server.url()).unwrap();
    assert!(!format!("{options:?}").contains("canary"));
}

#[tokio::test]
async fn a_password_that_nobody_asked_for_is_told_as_such() {
    let server = RedisServer::start(Server::new());
    let error = failure(&format!("redis://:canary@127.0.0.1:{}/", server.port())).await;
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error}");
    assert!(error.to_string().contains("has no password"), "{error}");
    assert!(!printed(&error).contains("canary"));

    let guarded = RedisServer::start(Server::new().password("right"));
    let error = failure(&format!("redis://:canary@127.0.0.1:{}/", guarded.port())).await;
    assert!(error.to_string().contains("refused the user or the password"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_with_a_hint_and_without_the_password() {
    let port = free_port();
    let error = failure(&format!("redis://:canary@127.0.0.1:{port}/")).await;
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    assert!(error.hint().is_some() && !printed(&error).contains("canary"));

    let unknown = failure("redis://no-such-host.invalid/?connect_timeout=5s").await;
    assert!(unknown.is_transient() && !unknown.is_ambiguous(), "{unknown}");
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_costs_one_connect_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let error = failure(&format!("redis://127.0.0.1:{port}/?connect_timeout=200ms")).await;
    assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, false));
}

#[tokio::test]
async fn a_server_that_talks_nonsense_is_refused_without_a_panic() {
    for nonsense in ["HTTP/1.1 400 Bad Request\r\n\r\n", "$-2\r\n", "*1000000000\r\n", "?\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(nonsense.as_bytes());
            std::thread::sleep(Duration::from_millis(300));
        });
        let error = failure(&format!("redis://127.0.0.1:{port}/?connect_timeout=1s")).await;
        assert!(error.is_transient(), "{nonsense:?}: {error}");
        server.join().unwrap();
    }
}

/// The line of `docs/backends/redis.md`, for the default prefix.
const MINIMAL: &str = "resetkeys ~syncguard:* resetchannels &syncguard:* -@all \
                       +evalsha +eval +get +mget +psetex +del +incr +decr +time \
                       +publish +subscribe +unsubscribe +pubsub +ping +auth";

fn acl(server: &RedisServer, user: &str, rules: &str) -> String {
    let mut words = vec!["ACL", "SETUSER", user, "on", ">pw"];
    words.extend(rules.split_whitespace());
    server.command(&words);
    format!("redis://{user}:pw@127.0.0.1:{}/", server.port())
}

#[tokio::test]
async fn the_minimal_acl_line_suffices() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/backends/redis.md");
    let documented = std::fs::read_to_string(docs).unwrap();
    let line = MINIMAL.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(documented.contains(&line), "docs/backends/redis.md does not show: {line}");

    let server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&acl(&server, "lock", MINIMAL)).await.unwrap();
    cycle(&backend).await;
    let hint = backend.subscribe(&key("k")).await;
    assert!(hint.is_live());
    let held = take(&backend, &key("k")).await;
    backend.release(&held.id).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), hint.woken()).await.unwrap();
    let report = backend.health().await;
    assert!(report.worst() <= HealthStatus::Pass, "{report:?}");

    // The rest of the server is out of reach, and every word of the line is needed.
    let elsewhere = RedisBackend::connect(&format!("{}?prefix=other", acl(&server, "lock", MINIMAL))).await.unwrap();
    assert_eq!(refusal(&elsewhere, &key("k")).await, ErrorCode::AuthFailed);
    for word in ["+evalsha", "+psetex", "+incr", "+time", "+get"] {
        let url = acl(&server, &format!("lacks{word}"), &MINIMAL.replace(&format!(" {word} "), " "));
        let lacking = RedisBackend::connect(&url.replace('+', "%2B")).await.unwrap();
        assert_eq!(refusal(&lacking, &key(word)).await, ErrorCode::AuthFailed, "{word}");
        assert!(!backend.is_locked(&key(word)).await.unwrap(), "a refused acquire without {word} left a lock");
    }
}

#[tokio::test]
async fn where_messages_are_forbidden_locks_work_and_waiters_are_not_woken() {
    let server = RedisServer::start(Server::new());
    for (user, rules) in [
        ("no-channels", MINIMAL.replace("&syncguard:*", "")),
        ("no-commands", MINIMAL.replace("+publish +subscribe", "")),
    ] {
        let backend = RedisBackend::connect(&acl(&server, user, &rules)).await.unwrap();
        cycle(&backend).await;
        cycle(&backend).await;
        assert!(!backend.subscribe(&key("k")).await.is_live(), "{user}");
        // Known now: the second waiter need not ask again.
        assert!(!backend.subscribe(&key("k2")).await.is_live(), "{user}");
    }
}

#[tokio::test]
async fn what_the_server_refuses_is_told_by_its_kind() {
    let server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let held = take(&backend, &key("before")).await;

    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(refusal(&backend, &key("k")).await, ErrorCode::ServiceUnavailable);
    assert!(!backend.is_locked(&key("k")).await.unwrap());
    // A release frees memory, so it works.
    assert!(backend.release(&held.id).await.unwrap().is_released());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);

    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_eq!(refusal(&backend, &key("k")).await, ErrorCode::ServiceUnavailable);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);

    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(refusal(&backend, &key("k")).await, ErrorCode::ServiceUnavailable);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    take(&backend, &key("k")).await;
}

#[tokio::test]
async fn a_busy_server_is_unavailable_and_not_broken() {
    let server = RedisServer::start(Server::new().config("busy-reply-threshold 1"));
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    take(&backend, &key("warm")).await;
    let mut blocker = server.client().unwrap();
    let spin = std::thread::spawn(move || blocker.command_raw(&["EVAL", "while true do end", "0"]));
    crate::support::eventually("BUSY", async || {
        let result = attempt(&backend, &key("k"), ttl(1000)).await;
        matches!(result, Err(error) if error.code() == ErrorCode::ServiceUnavailable)
    })
    .await;
    server.command(&["SCRIPT", "KILL"]);
    let _ = spin.join().unwrap();
    crate::support::eventually("the recovery", async || attempt(&backend, &key("k"), ttl(1000)).await.is_ok()).await;
}

#[cfg(feature = "client")]
#[tokio::test]
async fn a_connection_that_was_brought_along_carries_locks() {
    let server = RedisServer::start(Server::new());
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let backend = RedisBackend::from_connection(connection, &RedisBuilder::default().prefix("mine")).unwrap();

    cycle(&backend).await;
    server.command(&["SCRIPT", "FLUSH"]);
    cycle(&backend).await;

    assert!(!backend.subscribe(&key("k")).await.is_live());
    assert_eq!(server.command(&["GET", "mine:fence:mine:k"]), "2");
}

#[tokio::test]
async fn the_health_report_names_what_can_lose_a_fence() {
    let server = RedisServer::start(Server::new());
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let status = |report: &syncguard_core::HealthReport, name: &str| {
        report
            .checks
            .iter()
            .find(|check| check.name == name)
            .unwrap_or_else(|| panic!("no line {name}: {report:?}"))
            .status
    };

    let report = backend.health().await;
    for name in ["reachable", "authenticated", "scripts", "eviction", "role"] {
        assert_eq!(status(&report, name), HealthStatus::Pass, "{name}");
    }
    assert_eq!(status(&report, "persistence"), HealthStatus::Warn);
    assert_eq!((status(&report, "version"), status(&report, "clock")), (HealthStatus::Info, HealthStatus::Info));

    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    let report = backend.health().await;
    assert_eq!(status(&report, "eviction"), HealthStatus::Fail);
    assert_eq!(status(&report, "persistence"), HealthStatus::Pass);

    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(status(&backend.health().await, "role"), HealthStatus::Fail);
}

#[tokio::test]
async fn an_address_needs_no_url_and_no_form_of_a_backend_shows_a_password() {
    fn is_handy<T: Clone + std::fmt::Debug + Send + Sync>(value: &T) -> String {
        format!("{value:?} {value:#?}")
    }
    let server = RedisServer::start(Server::new().password("canary").unix_socket());
    let builder = RedisBackend::builder(("127.0.0.1", server.port())).password("canary").prefix("app").db(1);
    let backend = builder.clone().connect().await.unwrap();
    cycle(&backend).await;
    assert!(!is_handy(&builder).contains("canary"));
    assert!(!is_handy(&backend).contains("canary"));

    let url = server.unix_url();
    let path = url.strip_prefix("redis+unix://").unwrap().split('?').next().unwrap().to_owned();
    cycle(&RedisBackend::builder(RedisAddress::unix_socket(path)).password("canary").connect().await.unwrap()).await;

    for wrong in [
        RedisBackend::builder(RedisAddress::cluster::<String>([])),
        RedisBackend::builder(RedisAddress::cluster([("h", 1)])).db(1),
        RedisBackend::builder(RedisAddress::sentinel::<String>([], "m")),
        RedisBackend::builder(("h", 1)).timeout(Duration::ZERO),
        RedisBackend::builder(("h", 1)).prefix("p".repeat(228)),
    ] {
        assert_eq!(wrong.connect().await.unwrap_err().code(), ErrorCode::InvalidArgument);
    }
}

#[tokio::test]
async fn tls_is_set_without_a_url() {
    let server = RedisServer::start(Server::new().tls_with_client_certs());
    let builder = RedisBackend::builder(("localhost", server.tls_port()))
        .tls_ca(server.ca_path())
        .tls_client(server.client_cert_path(), server.client_key_path());
    cycle(&builder.connect().await.unwrap()).await;
}

/// How many connections the server has beside the one that asks.
fn connections(server: &RedisServer) -> usize {
    server.command(&["CLIENT", "LIST"]).lines().filter(|line| !line.contains("cmd=client")).count()
}

#[tokio::test]
async fn few_calls_share_one_connection_and_a_crowd_gets_another() {
    let server = RedisServer::start(Server::new());
    let patient = Duration::from_secs(60);
    let options = RedisBuilder::from_url(&server.url()).unwrap().connect_timeout(patient).timeout(patient);
    let backend = options.connect().await.unwrap();
    let look = |_| {
        let backend = backend.clone();
        tokio::spawn(async move { backend.is_locked(&key("k")).await.unwrap() })
    };

    for task in (0..32).map(look).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    eventually("one connection", async || connections(&server) == 1).await;
    // Nothing is answered, so a hundred calls are under way at once.
    server.pause();
    let crowd: Vec<_> = (0..100).map(look).collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    server.resume();
    for task in crowd {
        task.await.unwrap();
    }
    eventually("a second connection", async || connections(&server) == 2).await;
}
