//! Does each word of `sslmode` mean what libpq means by it?
//!
//! The server is encrypted with a certificate for `localhost` and 127.0.0.1, signed by an authority of its own.
//! `127.0.0.2` is the same server under a name that is not in the certificate.

use std::path::Path;

use syncguard_core::{ErrorCode, HealthStatus, LockBackend, LockError};
use syncguard_postgres::PostgresBackend;
use syncguard_testkit::rogue::Rogue;
use syncguard_testkit::tls::Certificates;
use syncguard_testkit::{PostgresOptions, PostgresServer};

use crate::support::{Tables, sql, try_acquire};

async fn connect(host: &str, server: &PostgresServer, options: &str) -> Result<PostgresBackend, LockError> {
    let url = format!("postgres://postgres@{host}:{}/postgres?{options}", server.port());
    Tables::fresh().at(&url).pool_size(2).connect().await
}

/// Whether the server sees this backend's connections as encrypted.
async fn encrypted(backend: &PostgresBackend, server: &PostgresServer) -> bool {
    assert!(try_acquire(backend, "k", 1000).await.is_some());
    let peek = sql(&server.url()).await;
    let count = "SELECT count(*) FILTER (WHERE ssl), count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                 WHERE application_name = 'syncguard'";
    let row = peek.query_one(count, &[]).await.unwrap();
    let (with, all): (i64, i64) = (row.get(0), row.get(1));
    assert!(all > 0 && (with == all || with == 0), "{with} of {all}");
    with == all
}

fn root(file: &Path) -> String {
    format!("sslrootcert={}", file.display())
}

