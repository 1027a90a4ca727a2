//! What happens when something else lies where a lock, its index or its counter should?

use crate::support::place::{Place, number};
use crate::support::{attempt, key, refusal, take};
use syncguard_core::{ErrorCode, LockBackend, LockId, Lookup, Ttl};

#[tokio::test]
async fn keys_of_the_inner_namespaces_are_refused_and_others_keep_working() {
    let place = Place::new().await;
    let foo = take(&place.backend, &key("foo")).await;

    for reserved in [format!("id:{}", foo.id.as_str()), format!("fence:{}:foo", place.prefix)] {
        let reserved = key(&reserved);
        assert_eq!(refusal(&place.backend, &reserved).await, ErrorCode::InvalidArgument);
        assert_eq!(place.backend.is_locked(&reserved).await.unwrap_err().code(), ErrorCode::InvalidArgument);
        let looked = place.backend.lookup(Lookup::Key(&reserved)).await;
        assert_eq!(looked.unwrap_err().code(), ErrorCode::InvalidArgument);
    }

    assert!(place.backend.release(&foo.id).await.unwrap().is_released());
    assert_eq!(take(&place.backend, &key("foo")).await.fence.get(), 2);
}

#[tokio::test]
async fn numbers_that_are_no_json_are_not_a_lock_to_anybody() {
    let place = Place::new().await;
    for expiry in ["-Infinity", "Infinity", "NaN", "nan", "-inf", "0x10", "01", "1.5", "-9e300"] {
        let value = format!(r#"{{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":{expiry},"key":"k"}}"#);
        place.run(&["SET", &place.name("k"), &value]);
        assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::Internal, "{expiry}");
        assert_eq!(place.backend.is_locked(&key("k")).await.unwrap_err().code(), ErrorCode::Internal, "{expiry}");
        assert_eq!(place.text(&place.name("k")), value, "{expiry}: the value was changed");
    }
    // In any other field too: the two readers of a value must agree on what is JSON.
    let value = r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":0x10}"#;
    place.run(&["SET", &place.name("k"), value]);
    assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::Internal);
    // A text may hold any of it.
    let value = r#"{"expiresAtMs":1,"key":"NaN 0x10 \" inf 01"}"#;
    place.run(&["SET", &place.name("k"), value]);
    take(&place.backend, &key("k")).await;
}

#[tokio::test]
async fn a_counter_with_leading_zeros_is_named_as_what_it_is() {
    let place = Place::new().await;
    place.run(&["SET", &place.counter("k"), "000000000000007"]);

    let error = attempt(&place.backend, &key("k"), Ttl::DEFAULT).await.unwrap_err();

    assert_eq!(error.code(), ErrorCode::Internal, "{error}");
    assert!(error.to_string().contains("counter"), "{error}");
    assert!(error.hint().unwrap().contains("leading zeros"), "{error:?}");
    place.run(&["SET", &place.counter("k"), "7"]);
    assert_eq!(take(&place.backend, &key("k")).await.fence.get(), 8);
}

#[tokio::test]
async fn what_is_not_a_lock_is_never_taken_for_a_free_one() {
    let place = Place::new().await;
    let deep = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    let big = format!(r#"{{"expiresAtMs":1,"lockId":"{}"}}"#, "x".repeat(1 << 20));
    for value in [
        "not json",
        "",
        "5",
        "\"text\"",
        "[1]",
        "null",
        "{}",
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA"}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":"1"}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":null}"#,
        r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1e308}"#,
        r#"{"lockId":5,"expiresAtMs":4102444800000}"#,
        r#"{"expiresAtMs":4102444800000}"#,
        // Ends like one of ours, does not begin like one.
        r#"x{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1,"acquiredAtMs":1,"key":"k","fence":"000000000000001"}"#,
        &deep,
        &big,
    ] {
        place.run(&["SET", &place.name("k"), value]);
        let shown: String = value.chars().take(60).collect();
        assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::Internal, "{shown}");
        let info = place.backend.lookup(Lookup::Key(&key("k"))).await;
        assert!(info.is_err(), "{shown}: {info:?}");
        assert_eq!(place.text(&place.name("k")), value, "the foreign value was changed");
    }
    // Nothing was counted, and the neighbours are unharmed.
    assert_eq!(place.text(&place.counter("k")), "");
    take(&place.backend, &key("other")).await;
}

