//! What do the scripts answer?
//!
//! Every reply is checked: a server that is broken, hostile or in step with another request must not become a lock.

use redis::Value;
use serde_json::Value as Json;
use syncguard_core::time::is_live;
use syncguard_core::{
    AbsentReason, AcquireOutcome, AskOutcome, Contention, ExtendOutcome, Extension, Fence, Key, Label, Lease,
    LockError, LockId, LockInfo, ReleaseOutcome, Result, Timestamp, Ttl,
};

use crate::listener::NAME_LENGTH;

/// Stored values above this size are not parsed.
const MAX_VALUE_BYTES: usize = 64 * 1024;

/// The answer of `acquire.lua`.
pub(crate) enum AcquireReply {
    Decided(AcquireOutcome),
    /// A dead holder's index must be declared first.
    Dead(String),
    /// It is free, and left to the process whose turn it is.
    NotYet,
}

/// `head` is the stored value up to its expiry: it holds our id, so a reply that belongs to another call is not taken
/// for ours.
pub(crate) fn acquire(reply: &Value, head: &str) -> Result<AcquireReply> {
    match reply {
        Value::BulkString(value) => {
            let lease = granted(text(value)?, head).ok_or_else(unexpected)?;
            Ok(AcquireReply::Decided(AcquireOutcome::Acquired(lease)))
        }
        Value::Int(wait) if *wait < 0 => {
            Ok(AcquireReply::Decided(AcquireOutcome::Contended(free_in(*wait).announcing_release())))
        }
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(wait)] if *wait < 0 => Ok(AcquireReply::Decided(AcquireOutcome::Contended(free_in(*wait)))),
            [Value::Int(fence), Value::Int(expires_at), Value::Int(now)] if *expires_at > 0 && *now > 0 => {
                let fence = Fence::new(u64::try_from(*fence).unwrap_or(0))?;
                let lease = Lease::new(fence, Timestamp::from_millis(*expires_at));
                let lease = lease.observed_at(Timestamp::from_millis(*now));
                Ok(AcquireReply::Decided(AcquireOutcome::Acquired(lease)))
            }
            [Value::BulkString(id)] => Ok(AcquireReply::Dead(text(id)?.to_owned())),
            [] => Ok(AcquireReply::NotYet),
            _ => Err(unexpected()),
        },
        _ => Err(unexpected()),
    }
}

fn free_in(wait: i64) -> Contention {
    Contention::free_in(std::time::Duration::from_millis(wait.unsigned_abs()))
}

/// Reads the numbers out of a value whose form we gave ourselves. A lock is acquired at the time of its answer.
fn granted(value: &str, head: &str) -> Option<Lease> {
    let positive = |text: &str| text.parse().ok().filter(|millis| *millis > 0).map(Timestamp::from_millis);
    let rest = value.strip_prefix(head)?;
    let (expires_at, rest) = rest.split_once(',')?;
    let (acquired_at, _) = rest.strip_prefix("\"acquiredAtMs\":")?.split_once(',')?;
    let (_, fence) = rest.strip_suffix("\"}")?.rsplit_once('"')?;
    Some(Lease::new(fence.parse().ok()?, positive(expires_at)?).observed_at(positive(acquired_at)?))
}

/// The answer of `release.lua`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseReply {
    Freed,
    /// Freed, and the process of this name was told that it is its turn.
    Told(String),
    /// Freed, but publishing it is not permitted.
    NotPermitted,
    Absent(AbsentReason),
}

impl ReleaseReply {
    pub(crate) const fn outcome(&self) -> ReleaseOutcome {
        match self {
            Self::Absent(reason) => ReleaseOutcome::Absent(Some(*reason)),
            Self::Freed | Self::Told(_) | Self::NotPermitted => ReleaseOutcome::Released,
        }
    }
}

