//! Where does a reply end, and what does it say?
//!
//! The protocol that every server speaks without being asked (RESP2), as far as replies go, and requests put together
//! in one piece of memory. The driver's own reader is made for streams of any kind; error replies, which are rare, are
//! still read by it.

use redis::{ErrorKind, RedisError, RedisResult, Value};

/// No reply to anything that is asked here is nested deeper: `CLUSTER SLOTS` has four levels.
const MAX_DEPTH: u8 = 16;

/// Returns the length of the reply that begins here; `None` while it is not complete.
///
/// Looks at lengths alone, so that a long list that arrives in many pieces is not built again for each of them.
pub(crate) fn length(bytes: &[u8]) -> RedisResult<Option<usize>> {
    end(bytes, 0, MAX_DEPTH)
}

fn end(bytes: &[u8], start: usize, depth: u8) -> RedisResult<Option<usize>> {
    let Some((kind, line, after)) = line(bytes, start)? else { return Ok(None) };
    match kind {
        b'+' | b'-' | b':' => Ok(Some(after)),
        b'$' => Ok(count(line)?.map_or(Some(after), |size| {
            // The text and its line end.
            let end = after + size + 2;
            (bytes.len() >= end).then_some(end)
        })),
        b'*' => {
            let depth = depth.checked_sub(1).ok_or_else(garbled)?;
            let mut at = after;
            for _ in 0..count(line)?.unwrap_or(0) {
                match end(bytes, at, depth)? {
                    Some(end) => at = end,
                    None => return Ok(None),
                }
            }
            Ok(Some(at))
        }
        _ => Err(garbled()),
    }
}

/// Reads a complete reply.
pub(crate) fn value(reply: &[u8]) -> RedisResult<Value> {
    let mut at = 0;
    build(reply, &mut at)
}

fn build(reply: &[u8], at: &mut usize) -> RedisResult<Value> {
    let start = *at;
    let (kind, line, after) = line(reply, start)?.ok_or_else(garbled)?;
    *at = after;
    match kind {
        b':' => Ok(Value::Int(number(line)?)),
        b'+' if line == b"OK" => Ok(Value::Okay),
        b'+' => Ok(Value::SimpleString(String::from_utf8(line.to_vec()).map_err(|_| garbled())?)),
        b'-' => redis::parse_redis_value(&reply[start..after]),
        b'$' => {
            let Some(size) = count(line)? else { return Ok(Value::Nil) };
            let text = reply.get(after..after + size).ok_or_else(garbled)?;
            if reply.get(after + size..after + size + 2) != Some(b"\r\n") {
                return Err(garbled());
            }
            *at = after + size + 2;
            Ok(Value::BulkString(text.to_vec()))
        }
        b'*' => {
            let Some(size) = count(line)? else { return Ok(Value::Nil) };
            // Each part has three bytes at least: a size that lies cannot reserve more than was received.
            let mut parts = Vec::with_capacity(size.min(reply.len() / 3));
            for _ in 0..size {
                parts.push(build(reply, at)?);
            }
            Ok(Value::Array(parts))
        }
        _ => Err(garbled()),
    }
}

/// The first byte of a line, the rest of it, and where the next one begins.
#[allow(clippy::type_complexity, reason = "one caller's worth of names")]
fn line(bytes: &[u8], start: usize) -> RedisResult<Option<(u8, &[u8], usize)>> {
    let Some((kind, rest)) = bytes.get(start..).and_then(<[u8]>::split_first) else { return Ok(None) };
    if !matches!(kind, b'+' | b'-' | b':' | b'$' | b'*') {
        return Err(garbled());
    }
    let Some(length) = rest.iter().position(|byte| *byte == b'\r') else { return Ok(None) };
    match rest.get(length + 1) {
        Some(b'\n') => Ok(Some((*kind, &rest[..length], start + 1 + length + 2))),
        Some(_) => Err(garbled()),
        None => Ok(None),
    }
}

/// A length; `None` for the absence of a value.
fn count(line: &[u8]) -> RedisResult<Option<usize>> {
    match number(line)? {
        -1 => Ok(None),
        // What Redis itself allows for one text.
        size @ 0..=536_870_912 => Ok(usize::try_from(size).ok()),
        _ => Err(garbled()),
    }
}

fn number(line: &[u8]) -> RedisResult<i64> {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or_else(garbled)
}

fn garbled() -> RedisError {
    (ErrorKind::Parse, "not a reply of the redis protocol").into()
}

/// A request that is put together word by word.
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// `size` is a guess of all its bytes.
    pub(crate) fn new(words: usize, size: usize) -> Self {
        let mut bytes = Vec::with_capacity(size + 16 * words + 16);
        bytes.push(b'*');
        decimal(&mut bytes, words);
        bytes.extend_from_slice(b"\r\n");
        Self(bytes)
    }

    #[must_use]
    pub(crate) fn word(mut self, word: &str) -> Self {
        self.0.push(b'$');
        decimal(&mut self.0, word.len());
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(word.as_bytes());
        self.0.extend_from_slice(b"\r\n");
        self
    }

    pub(crate) fn packed(self) -> Vec<u8> {
        self.0
    }
}

fn decimal(bytes: &mut Vec<u8>, number: usize) {
    let mut digits = [0; 20];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        // One digit: always a byte.
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    bytes.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const REPLIES: [&[u8]; 11] = [
        b"+OK\r\n",
        b"+PONG\r\n",
        b":-31000\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$12\r\na\r\nb{}\"\r\n:1\r\r\n",
        b"-NOSCRIPT No matching script.\r\n",
        b"*3\r\n$2\r\nab\r\n:7\r\n*1\r\n$-1\r\n",
        b"*2\r\n-MOVED 7 h:1\r\n$1\r\nx\r\n",
    ];

    /// The driver is the judge.
    #[test]
    fn every_reply_reads_as_the_driver_reads_it_and_only_when_it_is_complete() {
        for reply in REPLIES {
            for cut in 0..reply.len() {
                assert_eq!(length(&reply[..cut]).unwrap(), None, "{reply:?} {cut}");
            }
            let mut followed = reply.to_vec();
            followed.extend_from_slice(b":1\r\n");
            assert_eq!(length(&followed).unwrap(), Some(reply.len()), "{reply:?}");
            assert_eq!(value(reply).unwrap(), redis::parse_redis_value(reply).unwrap(), "{reply:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_reply_are_an_error() {
        for bytes in [&b"HTTP/1.1 400\r\n"[..], b"$x\r\n", b"$-2\r\n", b"*99999999999\r\n", b":1\rx", b"%1\r\n"] {
            assert_eq!(length(bytes).unwrap_err().kind(), ErrorKind::Parse, "{bytes:?}");
        }
        assert_eq!(value(b"$1\r\nxyz").unwrap_err().kind(), ErrorKind::Parse);
        assert_eq!(length(&b"*1\r\n".repeat(20)).unwrap_err().kind(), ErrorKind::Parse, "nested without end");
    }

    #[test]
    fn a_request_is_packed_as_the_driver_packs_it() {
        let long = "x".repeat(1234);
        let words = ["EVALSHA", "", "a\r\nb", "é", &long];
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let request = words.iter().fold(Request::new(words.len(), 0), |request, word| request.word(word));
        assert_eq!(request.packed(), command.get_packed_command());
    }
}
