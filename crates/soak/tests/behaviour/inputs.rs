//! Bad inputs: the ones we know of in a table, and random ones by the thousand.

use std::time::Duration;

use proptest::prelude::*;
use syncguard::url_options::duration;
use syncguard::{Fence, Key, LockId, Ttl};
use syncguard_soak::inputs::{self, judged, parse};

/// Cases per kind. More with `PROPTEST_CASES`; for hours there is `cargo fuzz`.
const CASES: u32 = 1_000;

/// What `text` says, made of pieces that parsers stumble over and of anything.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<char>().prop_map(|character| character.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..8),
        proptest::sample::select(vec![
            "%",
            "%2",
            "%00",
            "%ff",
            "?",
            "&",
            "=",
            "@",
            ":",
            "/",
            "//",
            "[",
            "]",
            "[::1]",
            ",",
            "#",
            "+",
            "ms",
            "s",
            "0",
            "1",
            "99999999999999999999",
            "-1",
            "timeout=",
            "sslmode=",
            "prefix=",
            "host",
            ":99999",
            "\0",
            "\n",
            "é",
            "e\u{301}",
        ])
        .prop_map(|piece| piece.as_bytes().to_vec()),
        proptest::collection::vec(proptest::sample::select(b"ABCxyz012-_".to_vec()), 22),
        proptest::collection::vec(proptest::sample::select(b"0123456789".to_vec()), 15),
        Just(vec![b'a'; 700]),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