pub(crate) fn release(reply: &Value) -> Result<ReleaseReply> {
    match reply {
        Value::Int(-3) => Ok(ReleaseReply::NotPermitted),
        Value::Int(1) => Ok(ReleaseReply::Freed),
        Value::Int(code) => absent(*code).map(ReleaseReply::Absent),
        Value::BulkString(name) if name.len() == NAME_LENGTH => Ok(ReleaseReply::Told(text(name)?.to_owned())),
        _ => Err(unexpected()),
    }
}

/// The answer of `extend.lua`.
pub(crate) fn extend(reply: &Value) -> Result<ExtendOutcome> {
    let extended = |expires_at, asked| {
        Ok(ExtendOutcome::Extended(Extension::new(Timestamp::from_millis(expires_at)).asked_for(asked)))
    };
    match reply {
        Value::Int(expires_at) if *expires_at > 0 => extended(*expires_at, false),
        Value::Int(code) => Ok(ExtendOutcome::Absent(Some(absent(*code)?))),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(expires_at), Value::Int(1)] if *expires_at > 0 => extended(*expires_at, true),
            _ => Err(unexpected()),
        },
        _ => Err(unexpected()),
    }
}

/// The answer of `ask.lua`.
pub(crate) fn ask(reply: &Value) -> Result<AskOutcome> {
    match reply {
        Value::Int(1) => Ok(AskOutcome::Asked),
        Value::Int(code) => absent(*code).map(|_| AskOutcome::Absent),
        _ => Err(unexpected()),
    }
}

/// The answer of `purge.lua`.
pub(crate) fn purged(reply: &Value) -> Result<bool> {
    match reply {
        Value::Int(count @ 0..=1) => Ok(*count == 1),
        _ => Err(unexpected()),
    }
}

fn absent(code: i64) -> Result<AbsentReason> {
    match code {
        0 | -1 => Ok(AbsentReason::NotFound),
        -2 => Ok(AbsentReason::Expired),
        _ => Err(unexpected()),
    }
}

/// The answer of `lookup.lua`: the stored value and the time.
pub(crate) fn found(reply: &Value) -> Result<Option<(Stored, Timestamp)>> {
    match reply {
        Value::Nil => Ok(None),
        Value::Array(parts) => match parts.as_slice() {
            [value, seconds, micros] => {
                let now = clock(seconds, micros)?;
                Ok(Stored::parse(value)?.map(|stored| (stored, now)))
            }
            _ => Err(unexpected()),
        },
        _ => Err(unexpected()),
    }
}

/// The answer of `TIME`.
pub(crate) fn time(reply: &Value) -> Result<Timestamp> {
    match reply {
        Value::Array(parts) => match parts.as_slice() {
            [seconds, micros] => clock(seconds, micros),
            _ => Err(unexpected()),
        },
        _ => Err(unexpected()),
    }
}

/// A plain `GET`.
pub(crate) fn string(reply: &Value) -> Result<Option<String>> {
    match reply {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(String::from_utf8_lossy(bytes).into_owned())),
        _ => Err(unexpected()),
    }
}

fn clock(seconds: &Value, micros: &Value) -> Result<Timestamp> {
    let number = |value: &Value| match value {
        Value::BulkString(bytes) => text(bytes)?.parse::<i64>().map_err(|_| unexpected()),
        Value::Int(number) => Ok(*number),
        _ => Err(unexpected()),
    };
    Ok(Timestamp::from_millis(number(seconds)?.saturating_mul(1000).saturating_add(number(micros)? / 1000)))
}

/// A lock as it lies in Redis.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) lock_id: Option<String>,
    pub(crate) expires_at: Timestamp,
    json: Json,
}

impl Stored {
    /// `None` for nothing; an error for something that is not a lock. Takes and refuses what `read.lua` does.
    pub(crate) fn parse(value: &Value) -> Result<Option<Self>> {
        let bytes = match value {
            Value::Nil => return Ok(None),
            Value::BulkString(bytes) if bytes.len() <= MAX_VALUE_BYTES => bytes,
            _ => return Err(foreign()),
        };
        // cjson takes any bytes inside of a text.
        let json: Json = serde_json::from_str(&String::from_utf8_lossy(bytes)).map_err(|_| foreign())?;
        let expires_at = json.get("expiresAtMs").and_then(millis).ok_or_else(foreign)?;
        let lock_id = json.get("lockId").and_then(Json::as_str).map(str::to_owned);
        Ok(Some(Self { lock_id, expires_at, json }))
    }