#[tokio::test]
async fn the_ladder_of_sslmode_on_an_encrypted_server() {
    let server = PostgresServer::start(
        PostgresOptions::new()
            .tls()
            .config("listen_addresses = '127.0.0.1,127.0.0.2'")
            .hba("host all all 127.0.0.0/8 trust"),
    );
    let ours = root(server.ca_path());
    let folder = tempfile::tempdir().unwrap();
    let strangers = root(&Certificates::create(folder.path()).unwrap().ca);
    // host, options, whether it connects, whether encrypted
    let cases = [
        ("localhost", "sslmode=disable".to_owned(), Some(false)),
        ("localhost", "sslmode=allow".to_owned(), Some(false)),
        ("localhost", String::new(), Some(true)),
        ("localhost", "sslmode=prefer".to_owned(), Some(true)),
        ("localhost", "sslmode=require".to_owned(), Some(true)),
        ("127.0.0.2", "sslmode=require".to_owned(), Some(true)),
        ("localhost", format!("sslmode=require&{ours}"), Some(true)),
        ("127.0.0.2", format!("sslmode=require&{ours}"), None),
        ("localhost", format!("sslmode=require&{strangers}"), None),
        ("localhost", format!("sslmode=verify-ca&{ours}"), Some(true)),
        ("127.0.0.2", format!("sslmode=verify-ca&{ours}"), Some(true)),
        ("localhost", format!("sslmode=verify-ca&{strangers}"), None),
        ("localhost", format!("sslmode=verify-full&{ours}"), Some(true)),
        ("127.0.0.1", format!("sslmode=verify-full&{ours}"), Some(true)),
        ("127.0.0.2", format!("sslmode=verify-full&{ours}"), None),
        ("localhost", format!("sslmode=verify-full&{strangers}"), None),
        ("localhost", "sslmode=verify-full&sslrootcert=system".to_owned(), None),
    ];
    for (host, options, expected) in cases {
        match (connect(host, &server, &options).await, expected) {
            (Ok(backend), Some(expected)) => {
                assert_eq!(encrypted(&backend, &server).await, expected, "{host} {options}");
            }
            (Err(error), None) => {
                assert!(!error.is_ambiguous() && error.code() != ErrorCode::Internal, "{host} {options} {error:?}");
            }
            (outcome, _) => panic!("{host} {options}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_failed_check_is_named_and_never_followed_by_plaintext() {
    let server = PostgresServer::start(PostgresOptions::new().tls());
    let folder = tempfile::tempdir().unwrap();
    let strangers = root(&Certificates::create(folder.path()).unwrap().ca);
    let error = connect("localhost", &server, &format!("sslmode=verify-full&{strangers}")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("certificate"), "{cause}");
}

#[tokio::test]
async fn a_plain_server_serves_only_those_who_do_not_insist() {
    let server = PostgresServer::start(PostgresOptions::new());
    for options in ["sslmode=disable", "sslmode=allow", "sslmode=prefer", ""] {
        assert!(!encrypted(&connect("localhost", &server, options).await.unwrap(), &server).await, "{options}");
    }
    for options in ["sslmode=require", "sslmode=verify-full&sslrootcert=system"] {
        let error = connect("localhost", &server, options).await.unwrap_err();
        assert!(
            [ErrorCode::ServiceUnavailable, ErrorCode::InvalidArgument].contains(&error.code()),
            "{options}: {error:?}"
        );
    }
}

#[tokio::test]
async fn pg_hba_decides_between_the_two_attempts_of_allow_and_prefer() {
    let only_tls = PostgresServer::start(PostgresOptions::new().tls().hba("hostnossl all alice 127.0.0.1/32 reject"));
    only_tls.query("CREATE ROLE alice LOGIN SUPERUSER");
    let url = format!("postgres://alice@localhost:{}/postgres?sslmode=allow", only_tls.port());
    let backend = Tables::fresh().at(&url).pool_size(1).connect().await.unwrap();
    assert!(encrypted(&backend, &only_tls).await);
    let url = format!("postgres://alice@localhost:{}/postgres?sslmode=disable", only_tls.port());
    assert_eq!(Tables::fresh().at(&url).connect().await.unwrap_err().code(), ErrorCode::AuthFailed);

    let only_plain = PostgresServer::start(PostgresOptions::new().tls().hba("hostssl all alice 127.0.0.1/32 reject"));
    only_plain.query("CREATE ROLE alice LOGIN SUPERUSER");
    let url = format!("postgres://alice@localhost:{}/postgres?sslmode=prefer", only_plain.port());
    let backend = Tables::fresh().at(&url).pool_size(1).connect().await.unwrap();
    assert!(!encrypted(&backend, &only_plain).await);
}

#[tokio::test]
async fn a_client_certificate_opens_a_server_that_asks_for_one() {
    let server = PostgresServer::start(PostgresOptions::new().tls().hba("hostssl all syncguard 127.0.0.1/32 cert"));
    server.query("CREATE ROLE syncguard LOGIN SUPERUSER");
    let files = server.certificates();
    let url =
        format!("postgres://syncguard@localhost:{}/postgres?sslmode=verify-full&{}", server.port(), root(&files.ca));
    let error = Tables::fresh().at(&url).connect().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");

    let url = format!("{url}&sslcert={}&sslkey={}", files.client_cert.display(), files.client_key.display());
    let backend = Tables::fresh().at(&url).pool_size(1).connect().await.unwrap();
    assert!(try_acquire(&backend, "k", 1000).await.is_some());
    let report = backend.health().await;
    let line = report.checks.iter().find(|check| check.name == "encryption").unwrap();
    assert_eq!((line.status, line.detail.as_str()), (HealthStatus::Pass, "TLSv1.3, certificate verified"));
}

#[tokio::test]
async fn a_greeting_that_is_none_is_given_up_before_room_is_made_for_it() {
    let rogue =
        Rogue::start(
            |heard| if heard[4..] == [4, 210, 22, 47] { b"N".to_vec() } else { b"R\x7f\xff\xff\xff".to_vec() },
        );
    let url = format!("postgres://u@127.0.0.1:{}/d", rogue.port());
    let error = Tables::fresh().at(&url).connect().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert!(error.to_string().contains("does not greet as postgres does"), "{error:?}");
}

#[tokio::test]
async fn a_password_is_not_sent_in_a_way_that_require_auth_excludes() {
    let rogue =
        Rogue::start(
            |heard| if heard[4..] == [4, 210, 22, 47] { b"N".to_vec() } else { b"R\0\0\0\x08\0\0\0\x03".to_vec() },
        );
    let url = |list: &str| format!("postgres://u:canary@127.0.0.1:{}/d?require_auth={list}", rogue.port());
    for list in ["scram-sha-256", "!password", "none,md5"] {
        let error = Tables::fresh().at(&url(list)).connect().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
        assert!(error.to_string().contains("by `password`, which require_auth excludes"), "{error:?}");
    }
    let bound = format!("{}&channel_binding=require", url("password"));
    assert!(Tables::fresh().at(&bound).connect().await.is_err());
    assert!(!rogue.heard().contains("canary"));
    assert!(Tables::fresh().at(&url("password,scram-sha-256")).connect().await.is_err());
    assert!(rogue.heard().contains("canary"));

    let server = PostgresServer::start(PostgresOptions::new().hba("host all carol 127.0.0.1/32 scram-sha-256"));
    server.query("SET password_encryption = 'scram-sha-256'; CREATE ROLE carol LOGIN SUPERUSER PASSWORD 'canary'");
    let at = |list: &str| format!("postgres://carol:canary@127.0.0.1:{}/postgres?require_auth={list}", server.port());
    assert!(Tables::fresh().at(&at("scram-sha-256")).connect().await.is_ok());
    assert_eq!(Tables::fresh().at(&at("md5")).connect().await.unwrap_err().code(), ErrorCode::AuthFailed);
}

#[tokio::test]
async fn passwords_come_from_the_url_or_the_password_file_and_are_never_shown() {
    let server = PostgresServer::start(PostgresOptions::new().hba("host all bob 127.0.0.1/32 scram-sha-256"));
    server.query("SET password_encryption = 'scram-sha-256'; CREATE ROLE bob LOGIN SUPERUSER PASSWORD 'canary:secret'");
    let url =
        |userinfo: &str, options: &str| format!("postgres://{userinfo}@127.0.0.1:{}/postgres?{options}", server.port());
    let tables = Tables::fresh();
    assert!(tables.at(&url("bob:canary%3Asecret", "")).connect().await.is_ok());

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pgpass");
    std::fs::write(&file, format!("127.0.0.1:{}:*:bob:canary\\:secret\n", server.port())).unwrap();
    let mode = |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    let passfile = url("bob", &format!("passfile={}", file.display()));
    mode(0o600);
    assert!(tables.at(&passfile).connect().await.is_ok());
    mode(0o644);
    assert_eq!(tables.at(&passfile).connect().await.unwrap_err().code(), ErrorCode::AuthFailed);

    for wrong in [url("bob:canary-wrong", ""), url("bob", "passfile=/nonexistent")] {
        let error = tables.at(&wrong).connect().await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
        let chain = format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
        assert!(!chain.contains("canary"), "{chain}");
    }
}