#[tokio::test]
async fn a_value_that_expired_by_a_valid_number_is_taken_over_whatever_else_it_holds() {
    let place = Place::new().await;
    for value in [r#"{"expiresAtMs":-5}"#, r#"{"lockId":5,"expiresAtMs":1}"#, r#"{"lockId":"junk","expiresAtMs":1}"#] {
        place.run(&["SET", &place.name("k"), value]);
        let held = take(&place.backend, &key("k")).await;
        assert!(place.backend.release(&held.id).await.unwrap().is_released(), "{value}");
    }
}

#[tokio::test]
async fn a_value_of_another_type_is_an_invalid_argument() {
    let place = Place::new().await;
    place.run(&["RPUSH", &place.name("k"), "x"]);

    assert_eq!(refusal(&place.backend, &key("k")).await, ErrorCode::InvalidArgument);
    assert_eq!(place.backend.is_locked(&key("k")).await.unwrap_err().code(), ErrorCode::InvalidArgument);

    // The lock was replaced under its holder.
    let held = take(&place.backend, &key("j")).await;
    place.run(&["DEL", &place.name("j")]);
    place.run(&["RPUSH", &place.name("j"), "x"]);
    assert_eq!(place.backend.release(&held.id).await.unwrap_err().code(), ErrorCode::InvalidArgument);
    assert_eq!(place.backend.extend(&held.id, Ttl::DEFAULT).await.unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn a_damaged_counter_refuses_and_nothing_is_written() {
    let place = Place::new().await;
    let (k, counter) = (key("k"), place.counter("k"));
    for value in [
        "abc",
        "",
        "1.5",
        " 5",
        "0x10",
        "-5",
        "9007199254740993",
        "900000000000000",
        "900000000000001",
        "9223372036854775807",
    ] {
        place.run(&["SET", &counter, value]);
        assert_eq!(refusal(&place.backend, &k).await, ErrorCode::Internal, "{value:?}");
        assert_eq!(place.text(&counter), value, "the counter was changed");
        assert_eq!(number(&place.run(&["EXISTS", &place.name("k")])), 0, "a lock was left behind");
    }
    place.run(&["DEL", &counter]);
    place.run(&["RPUSH", &counter, "x"]);
    assert_eq!(refusal(&place.backend, &k).await, ErrorCode::Internal);
    assert_eq!(number(&place.run(&["EXISTS", &place.name("k")])), 0);

    // The last fence there is can still be given, once.
    place.run(&["DEL", &counter]);
    place.run(&["SET", &counter, "899999999999999"]);
    assert_eq!(take(&place.backend, &k).await.fence.to_string(), "900000000000000");
}

#[tokio::test]
async fn an_index_that_leads_elsewhere_deletes_nothing() {
    let place = Place::new().await;
    let held = take(&place.backend, &key("k")).await;
    place.run(&["SET", "stranger:key", "precious"]);
    for target in
        [place.name("missing"), place.name("k"), place.counter("k"), place.index(&held.id), "stranger:key".to_owned()]
    {
        let id = LockId::random();
        place.run(&["SET", &place.index(&id), &target]);
        assert!(!place.backend.release(&id).await.unwrap().is_released(), "{target}");
        assert!(!place.backend.extend(&id, Ttl::DEFAULT).await.unwrap().is_extended(), "{target}");
        assert!(place.backend.lookup(Lookup::LockId(&id)).await.unwrap().is_none(), "{target}");
    }
    assert_eq!(place.text("stranger:key"), "precious");
    assert_eq!(place.text(&place.counter("k")), "1");
    assert!(place.backend.release(&held.id).await.unwrap().is_released());
}

#[tokio::test]
async fn without_its_index_a_lock_cannot_be_released_and_ends_by_itself() {
    let place = Place::new().await;
    let held = take(&place.backend, &key("k")).await;
    place.run(&["DEL", &place.index(&held.id)]);

    assert!(!place.backend.release(&held.id).await.unwrap().is_released());
    assert!(place.backend.is_locked(&key("k")).await.unwrap());
    assert!(number(&place.run(&["PTTL", &place.name("k")])) > 0);
}

#[tokio::test]
async fn a_huge_foreign_value_is_not_a_lock_and_disturbs_nobody_on_the_same_connection() {
    let place = Place::with(|options| options.connections(1)).await;
    place.run(&["SETRANGE", &place.name("big"), "70000000", "x"]);

    let others = async {
        for number in 0..20 {
            take(&place.backend, &key(&format!("k{number}"))).await;
        }
    };
    let big = key("big");
    let (look, ()) = tokio::join!(place.backend.is_locked(&big), others);

    assert_eq!(look.unwrap_err().code(), ErrorCode::Internal);
    place.run(&["DEL", &place.name("big")]);
}