    pub(crate) fn is_live(&self, now: Timestamp) -> bool {
        is_live(self.expires_at, now)
    }

    /// All of it, for an onlooker. Only asked of a live lock.
    pub(crate) fn info(&self, now: Timestamp) -> Result<LockInfo> {
        let field = |name: &str| self.json.get(name).and_then(Json::as_str).ok_or_else(foreign);
        let key = Key::new(field("key")?).map_err(|_| foreign())?;
        let lock_id = LockId::parse(field("lockId")?).map_err(|_| foreign())?;
        let fence = field("fence")?.parse::<Fence>().map_err(|_| foreign())?;
        let acquired_at = self.json.get("acquiredAtMs").and_then(millis).ok_or_else(foreign)?;
        let info = LockInfo::new(key, lock_id, fence, acquired_at, self.expires_at, now);
        // What other clients do not write, or write in another form, is not known; it makes nothing foreign.
        let label = self.json.get("label").and_then(Json::as_str).and_then(|label| Label::new(label).ok());
        let ttl = self.json.get("ttlMs").and_then(Json::as_i64).and_then(|millis| Ttl::from_millis(millis).ok());
        let asked = self.json.get("asked").and_then(Json::as_bool).unwrap_or(false);
        Ok(info.with_label(label).with_ttl(ttl).with_asked_for(asked))
    }
}

/// Whole milliseconds; other programs may have written them as 1.7e+12. All numbers of cjson are of this kind.
fn millis(json: &Json) -> Option<Timestamp> {
    let number = json.as_f64().filter(|number| number.abs() <= 9_007_199_254_740_991.0 && number.fract() == 0.0)?;
    format!("{number:.0}").parse().ok().map(Timestamp::from_millis)
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| unexpected())
}

pub(crate) fn unexpected() -> LockError {
    LockError::internal("redis answered a script with something else than the script answers")
        .with_hint("something between this client and redis changes replies, or the server is not redis")
        .ambiguous()
}

