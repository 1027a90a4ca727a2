//! Does a password leave this machine only as the user allows?
//!
//! The rogue hears every byte that is sent to it, under an address that counts as another machine's.

use syncguard_testkit::rogue::{ELSEWHERE, Rogue};

use crate::support::{Lab, Said, finish};

const PASSWORD: &str = "CANARYpassword";

/// Asks for a cleartext password, as `PostgreSQL` does, after a no to encryption.
fn greedy_postgres(heard: &[u8]) -> Vec<u8> {
    if heard == [0, 0, 0, 8, 4, 210, 22, 47] { b"N".to_vec() } else { b"R\0\0\0\x08\0\0\0\x03".to_vec() }
}

/// Says yes to every command, and that all slots and masters are elsewhere.
fn leading_redis(elsewhere: u16) -> impl Fn(&[u8]) -> Vec<u8> {
    move |heard| {
        let text = String::from_utf8_lossy(heard);
        let port = elsewhere.to_string();
        if text.contains("SLOTS") {
            let host = format!("${}\r\n{ELSEWHERE}", ELSEWHERE.len());
            return format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{host}\r\n:{port}\r\n").into_bytes();
        }
        if text.contains("SENTINEL") {
            return format!("*2\r\n${}\r\n{ELSEWHERE}\r\n${}\r\n{port}\r\n", ELSEWHERE.len(), port.len()).into_bytes();
        }
        "+OK\r\n".repeat(text.matches('*').count()).into_bytes()
    }
}

fn status(lab: &Lab, url: &str, environment: &[(&str, &str)], flags: &[&str]) -> Said {
    let mut command = lab.bare([&["status", "k"], flags].concat());
    command.env("SYNCGUARD_URL", url).envs(environment.iter().copied());
    finish(command.spawn().unwrap())
}

fn refused(said: &Said, what: &str, rogue: &Rogue) {
    assert_eq!(said.code, Some(78), "{what}: {said:?}");
    assert!(!said.stderr.contains("CANARY"), "{what}: {said:?}");
    assert!(said.stderr.contains("hint:"), "{what}: {said:?}");
    assert!(!rogue.heard().contains("CANARY"), "{what}: {}", rogue.heard());
}

#[test]
fn a_redis_password_does_not_leave_in_plaintext_where_tls_is_required() {
    let lab = Lab::new();
    let rogue = Rogue::start(|_| b"-ERR no\r\n".to_vec());
    let leader = Rogue::start(leading_redis(rogue.port()));
    let (port, seed) = (rogue.port(), leader.port());
    for url in [
        format!("redis://:{PASSWORD}@{ELSEWHERE}:{port}"),
        format!("valkey://:{PASSWORD}@{ELSEWHERE}:{port}"),
        format!("redis+cluster://:{PASSWORD}@127.0.0.1:{seed},{ELSEWHERE}:{port}"),
        format!("redis+cluster://:{PASSWORD}@127.0.0.1:{seed}"),
        format!("redis+sentinel://:{PASSWORD}@127.0.0.1:{seed}/m"),
        format!("redis+sentinel://:{PASSWORD}@{ELSEWHERE}:{port}/m@localhost"),
        format!("redis+sentinel://{ELSEWHERE}:{port}/m?sentinel_password={PASSWORD}"),
    ] {
        let said = status(&lab, &url, &[], &["--require-tls"]);
        refused(&said, &url, &rogue);
        assert!(said.stderr.contains("not encrypted"), "{url}: {said:?}");
    }
    let url = format!("redis://:{PASSWORD}@{ELSEWHERE}:{port}");
    let warned = status(&lab, &url, &[], &[]);
    assert!(warned.stderr.contains("its password travels in the clear"), "{warned:?}");
    assert!(rogue.heard().contains(PASSWORD));

    rogue.forget();
    let fence = "000000000000001";
    let marks = lab.bare(["fence", "check", &url, "--resource", "r", "--fence", fence, "--require-tls"]).spawn();
    refused(&finish(marks.unwrap()), "fence check", &rogue);
}

#[test]
fn an_emulator_that_only_the_environment_names_is_told_or_refused() {
    let lab = Lab::new();
    let rogue = Rogue::start(|_| Vec::new());
    let emulator = format!("127.0.0.1:{}", rogue.port());
    let environment = [("FIRESTORE_EMULATOR_HOST", emulator.as_str())];
    for flag in ["--require-tls", "--require-remote"] {
        let said = status(&lab, "firestore://production", &environment, &[flag]);
        refused(&said, flag, &rogue);
        assert!(said.stderr.contains("FIRESTORE_EMULATOR_HOST leads") && rogue.heard().is_empty(), "{said:?}");
    }
    let told = status(&lab, "firestore://production?timeout=1s", &environment, &[]);
    assert!(told.stderr.contains("warning: FIRESTORE_EMULATOR_HOST leads"), "{told:?}");
    let meant =
        status(&lab, &format!("firestore://p?timeout=1s&emulator={emulator}"), &environment, &["--require-tls"]);
    assert!(!meant.stderr.contains("FIRESTORE_EMULATOR_HOST"), "{meant:?}");
}

#[test]
fn a_postgres_password_goes_to_nobody_unproven_where_tls_is_required() {
    let lab = Lab::new();
    let rogue = Rogue::start(greedy_postgres);
    let port = rogue.port();
    let passwords = lab.path("pgpass");
    std::fs::write(&passwords, format!("*:*:*:*:{PASSWORD}\n")).unwrap();
    std::fs::set_permissions(&passwords, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let from_variable = [("PGPASSWORD", PASSWORD)];
    let from_file = [("PGPASSFILE", passwords.to_str().unwrap())];
    let with_password = |url: String| (url.replace("u@", &format!("u:{PASSWORD}@")), &[][..]);
    for (url, environment) in [
        with_password(format!("postgres://u@{ELSEWHERE}:{port}/d")),
        with_password(format!("postgres://u@/d?host={ELSEWHERE}&port={port}")),
        with_password(format!("postgres://u@localhost:{port}/d?hostaddr={ELSEWHERE}")),
        with_password(format!("postgres://u@localhost:{port}/d?hostaddr={ELSEWHERE}&require_tls=true")),
        with_password(format!("postgres://u@{ELSEWHERE}:{port}/d?sslmode=require")),
        (format!("postgres://u@{ELSEWHERE}:{port}/d"), &from_variable),
        (format!("postgres://u@{ELSEWHERE}:{port}/d"), &from_file),
        (format!("postgres://u@/d?port={port}"), &[("PGHOST", ELSEWHERE), from_variable[0]]),
    ] {
        refused(&status(&lab, &url, environment, &["--require-tls"]), &url, &rogue);
        let warned = status(&lab, &url.replace("require_tls=true", ""), environment, &[]);
        assert!(warned.stderr.contains("the password goes to whoever answers"), "{url}: {warned:?}");
        assert!(!warned.stderr.contains("CANARY"), "{url}: {warned:?}");
        // Without the flag it goes out, so the rogue would have heard it.
        assert!(url.contains("sslmode=require") || rogue.heard().contains(PASSWORD), "{url}");
        rogue.forget();
    }
    let required = status(&lab, &format!("postgres://u:{PASSWORD}@localhost:{port}/d?require_tls=true"), &[], &[]);
    assert!(rogue.heard().contains(PASSWORD), "the loopback is exempt: {required:?}");
}
