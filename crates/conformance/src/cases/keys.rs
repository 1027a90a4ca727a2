//! Is every acceptable name one lock, and a different one from every other?

use syncguard_core::time::TOLERANCE_MS;
use syncguard_core::{ErrorCode, Key, LockBackend, LockId, Lookup};

use crate::Harness;
use crate::support::{LONG, assert_contended, attempt, extend, give_back, is_locked, key, take};

/// Takes each key through every operation and checks every answer; then holds all of them at once.
async fn full_cycles<H: Harness>(h: &H, names: &[&str]) {
    let backend = h.backend().await;
    let mut all = Vec::new();
    for name in names {
        let key = key(name);
        if h.refuses(name) {
            let error = attempt(&backend, &key, LONG).await.expect_err("the key is refused by design");
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{name:?}: {error:?}");
            continue;
        }
        full_cycle(&backend, &key).await;
        all.push((take(&backend, &key, LONG).await, key));
    }
    for (held, key) in &all {
        let info = backend.lookup(Lookup::Key(key)).await.expect("lookup answers").expect("every lock is held");
        assert_eq!(info.reveal().lock_id, &held.lock_id, "two names are one lock");
        give_back(&backend, held).await;
    }
}

async fn full_cycle<B: LockBackend>(backend: &B, key: &Key) {
    let held = take(backend, key, LONG).await;
    assert!(is_locked(backend, key).await);
    assert_contended(backend, key).await;
    assert!(extend(backend, &held, LONG).await, "a held lock can be extended");
    let by_id = backend.lookup(Lookup::LockId(&held.lock_id)).await.expect("lookup answers").expect("held");
    assert_eq!(by_id.reveal().key, key, "the stored key comes back as it was");
    give_back(backend, &held).await;
    assert!(!is_locked(backend, key).await, "a released lock is free");
}

/// Checks that each name is a lock of its own: all can be held at once.
async fn all_distinct<H: Harness>(h: &H, names: &[&str]) {
    let backend = h.backend().await;
    for name in names {
        take(&backend, &key(name), LONG).await;
    }
}

/// `café` typed on two keyboards.
pub async fn the_composed_and_decomposed_forms_of_a_key_are_one_lock<H: Harness>(h: &H) {
    let backend = h.backend().await;
    for (composed, decomposed) in
        [("caf\u{e9}", "cafe\u{301}"), ("\u{212a}elvin", "Kelvin"), ("\u{ac00}", "\u{1100}\u{1161}")]
    {
        let held = take(&backend, &key(composed), LONG).await;
        assert_contended(&backend, &key(decomposed)).await;
        assert!(is_locked(&backend, &key(decomposed)).await);
        give_back(&backend, &held).await;
        let held = take(&backend, &key(decomposed), LONG).await;
        assert_contended(&backend, &key(composed)).await;
        give_back(&backend, &held).await;
    }
}

/// NFC, not NFKC: a ligature is not its letters.
pub async fn compatibility_forms_are_two_locks<H: Harness>(h: &H) {
    all_distinct(h, &["\u{fb01}", "fi", "\u{2460}", "1", "\u{ff21}", "A"]).await;
}

/// Neither the storage nor its collation may fold case.
pub async fn upper_and_lower_case_are_two_locks<H: Harness>(h: &H) {
    all_distinct(h, &["Key", "key", "KEY", "\u{df}", "ss", "\u{130}", "i"]).await;
}

/// Nothing is trimmed, neither by us nor by the storage's text type.
pub async fn white_space_is_part_of_a_key<H: Harness>(h: &H) {
    all_distinct(h, &[" ", "\t", "  ", "a", "a ", " a", "a\n", "a\r\n", "\u{a0}", "\u{3000}"]).await;
}

/// The longest key of one-byte characters.
pub async fn a_key_of_512_bytes_is_a_lock<H: Harness>(h: &H) {
    full_cycles(h, &[&"a".repeat(512), &"b".repeat(511)]).await;
}

/// The longest keys of wide characters, one of which only fits after normalisation.
pub async fn a_key_of_512_bytes_of_wide_characters_is_a_lock<H: Harness>(h: &H) {
    full_cycles(h, &[&"\u{1f600}".repeat(128), &"e\u{301}".repeat(256), &"\u{20ac}".repeat(170)]).await;
}