#[test]
fn no_input_of_any_kind_panics_or_is_repeated() {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    for (kind, judge) in inputs::KINDS {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        runner
            .run(&text(), |bytes| {
                judge(&bytes);
                Ok(())
            })
            .unwrap_or_else(|failure| panic!("{kind}: {failure}"));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Expected {
    Accepted,
    Refused,
}
use Expected::{Accepted, Refused};

fn accepted<T>(input: &str, result: syncguard::Result<T>) -> Expected {
    if judged(input, result).is_some() { Accepted } else { Refused }
}

fn keys() -> Vec<(String, Expected)> {
    let combining = |count| "e\u{301}".repeat(count);
    let mut table = vec![
        (String::new(), Refused),
        ("a".repeat(512), Accepted),
        ("a".repeat(513), Refused),
        ("€".repeat(171), Refused),
        ("😀".repeat(128), Accepted),
        (combining(300), Refused),
        (combining(256), Accepted),
        ("a".repeat(10 << 20), Refused),
        ("a\0b".to_owned(), Refused),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl".to_owned(), Accepted),
    ];
    let strange = [
        " ",
        "\t",
        "café",
        "cafe\u{301}",
        "ﬁ",
        "fi",
        "\u{212a}",
        "K",
        "\u{344}",
        "a\nb",
        "a\rb",
        "\u{1b}[31m",
        "\u{202e}",
        "\u{200b}",
        "\u{feff}",
        "\u{ffff}",
        "\u{10ffff}",
        "a/b",
        "/a",
        "a//b",
        "a/b/c",
        ".",
        "..",
        "__x__",
        "__id7__",
        "id:AAAAAAAAAAAAAAAAAAAAAA",
        "fence:syncguard:victim",
        "fence:x",
        "{tag}:k",
        "a{b}c",
        "'; DROP TABLE syncguard_locks;--",
        "$1",
        "%s",
        "\\\\",
        "*",
        "?",
        "[a]",
        "password=hunter2",
    ];
    table.extend(strange.map(|key| (key.to_owned(), Accepted)));
    table
}

fn lock_ids() -> Vec<(String, Expected)> {
    let valid = "AAAAAAAAAAAAAAAAAAAAAA";
    let mut table: Vec<(String, Expected)> = [21, 23].into_iter().map(|length| ("A".repeat(length), Refused)).collect();
    for last in ["+", "/", "=", " ", "\n", "\0"] {
        table.push((format!("{}{last}", &valid[1..]), Refused));
    }
    table.push((format!("{}é", &valid[1..]), Refused));
    table.push((format!("{}é", &valid[2..]), Refused));
    table.push((String::new(), Refused));
    table.push((format!("{valid}\n"), Refused));
    table.push((valid.to_owned(), Accepted));
    table.push((format!("{}B", &valid[1..]), Accepted));
    table
}

const FENCES: [(&str, Expected); 9] = [
    ("000000000000001", Accepted),
    ("900000000000000", Accepted),
    ("000000000000000", Refused),
    ("900000000000001", Refused),
    ("1", Refused),
    ("0000000000000001", Refused),
    ("-00000000000001", Refused),
    ("00000000000000a", Refused),
    ("00000000000001 ", Refused),
];

const DURATIONS: [(&str, Expected); 12] = [
    ("500ms", Accepted),
    ("0s", Accepted),
    ("1h", Accepted),
    ("30", Refused),
    ("30sec", Refused),
    ("-5s", Refused),
    ("1.5s", Refused),
    ("1e3ms", Refused),
    ("NaN", Refused),
    ("0x10s", Refused),
    ("", Refused),
    ("99999999999999999999h", Refused),
];

const URLS: [(&str, Expected); 38] = [
    ("redis://h", Accepted),
    ("redis://:p%40ss@h/0", Accepted),
    ("redis://[::1]:6379/1", Accepted),
    ("redis://[::1:6379", Refused),
    ("redis://h:99999", Refused),
    ("redis://h:0", Refused),
    ("redis://", Refused),
    ("redis://h/99999", Refused),
    ("redis://h/x", Refused),
    ("redis://h?timeout=5", Refused),
    ("redis://h?timeout=5s&timeout=6s", Refused),
    ("redis://h?unknown=1", Refused),
    ("redis://h?prefix=%zz", Refused),
    ("redis://h?prefix=%ff", Refused),
    ("redis://h?wake=perhaps", Refused),
    ("redis://h?ca=/x", Refused),
    ("rediss://h?tls_ca=/x", Accepted),
    ("redis+cluster://a:1,b:2", Accepted),
    ("redis+cluster://a:1,,b:2", Refused),
    ("redis+sentinel://a:1/mymaster", Accepted),
    ("redis+unix:///tmp/redis.sock", Accepted),
    ("postgres://h/db", Accepted),
    ("postgres:///x?host=/tmp", Accepted),
    ("postgres://h:99999/db", Refused),
    ("postgres://h/db?sslmode=bogus", Refused),
    ("postgres://h/db?sslmode=verify-full", Accepted),
    ("postgres://h/db?pool_size=0", Refused),
    ("postgres://h/db?pool_size=-1", Refused),
    ("postgres://h/db?timeout=0ms", Refused),
    ("postgres://h/db?operation_timeout=1s", Refused),
    ("postgres://h/db?colour=red", Refused),
    ("firestore://p", Accepted),
    ("firestore://", Refused),
    ("firestore://u:pw@p", Refused),
    ("firestore://p?collection=a/b", Refused),
    ("firestore://p?collection=__x__", Refused),
    ("firestore://p?colection=a", Refused),
    ("sqlite:/tmp/x.db?synchronous=maybe", Refused),
];

#[test]
fn every_bad_input_that_we_know_of_is_refused_and_every_strange_one_accepted() {
    let mut wrong = Vec::new();
    let mut count = 0_u32;
    let mut judge = |kind: &str, input: &str, expected: Expected, got: Expected| {
        count += 1;
        if expected != got {
            wrong.push(format!("{kind} {:?}: {got:?}", input.chars().take(60).collect::<String>()));
        }
    };
    for (key, expected) in keys() {
        judge("key", &key, expected, accepted("", Key::new(&key)));
    }
    for (id, expected) in lock_ids() {
        judge("lock id", &id, expected, accepted(&id, LockId::parse(&id)));
    }
    for (text, expected) in FENCES {
        judge("fence", text, expected, accepted("", text.parse::<Fence>()));
    }
    for (text, expected) in DURATIONS {
        judge("duration", text, expected, accepted("", duration("timeout", text)));
    }
    for millis in [0, -1, 366 * 86_400_000 + 1, 100_000_000_000_000, (1 << 53) + 1, i64::MAX, i64::MIN] {
        judge("ttl", &millis.to_string(), Refused, accepted("", Ttl::from_millis(millis)));
    }
    for length in [Duration::ZERO, Duration::from_micros(500), Duration::MAX] {
        judge("ttl", &format!("{length:?}"), Refused, accepted("", Ttl::new(length)));
    }
    for (url, expected) in URLS {
        judge("url", url, expected, if parse(url).is_some() { Accepted } else { Refused });
    }
    println!("{count} inputs");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Nobody listens on port 1, so an answer other than a refusal of the name would be one about the connection.
#[tokio::test]
async fn names_of_tables_that_could_break_out_are_refused_before_any_connection() {
    let long = "t".repeat(64);
    for table in ["a;b", "a%22b", "a.b.c", "1a", "%C3%BCn", "", "syncguard_fence_counters", long.as_str()] {
        let error = syncguard::open(&format!("postgres://127.0.0.1:1/db?table={table}")).await.unwrap_err();
        assert_eq!(error.code(), syncguard::ErrorCode::InvalidArgument, "{table}: {error}");
    }
}

#[test]
fn what_looks_different_and_is_the_same_is_one_lock_and_what_looks_the_same_and_is_not_is_two() {
    let key = |text: &str| Key::new(text).unwrap();
    assert_eq!(key("café"), key("cafe\u{301}"));
    assert_eq!(key("\u{212a}"), key("K"));
    assert_ne!(key("ﬁ"), key("fi"));
    assert_ne!(key(" "), key("\t"));
    assert_ne!(key("a\u{200b}"), key("a"));
}

#[test]
fn a_refusal_that_repeats_its_input_is_caught() {
    let secret = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let chatty = || syncguard::LockError::invalid(format!("not a lock id: {secret}"));
    let caught = std::panic::catch_unwind(|| judged::<()>(secret, Err(chatty())));
    assert!(caught.is_err());
    let canary = || syncguard::LockError::invalid(format!("cannot connect as {}", inputs::CANARY));
    assert!(std::panic::catch_unwind(|| judged::<()>("", Err(canary()))).is_err());
}
