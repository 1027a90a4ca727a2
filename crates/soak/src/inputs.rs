//! What may any input do? (P14, P15)
//!
//! One function per kind of input. It takes bytes from anywhere, and panics when the library does, or when a refusal is
//! of the wrong kind, too long, or repeats what it refuses. The fuzz targets in `fuzz/` and the bounded properties in
//! `tests/inputs.rs` call the same functions.

use std::time::Duration;

use syncguard::firestore::FirestoreBuilder;
use syncguard::postgres::PostgresBuilder;
use syncguard::redis::RedisBuilder;
use syncguard::sqlite::SqliteBuilder;
use syncguard::url_options::duration;
use syncguard::{ErrorCode, Fence, Key, Label, LockError, LockId, Result, Scheme, Ttl};

/// A message is not longer than this, whatever was refused.
const LONGEST_MESSAGE: usize = 1_024;

/// A password that must never be shown.
pub const CANARY: &str = "canary-7Yq2";

/// Shorter inputs appear in honest sentences by chance.
const TELLING: usize = 24;

/// Judges one input.
pub type Judge = fn(&[u8]);

/// The kinds of input, by name.
pub const KINDS: [(&str, Judge); 7] = [
    ("key", key),
    ("lock_id", lock_id),
    ("fence", fence),
    ("ttl", ttl),
    ("duration", duration_text),
    ("label", label),
    ("url", url),
];

/// A key.
///
/// # Panics
/// When a promise is broken; so for all of them.
pub fn key(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(key) = judged(&text, Key::new(&text)) {
        assert!((1..=512).contains(&key.as_str().len()) && !key.as_str().contains('\0'));
        assert_eq!(Key::new(key.as_str()).expect("what was accepted once is accepted again").as_str(), key.as_str());
        assert!(text.len() < TELLING || !format!("{key:?}").contains(&*text), "Debug shows the key");
    }
}

/// A lock id.
pub fn lock_id(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(id) = judged(&text, LockId::parse(&text)) {
        assert_eq!(id.as_str(), text);
        assert!(!format!("{id:?}").contains(&*text), "Debug shows the secret");
    }
}

/// A fence in its text form.
pub fn fence(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(fence) = judged(&text, text.parse::<Fence>()) {
        assert_eq!(fence.to_string(), text);
    }
}

/// A ttl, as milliseconds and as a duration.
pub fn ttl(bytes: &[u8]) {
    let mut eight = [0; 8];
    let length = bytes.len().min(8);
    eight[..length].copy_from_slice(&bytes[..length]);
    let number = i64::from_le_bytes(eight);
    if let Some(ttl) = judged("", Ttl::from_millis(number)) {
        assert_eq!(ttl.as_millis(), number);
    }
    if let Some(ttl) = judged("", Ttl::new(Duration::from_nanos(number.unsigned_abs()))) {
        assert!(
            ttl.duration() <= Duration::from_nanos(number.unsigned_abs()),
            "a lease is never longer than asked for"
        );
    }
}

/// A duration in its text form.
pub fn duration_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    judged(&text, duration("timeout", &text));
}

/// The label of a holder.
pub fn label(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(label) = judged(&text, Label::new(&text)) {
        assert_eq!(label.as_str(), text);
    }
}

/// A URL of any scheme, once as it is and once with a password and with options in front of it.
pub fn url(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    judged("", Scheme::of(&text));
    for scheme in
        ["redis", "rediss", "redis+cluster", "redis+sentinel", "redis+unix", "postgres", "firestore", "sqlite"]
    {
        for url in [
            format!("{scheme}:{text}"),
            format!("{scheme}://{text}"),
            format!("{scheme}://user:{CANARY}@{text}"),
            format!("{scheme}://host/{text}?password={CANARY}&{text}"),
        ] {
            parse(&url);
        }
    }
}

/// Reads a URL with the builder of its scheme.
pub fn parse(url: &str) -> Option<()> {
    let shown = |text: String| assert!(!text.contains(CANARY), "a password is shown");
    match url.split(':').next().unwrap_or("") {
        "postgres" => judged("", PostgresBuilder::from_url(url)).map(|builder| shown(format!("{builder:?}"))),
        "firestore" => judged("", FirestoreBuilder::from_url(url)).map(|builder| shown(format!("{builder:?}"))),
        "sqlite" => judged("", SqliteBuilder::from_url(url)).map(drop),
        _ => judged("", RedisBuilder::from_url(url)).map(|builder| shown(format!("{builder:?}"))),
    }
}

/// What was accepted, or nothing after a look at the refusal.
pub fn judged<T>(input: &str, result: Result<T>) -> Option<T> {
    result.map_err(|error| refused(input, &error)).ok()
}

fn refused(input: &str, error: &LockError) {
    assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
    let shown = format!("{error}\n{error:?}\n{}", error.hint().unwrap_or(""));
    assert!(error.to_string().len() <= LONGEST_MESSAGE, "a message of {} bytes", error.to_string().len());
    assert!(input.len() < TELLING || !shown.contains(input), "the refusal repeats its input");
    assert!(!shown.contains(CANARY), "the refusal shows a password");
}
