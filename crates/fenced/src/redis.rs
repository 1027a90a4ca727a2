//! How does Redis refuse a stale writer?
//!
//! A script compares, remembers and writes, and nothing else runs in between. The mark lies beside the data under a
//! name that hashes to the same slot, so it works in a Cluster, and both are lost or restored together. One round trip,
//! the script by its hash.

use redis::aio::ConnectionLike;
use redis::{RedisError, Script, ToRedisArgs, Value};
use syncguard_core::{ErrorCode, Fence, LockError};

use crate::{FenceError, Result, StaleFence};

const GUARD: &str = include_str!("../lua/guard.lua");

/// Sets a key to a value, unless a higher fence has written it.
///
/// ```no_run
/// # async fn example(
/// #     connection: &mut redis::aio::MultiplexedConnection, lock: &syncguard_core::LockHandle,
/// # ) -> Result<(), syncguard_fenced::FenceError> {
/// syncguard_fenced::redis::fenced_set(connection, "ledger:2026", "100", lock.fence()).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Stale`](FenceError::Stale) when a higher fence has written, [`Failed`](FenceError::Failed) with what Redis
/// reports.
///
/// # Cancel safety
/// A dropped call may still take effect, as any command that was sent.
pub async fn fenced_set(
    connection: &mut impl ConnectionLike,
    key: &str,
    value: impl ToRedisArgs,
    fence: Fence,
) -> Result<()> {
    static SET: std::sync::OnceLock<FencedScript> = std::sync::OnceLock::new();
    let script = SET.get_or_init(|| FencedScript::new("return redis.call('SET', KEYS[1], ARGV[1])"));
    script.key(key).arg(value).run(connection, fence).await.map(drop)
}

/// A Lua script that runs only under a current fence.
///
/// `KEYS` and `ARGV` hold what the caller gave, and the script may return what it likes. It is wrapped into a function,
/// so a `#!lua` line cannot stand at its start.
///
/// ```no_run
/// # async fn example(
/// #     connection: &mut redis::aio::MultiplexedConnection, lock: &syncguard_core::LockHandle,
/// # ) -> Result<(), syncguard_fenced::FenceError> {
/// use syncguard_fenced::redis::FencedScript;
///
/// let post = FencedScript::new("return redis.call('RPUSH', KEYS[1], ARGV[1])");
/// let length = post.key("postings").arg("rent").run(connection, lock.fence()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedScript(Script);

impl FencedScript {
    /// Wraps a script.
    pub fn new(lua: &str) -> Self {
        let code = format!(
            "{GUARD}\nlocal function guarded(KEYS, ARGV)\n{lua}\nend\n\
             return {{1, guarded({{unpack(KEYS, 2)}}, {{unpack(ARGV, 2)}})}}\n"
        );
        Self(Script::new(&code))
    }

    /// Starts a call. The first key is the one whose mark is compared.
    pub fn key(&self, key: &str) -> FencedCall<'_> {
        FencedCall { script: &self.0, keys: vec![key.to_owned()], arguments: Vec::new() }
    }
}

/// One call of a [`FencedScript`].
#[derive(Clone)]
pub struct FencedCall<'s> {
    script: &'s Script,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl std::fmt::Debug for FencedCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FencedCall").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl FencedCall<'_> {
    /// Adds a key, in a Cluster of the same slot as the first.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.keys.push(key.to_owned());
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.arguments.extend(argument.to_redis_args());
        self
    }

    /// Runs the script and returns what it returns.
    ///
    /// # Errors
    /// [`Stale`](FenceError::Stale) when a higher fence was accepted for the first key: then the script did not run.
    /// [`Failed`](FenceError::Failed) with what Redis reports.
    ///
    /// # Cancel safety
    /// A dropped call may still take effect, as any command that was sent.
    pub async fn run(self, connection: &mut impl ConnectionLike, fence: Fence) -> Result<Value> {
        let first = self.keys.first().map_or("", String::as_str);
        let mut call = self.script.key(mark_key(first)?);
        for key in &self.keys {
            call.key(key);
        }
        call.arg(fence.to_string());
        for argument in &self.arguments {
            call.arg(argument.as_slice());
        }
        let answer = call.invoke_async(connection).await.map_err(failed)?;
        understand(answer, fence)
    }
}