/// Long names that differ in their last byte only.
pub async fn long_keys_that_differ_at_the_end_are_two_locks<H: Harness>(h: &H) {
    let stem = "x".repeat(511);
    all_distinct(h, &[&format!("{stem}1"), &format!("{stem}2"), &stem]).await;
}

/// A key that spells the shortened form of another.
pub async fn a_long_key_and_its_hash_are_two_locks<H: Harness>(h: &H) {
    let long = "y".repeat(512);
    let hash = key(&long).hash().to_string();
    all_distinct(h, &[&long, &hash, &hash.to_uppercase()]).await;
}

/// Line ends, escapes, delete.
pub async fn control_characters_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(h, &["a\nb", "a\rb", "\u{1b}[31mred", "\u{1}", "\u{7f}", "\u{85}", "tab\there"]).await;
}

/// Emoji with joiners and modifiers.
pub async fn emoji_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(
        h,
        &["\u{1f512}", "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}", "\u{1f44d}\u{1f3fd}", "\u{1f1ea}\u{1f1fa}"],
    )
    .await;
}

/// Direction marks and characters of no width.
pub async fn invisible_characters_make_a_key_another<H: Harness>(h: &H) {
    full_cycles(h, &["ab", "a\u{200b}b", "a\u{202e}b", "\u{feff}ab", "a\u{ad}b"]).await;
}

/// Noncharacters and the end of the code space.
pub async fn noncharacters_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(h, &["\u{ffff}", "\u{fffe}", "\u{10ffff}", "\u{e000}", "\u{378}"]).await;
}

/// Slashes in every place: paths of documents, files and URLs.
pub async fn slashes_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(h, &["/", "a/b", "/a", "a/", "a//b", "a/b/c", "../a", "a\\b"]).await;
}

/// Names that mean a directory.
pub async fn dots_are_a_key<H: Harness>(h: &H) {
    full_cycles(h, &[".", "..", "...", ".a", "a."]).await;
}

/// Names that a document store keeps for itself.
pub async fn double_underscores_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(h, &["__x__", "__id7__", "__", "____", "__name__"]).await;
}

/// Names in the form of an index entry.
pub async fn a_key_in_the_form_of_an_index_is_a_lock_or_refused<H: Harness>(h: &H) {
    let index = format!("id:{}", LockId::random().as_str());
    full_cycles(h, &[&index, "id:AAAAAAAAAAAAAAAAAAAAAA", "id:", "id:short"]).await;
}

/// Names in the form of a counter; the lock whose counter it would be keeps working.
pub async fn a_key_in_the_form_of_a_counter_is_a_lock_or_refused<H: Harness>(h: &H) {
    let backend = h.backend().await;
    let victim = take(&backend, &key("victim"), LONG).await;
    give_back(&backend, &victim).await;

    full_cycles(h, &["fence:victim", "fence:syncguard:victim", "fence:syncguard:foo", "fence:", "fence"]).await;

    let again = take(&backend, &key("victim"), LONG).await;
    assert_eq!(again.fence.get(), victim.fence.get() + 1, "the counter of another lock moved");
}

/// Names that are statements, placeholders or quotes.
pub async fn sql_metacharacters_are_literal<H: Harness>(h: &H) {
    full_cycles(h, &["'; DROP TABLE syncguard_locks;--", "$1", "%s", "?1", ":name", "\"", "'", "`", "\\", "a%", "a_"])
        .await;
}

/// Names that are patterns: none matches another.
pub async fn glob_metacharacters_are_literal<H: Harness>(h: &H) {
    full_cycles(h, &["abc", "*", "?", "[a]", "a*", "a?c", "[a-z]bc", "{a,b}", "^abc$", "a.c"]).await;
}

/// Names that steer a sharded storage.
pub async fn braces_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(h, &["{tag}:k", "a{b}c", "{}", "{", "}", "{{x}}"]).await;
}

/// Names that are values: JSON, numbers, nothing.
pub async fn a_key_that_looks_like_a_value_is_a_lock<H: Harness>(h: &H) {
    full_cycles(h, &["null", "{}", "[]", "0", "-1", "1e308", "true", "{\"lockId\":\"x\"}", "NaN", "undefined"]).await;
}

/// Colons: the separator of prefixes.
pub async fn colons_are_part_of_a_key<H: Harness>(h: &H) {
    full_cycles(h, &[":", "a:b", "a:", ":a", "a::b", "a:b:c"]).await;
}

