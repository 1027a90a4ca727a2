//! How do a key and a fence travel in headers?
//!
//! The fence as its 15 digits. The key as it is where a header can hold it; every other byte, and `%`, is
//! percent-encoded, so that any key arrives as it was.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use syncguard_core::{Fence, Key, LockHandle};

/// The header that names the lock's key.
pub const KEY: HeaderName = HeaderName::from_static("syncguard-key");
/// The header that carries the lock's fence.
pub const FENCE: HeaderName = HeaderName::from_static("syncguard-fence");

/// What a request said about its lock. The server's layer leaves it in the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedRequest {
    /// The key of the lock.
    pub key: Key,
    /// Its fence, already accepted.
    pub fence: Fence,
}

/// Returns the two headers of a lock, for clients that are no tower service.
///
/// ```no_run
/// # async fn example(lock: &syncguard_core::LockHandle) -> Result<(), Box<dyn std::error::Error>> {
/// use syncguard_fenced::http::fence_headers;
///
/// let request = reqwest::Client::new().put("http://127.0.0.1:8080/ledger").headers(fence_headers(lock));
/// # Ok(())
/// # }
/// ```
pub fn fence_headers(lock: &LockHandle) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2);
    insert(&mut headers, lock.key(), lock.fence());
    headers
}

pub(super) fn insert(headers: &mut HeaderMap, key: &Key, fence: Fence) {
    // Both texts are visible ASCII by construction; if that were ever wrong, the server would miss the header and
    // refuse.
    if let Ok(mut value) = HeaderValue::from_str(&encode(key.as_str())) {
        // A key belongs in no log: whoever prints headers prints "Sensitive" instead.
        value.set_sensitive(true);
        headers.insert(KEY, value);
    }
    if let Ok(value) = HeaderValue::from_str(&fence.to_string()) {
        headers.insert(FENCE, value);
    }
}

fn encode(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'%' | 0..=b' ' | 0x7f.. => {
                let _ = write!(text, "%{byte:02X}");
            }
            _ => text.push(char::from(byte)),
        }
    }
    text
}

fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

/// What the headers of a request say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    Nonsense,
    Fenced(FencedRequest),
}

pub(super) fn read(headers: &HeaderMap) -> Said {
    let (mut keys, mut fences) = (headers.get_all(KEY).iter(), headers.get_all(FENCE).iter());
    let (key, fence) = match (keys.next(), fences.next()) {
        (None, None) => return Said::Nothing,
        (Some(key), Some(fence)) => (key, fence),
        _ => return Said::Nonsense,
    };
    // Of two keys, a proxy and a handler might each believe another one.
    if keys.next().is_some() || fences.next().is_some() {
        return Said::Nonsense;
    }
    let key = key.to_str().ok().and_then(decode).and_then(|name| Key::new(name).ok());
    let fence = fence.to_str().ok().and_then(|text| text.parse().ok());
    match (key, fence) {
        (Some(key), Some(fence)) => Said::Fenced(FencedRequest { key, fence }),
        _ => Said::Nonsense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_arrives_as_it_was() {
        for name in ["ledger", "a b", "100%", "%41", "caf\u{e9}", "\u{1f600}", "a\nb", "\"';{}", " x ", "\u{7f}"] {
            let key = Key::new(name).unwrap();
            let mut headers = HeaderMap::new();
            insert(&mut headers, &key, Fence::FIRST);
            assert_eq!(read(&headers), Said::Fenced(FencedRequest { key, fence: Fence::FIRST }));
        }
    }

    #[test]
    fn half_a_fence_is_nonsense() {
        let cases: [&[(&HeaderName, &str)]; 7] = [
            &[(&KEY, "k")],
            &[(&FENCE, "000000000000001")],
            &[(&KEY, "k"), (&FENCE, "1")],
            &[(&KEY, "k"), (&FENCE, "000000000000000")],
            &[(&KEY, "%zz"), (&FENCE, "000000000000001")],
            &[(&KEY, "%f"), (&FENCE, "000000000000001")],
            &[(&KEY, "a"), (&KEY, "b"), (&FENCE, "000000000000001")],
        ];
        for case in cases {
            let mut headers = HeaderMap::new();
            for (name, value) in case {
                headers.append(*name, HeaderValue::from_str(value).unwrap());
            }
            assert_eq!(read(&headers), Said::Nonsense, "{case:?}");
        }
        assert_eq!(read(&HeaderMap::new()), Said::Nothing);
    }

    #[test]
    fn printed_headers_do_not_show_the_key() {
        let mut headers = HeaderMap::new();
        insert(&mut headers, &Key::new("canary").unwrap(), Fence::FIRST);
        assert!(!format!("{headers:?}").contains("canary"));
    }
}