/// Returns the name of the mark that belongs to a key: in its slot, and never the name of a key that somebody else
/// would choose.
///
/// For recipes in other languages; it is `syncguard:mark:{KEY}`, or `syncguard:mark:KEY` when the key has a hash tag of
/// its own. A key that is nothing but a hash tag, `{ledger}`, has `syncguard:mark-of:{ledger}`: the other name is that of
/// `ledger`.
///
/// # Errors
/// [`Failed`](FenceError::Failed) for an empty key and for one that holds `}` without being tagged: no name shares its
/// slot.
pub fn mark_key(key: &str) -> Result<String> {
    if is_tagged(key) {
        let name = if key.starts_with('{') && key.find('}') == Some(key.len() - 1) { "mark-of" } else { "mark" };
        return Ok(format!("syncguard:{name}:{key}"));
    }
    if key.is_empty() || key.contains('}') {
        return Err(LockError::invalid("no mark can share the slot of this redis key")
            .with_hint("give the key a hash tag, for example {ledger}:2026")
            .into());
    }
    Ok(format!("syncguard:mark:{{{key}}}"))
}

/// Whether Redis hashes a part of the key only: what is between the first `{` and the first `}` after it, if that is
/// not empty.
fn is_tagged(key: &str) -> bool {
    let after = key.split_once('{').map(|(_, after)| after);
    after.and_then(|after| after.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty())
}

fn understand(answer: Value, offered: Fence) -> Result<Value> {
    let Value::Array(mut parts) = answer else {
        return Err(FenceError::damaged("redis answered something that the script never says"));
    };
    match parts.first() {
        // Lua ends an array at its first nil, so a script that returns nothing leaves one element.
        Some(Value::Int(1)) => Ok(if parts.len() > 1 { parts.swap_remove(1) } else { Value::Nil }),
        Some(Value::Int(0)) => Err(refusal(parts.get(1), offered)),
        _ => Err(FenceError::damaged("redis answered something that the script never says")),
    }
}

fn refusal(seen: Option<&Value>, offered: Fence) -> FenceError {
    match seen.and_then(fence_of) {
        Some(seen) => StaleFence { offered, seen }.into(),
        None => FenceError::damaged("the mark in redis is no fence"),
    }
}

fn fence_of(value: &Value) -> Option<Fence> {
    let text: String = redis::FromRedisValue::from_redis_value_ref(value).ok()?;
    Fence::new(text.parse().ok()?).ok()
}

/// Refuses older holders from now on. Call it before you read what you decide by.
///
/// # Errors
/// As [`fenced_set`].
///
/// # Cancel safety
/// A dropped call may still take effect; announcing again is harmless.
pub async fn announce(connection: &mut impl ConnectionLike, key: &str, fence: Fence) -> Result<()> {
    static NOTHING: std::sync::OnceLock<FencedScript> = std::sync::OnceLock::new();
    let script = NOTHING.get_or_init(|| FencedScript::new(""));
    script.key(key).run(connection, fence).await.map(drop)
}

fn failed(error: RedisError) -> FenceError {
    let code = match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => ErrorCode::AuthFailed,
        Some("CROSSSLOT" | "WRONGTYPE") => ErrorCode::InvalidArgument,
        Some("SGDAMAGED") => ErrorCode::Internal,
        _ if error.is_timeout() => ErrorCode::NetworkTimeout,
        _ => ErrorCode::ServiceUnavailable,
    };
    FenceError::Failed(LockError::new(code, "redis did not carry out the fenced write").with_source(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_has_the_hash_tag_of_its_key() {
        for (key, mark) in [
            ("ledger", "syncguard:mark:{ledger}"),
            ("{a}:b", "syncguard:mark:{a}:b"),
            ("x{a}{b}", "syncguard:mark:x{a}{b}"),
            ("a{b", "syncguard:mark:{a{b}"),
            ("{ledger}", "syncguard:mark-of:{ledger}"),
            ("{ledger}}", "syncguard:mark:{ledger}}"),
            ("{a{b}", "syncguard:mark-of:{a{b}"),
        ] {
            assert_eq!(mark_key(key).unwrap(), mark);
        }
    }

    #[test]
    fn a_key_whose_slot_no_name_can_share_is_refused() {
        for key in ["", "a}b", "{}a", "}"] {
            assert!(mark_key(key).is_err(), "{key}");
        }
    }
}