fn foreign() -> LockError {
    LockError::internal("the value stored at the lock's key is not a lock")
        .with_hint("another program writes under this prefix; give one of them another prefix, or delete that value")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    const HEAD: &str = r#"{"lockId":"AAAAAAAAAAAAAAAAAAAAAA","expiresAtMs":"#;

    #[test]
    fn only_the_known_replies_become_a_lock() {
        let tail = r#","acquiredAtMs":1,"key":"k\"}","fence":"000000000000007"}"#;
        let value = bulk(&format!("{HEAD}1700000000000{tail}"));
        let AcquireReply::Decided(AcquireOutcome::Acquired(lease)) = acquire(&value, HEAD).unwrap() else {
            panic!("granted")
        };
        assert_eq!((lease.fence.get(), lease.expires_at.as_millis()), (7, 1_700_000_000_000));
        let written_elsewhere = Value::Array(vec![Value::Int(7), Value::Int(1_700_000_000_000), Value::Int(1)]);
        assert!(matches!(
            acquire(&written_elsewhere, HEAD).unwrap(),
            AcquireReply::Decided(AcquireOutcome::Acquired(_))
        ));
        let dead = Value::Array(vec![bulk("BBBBBBBBBBBBBBBBBBBBBB")]);
        assert!(matches!(acquire(&dead, HEAD), Ok(AcquireReply::Dead(id)) if id == "BBBBBBBBBBBBBBBBBBBBBB"));
        for bad in [
            Value::Nil,
            Value::Okay,
            Value::Int(0),
            Value::Int(1),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(1), bulk("x")]),
            Value::Array(vec![Value::Int(7), Value::Int(5)]),
            Value::Array(vec![Value::Int(0), Value::Int(5), Value::Int(1)]),
            Value::Array(vec![Value::Int(7), Value::Int(5), Value::Int(0)]),
            Value::Array(vec![bulk(HEAD), Value::Int(5)]),
            Value::Array(vec![bulk(HEAD), Value::Int(0)]),
            Value::Array(vec![Value::Int(-3), Value::Int(5), Value::Int(1)]),
            Value::Array(vec![Value::Int(900_000_000_000_001), Value::Int(5), Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(-5), Value::Int(1)]),
            bulk(""),
            bulk(HEAD),
            Value::Array(vec![value, Value::Int(0)]),
            bulk(&format!("{HEAD}x{tail}")),
            bulk(&format!("{HEAD}-5{tail}")),
            // Somebody else's reply.
            bulk(&format!("{HEAD}1700000000000{tail}").replace("AAAA", "BBBB")),
            bulk(&format!("{HEAD}1700000000000{tail}").replace("000000000000007", "7")),
            bulk(&format!("{HEAD}1700000000000{tail}").replace("000000000000007", "999999999999999")),
        ] {
            assert!(acquire(&bad, HEAD).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn release_and_extend_know_why() {
        for (reply, meant) in [
            (Value::Int(1), ReleaseReply::Freed),
            (Value::Int(-3), ReleaseReply::NotPermitted),
            (bulk("mememeME"), ReleaseReply::Told("mememeME".to_owned())),
        ] {
            let reply = release(&reply).unwrap();
            assert_eq!((reply.outcome(), reply), (ReleaseOutcome::Released, meant));
        }
        let absent = |reason| ReleaseOutcome::Absent(Some(reason));
        assert_eq!(release(&Value::Int(0)).unwrap().outcome(), absent(AbsentReason::NotFound));
        assert_eq!(release(&Value::Int(-1)).unwrap().outcome(), absent(AbsentReason::NotFound));
        assert_eq!(release(&Value::Int(-2)).unwrap().outcome(), absent(AbsentReason::Expired));
        for bad in [Value::Int(-9), Value::Int(2), Value::Nil, bulk(""), bulk("name")] {
            assert!(release(&bad).is_err(), "{bad:?}");
        }
        let at = |asked| ExtendOutcome::Extended(Extension::new(Timestamp::from_millis(5)).asked_for(asked));
        assert_eq!(extend(&Value::Int(5)).unwrap(), at(false));
        assert_eq!(extend(&Value::Array(vec![Value::Int(5), Value::Int(1)])).unwrap(), at(true));
        for bad in
            [vec![], vec![Value::Int(5)], vec![Value::Int(-2), Value::Int(1)], vec![Value::Int(5), Value::Int(7)]]
        {
            assert!(extend(&Value::Array(bad)).is_err());
        }
        assert!(extend(&Value::Okay).is_err());
        assert_eq!(ask(&Value::Int(1)).unwrap(), AskOutcome::Asked);
        assert_eq!(ask(&Value::Int(-2)).unwrap(), AskOutcome::Absent);
        assert!(ask(&Value::Int(2)).is_err() && ask(&Value::Nil).is_err());
    }

    #[test]
    fn what_is_not_a_lock_is_never_read_as_a_free_one() {
        for bad in ["not json", "1", "\"x\"", "[]", "null", "{}", r#"{"expiresAtMs":"5"}"#, r#"{"expiresAtMs":1e308}"#]
        {
            assert!(Stored::parse(&bulk(bad)).is_err(), "{bad}");
        }
        assert!(Stored::parse(&bulk(&format!("{{\"expiresAtMs\":1,\"x\":\"{}\"}}", "y".repeat(70_000)))).is_err());
        assert!(Stored::parse(&Value::Nil).unwrap().is_none());
        let negative = Stored::parse(&bulk(r#"{"expiresAtMs":-5}"#)).unwrap().unwrap();
        assert!(!negative.is_live(Timestamp::from_millis(1_700_000_000_000)));
        let floating = Stored::parse(&bulk(r#"{"expiresAtMs":1.7e12}"#)).unwrap().unwrap();
        assert_eq!(floating.expires_at.as_millis(), 1_700_000_000_000);
    }
}