/// A name that begins with another name.
pub async fn a_key_and_its_beginning_are_two_locks<H: Harness>(h: &H) {
    all_distinct(h, &["job", "job:", "job:1", "job:11", "jo"]).await;
}

/// The same key under another prefix, table, collection or file.
pub async fn two_namespaces_never_see_each_other<H: Harness>(h: &H) {
    // A long name is stored by its hash, which must know of the namespace too.
    for name in ["shared name", &"shared ".repeat(70)] {
        never_meet(h, &key(name)).await;
    }
}

async fn never_meet<H: Harness>(h: &H, key: &Key) {
    let (here, there) = (h.backend().await, h.elsewhere().await);
    let first = take(&here, key, LONG).await;

    assert!(!is_locked(&there, key).await);
    assert!(there.lookup(Lookup::Key(key)).await.expect("lookup answers").is_none());
    assert!(there.lookup(Lookup::LockId(&first.lock_id)).await.expect("lookup answers").is_none());
    assert!(!there.release(&first.lock_id).await.expect("release answers").is_released());
    assert!(!there.extend(&first.lock_id, LONG).await.expect("extend answers").is_extended());
    let second = take(&there, key, LONG).await;

    assert_eq!(first.fence, second.fence, "each namespace counts for itself");
    give_back(&here, &first).await;
    assert!(is_locked(&there, key).await, "a release here freed the lock there");
    give_back(&there, &second).await;
}

/// Ids come from outside too: from files, arguments, other services.
pub async fn malformed_lock_ids_are_refused<H: Harness>(h: &H) {
    let long = "A".repeat(23);
    for text in [
        "",
        "A",
        "AAAAAAAAAAAAAAAAAAAAA",
        long.as_str(),
        "AAAAAAAAAAAAAAAAAAAAA+",
        "AAAAAAAAAAAAAAAAAAAAA/",
        "AAAAAAAAAAAAAAAAAAAAA=",
        "AAAAAAAAAAAAAAAAAAAAA ",
        "AAAAAAAAAAAAAAAAAAAAA\n",
        "AAAAAAAAAAAAAAAAAAAA\u{e9}",
        "AAAAAAAAAAAAAAAAAAAAA\0",
    ] {
        let error = LockId::parse(text).expect_err("a malformed id is refused");
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(error.to_string().contains("Invalid lockId format"), "{error}");
        assert!(text.len() < 2 || !format!("{error} {error:?}").contains(text), "the message repeats the id");
    }
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    let read = LockId::parse(held.lock_id.as_str()).expect("an id is read back from its text");
    assert!(backend.release(&read).await.expect("release answers").is_released());
}

/// Ids are random, of 22 characters, and never repeat.
pub async fn the_lock_ids_of_a_backend_are_valid_and_differ<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let ids: std::collections::HashSet<_> = (0..1_000).map(|_| backend.new_lock_id(&key)).collect();

    assert_eq!(ids.len(), 1_000);
    for id in ids {
        assert_eq!(LockId::parse(id.as_str()).expect("an id that was made is valid"), id);
    }
}

/// An id that differs only in the bits that base64 leaves unused.
pub async fn an_id_with_other_spare_bits_is_a_stranger<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("k"));
    let held = take(&backend, &key, LONG).await;
    let stem = &held.lock_id.as_str()[..LockId::LENGTH - 1];

    for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef".chars() {
        let twin = LockId::parse(&format!("{stem}{last}")).expect("a valid id");
        if twin != held.lock_id {
            assert!(!backend.release(&twin).await.expect("release answers").is_released());
            assert!(backend.lookup(Lookup::LockId(&twin)).await.expect("lookup answers").is_none());
        }
    }
    give_back(&backend, &held).await;
}

/// The longest lease keeps all its digits.
pub async fn a_lease_of_366_days_keeps_every_millisecond<H: Harness>(h: &H) {
    let (backend, key) = (h.backend().await, key("year"));
    let ttl = syncguard_core::Ttl::MAX;

    let held = take(&backend, &key, ttl).await;

    let info = backend.lookup(Lookup::Key(&key)).await.expect("lookup answers").expect("the lock is held");
    assert_eq!(info.expires_at, held.expires_at);
    assert_eq!(info.expires_at.as_millis() - info.acquired_at.as_millis(), ttl.as_millis());
    assert!(info.free_in().as_millis() > u128::from(TOLERANCE_MS.unsigned_abs()));
    assert!(extend(&backend, &held, ttl).await);
    give_back(&backend, &held).await;
}
