//! What did the server, the driver or the network mean by that?
//!
//! Decided by code words and kinds, never by message text: texts change between versions and may carry a user's key.
//! For the same reason a server's text is not passed on; its code word is.

use std::fmt;
use std::io;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use syncguard_core::{ErrorCode, LockError};

/// Why a call to a server gave no answer. Kept apart from [`LockError`] because routing decides by it first.
#[derive(Debug)]
pub(crate) enum CallError {
    /// No connection could be made: nothing was sent.
    Connect(ConnectError),
    /// The server answered with an error, or the connection broke with the request on it.
    Redis(RedisError),
    /// No answer in time: the request may have been acted upon.
    Timeout,
}

/// Why a connection could not be made. Shared by all callers that waited for it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectError {
    code: ErrorCode,
    message: String,
    hint: &'static str,
}

impl CallError {
    /// The code word of an error reply, if the server replied.
    pub(crate) fn word(&self) -> Option<&str> {
        match self {
            Self::Redis(error) => error.code(),
            _ => None,
        }
    }

    pub(crate) fn is_server(&self, kind: ServerErrorKind) -> bool {
        matches!(self, Self::Redis(error) if error.kind() == ErrorKind::Server(kind))
    }

    /// As the caller of a lock operation sees it.
    pub(crate) fn into_lock_error(self) -> LockError {
        match self {
            Self::Connect(error) => error.into_lock_error(),
            Self::Timeout => LockError::new(ErrorCode::NetworkTimeout, "redis did not answer in time")
                .with_hint("the server is paused, overloaded or cut off; raise `timeout` if it is only far away")
                .ambiguous(),
            Self::Redis(error) => match error.code() {
                // A script was refused a call; the first word of the rest says why. The calls of the scripts cannot be
                // malformed, so a bare ERR can only mean that the user lacks the right: Redis has no word for that
                // there.
                Some("SYNCGUARDREFUSED") => match error.detail().and_then(|detail| detail.split(' ').next()) {
                    Some("ERR") | None => from_word("NOPERM"),
                    Some(word) => from_word(word),
                },
                Some(word) => from_word(word),
                None => from_driver(&error),
            },
        }
    }
}

impl From<RedisError> for CallError {
    fn from(error: RedisError) -> Self {
        if error.is_timeout() { Self::Timeout } else { Self::Redis(error) }
    }
}

fn from_word(word: &str) -> LockError {
    let unavailable = |message, hint| LockError::new(ErrorCode::ServiceUnavailable, message).with_hint(hint);
    match word {
        "SYNCGUARDFOREIGN" => LockError::internal("the value stored at the lock's key is not a lock").with_hint(
            "another program writes under this prefix; give one of them another prefix, or delete that value",
        ),
        "SYNCGUARDCOUNTER" => LockError::internal("the fence counter is not a plain number in 1..=900000000000000")
            .with_hint(
                "the counter was damaged or restored badly; use a new key, or set the counter to a number without leading zeros",
            ),
        "OOM" => unavailable("redis is out of memory", "raise `maxmemory`, and keep `maxmemory-policy noeviction`"),
        "BUSY" => unavailable("redis is busy with a script", "look for a slow script with `SLOWLOG GET`"),
        "LOADING" => unavailable("redis is loading its data", "it will answer once the data is loaded"),
        "READONLY" => {
            unavailable("redis is a read-only replica", "point the url at the master, or use redis+sentinel://")
        }
        "MASTERDOWN" => unavailable("the replica has lost its master", "wait for the failover"),
        "CLUSTERDOWN" => {
            unavailable("the redis cluster is down", "look at `CLUSTER INFO`: slots or masters are missing")
        }
        "TRYAGAIN" => unavailable("the cluster is moving this slot", "it will answer once the slot has moved"),
        "MISCONF" => {
            unavailable("redis cannot persist its data", "look for a full disk or failing snapshots in its log")
        }
        "NOREPLICAS" => unavailable("redis has too few replicas to write", "see `min-replicas-to-write`"),
        "UNKILLABLE" | "NOTBUSY" | "UNBLOCKED" => unavailable("redis could not run the command now", "try again"),
        "NOAUTH" => auth("redis asks for a password", "put it into the url: redis://:PASSWORD@host"),
        "WRONGPASS" => auth("redis refused the user or the password", "check them in the url"),
        "NOPERM" => auth(
            "the redis user lacks a right",
            "grant the line of `docs/backends/redis.md`: commands, ~prefix:* keys and &prefix:* channels",
        ),
        "WRONGTYPE" => LockError::invalid("the stored value has the wrong type: it is not a lock")
            .with_hint("another program writes under this prefix; use another prefix"),
        "CROSSSLOT" => LockError::invalid("the keys of one lock are in different cluster slots")
            .with_hint("use redis+cluster://, or a prefix in braces such as {syncguard}"),
        "MOVED" | "ASK" => LockError::invalid("this redis is a cluster node, but the url is for a single server")
            .with_hint("use redis+cluster://"),
        "EXECABORT" | "NOSCRIPT" => unavailable("redis did not run the script", "try again"),
        _ => LockError::internal(format!("redis answered with an unexpected error {}", printable(word))),
    }
}

fn auth(message: &'static str, hint: &'static str) -> LockError {
    LockError::new(ErrorCode::AuthFailed, message).with_hint(hint)
}

// Only a word that looks like a code is repeated: a broken server may send anything.
fn printable(word: &str) -> String {
    let plain = word.len() <= 32 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    if plain { word.to_owned() } else { "without a code".to_owned() }
}

fn from_driver(error: &RedisError) -> LockError {
    match error.kind() {
        ErrorKind::Io => LockError::new(ErrorCode::ServiceUnavailable, "the connection to redis broke")
            .with_hint("the request may have been carried out")
            .ambiguous(),
        ErrorKind::AuthenticationFailed => auth("redis refused the user or the password", "check them in the url"),
        // A reply that was cut short, or bytes that are none: what was done is not known, and the connection is of no
        // use.
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            LockError::new(ErrorCode::ServiceUnavailable, "redis sent a reply that is cut short or not of its protocol")
                .with_hint("the request may have been carried out")
                .ambiguous()
        }
        ErrorKind::InvalidClientConfig => LockError::invalid("the redis driver refused its configuration"),
        _ => LockError::internal("the redis driver failed").ambiguous(),
    }
}

impl ConnectError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>, hint: &'static str) -> Self {
        Self { code, message: message.into(), hint }
    }

    /// The socket or the TLS handshake failed.
    pub(crate) fn from_io(address: &dyn fmt::Display, error: &io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Self::new(
                ErrorCode::ServiceUnavailable,
                format!("redis at {address} failed the TLS check: {tls}"),
                "check the host name, the certificate and the `tls_ca` option; plaintext is never tried instead",
            );
        }
        let (what, hint) = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                ("did not accept the connection", "check that the server runs and that host and port are right")
            }
            io::ErrorKind::NotFound => ("has no socket there", "check the path of the socket"),
            io::ErrorKind::PermissionDenied => ("may not be reached", "check the rights of the socket"),
            io::ErrorKind::TimedOut => ("did not accept the connection in time", "check the host and the network"),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::InvalidData => {
                ("closed the connection at once", "check that TLS is used on both sides or on neither")
            }
            _ => ("cannot be reached", "check the host name and the network"),
        };
        Self::new(ErrorCode::ServiceUnavailable, format!("redis at {address} {what}"), hint)
    }

    /// The server was reached and the greeting failed.
    pub(crate) fn from_greeting(address: &dyn fmt::Display, error: &RedisError) -> Self {
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) | (_, Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => Self::new(
                ErrorCode::AuthFailed,
                format!("redis at {address} refused the user or the password"),
                "check them in the url",
            ),
            (ErrorKind::Server(ServerErrorKind::ResponseError), _) => Self::new(
                ErrorCode::InvalidArgument,
                format!("redis at {address} refused the database number"),
                "check the number at the end of the url; a cluster has database 0 only",
            ),
            (ErrorKind::Parse, _) => Self::no_redis(address),
            (_, Some("LOADING" | "MASTERDOWN" | "BUSY")) => Self::new(
                ErrorCode::ServiceUnavailable,
                format!("redis at {address} is not ready"),
                "it will answer once its data is loaded",
            ),
            _ => Self::new(
                ErrorCode::ServiceUnavailable,
                format!("redis at {address} closed the connection at once"),
                "check that TLS is used on both sides or on neither, and `maxclients`",
            ),
        }
    }

    /// What answers does not greet as redis does.
    pub(crate) fn no_redis(address: &dyn fmt::Display) -> Self {
        Self::new(
            ErrorCode::ServiceUnavailable,
            format!("what listens at {address} does not speak the redis protocol"),
            "check the port, and that TLS is used on both sides or on neither",
        )
    }

    /// A password was given, and the server lets everybody in without one.
    pub(crate) fn needless_password(address: &dyn fmt::Display) -> Self {
        Self::new(
            ErrorCode::AuthFailed,
            format!("redis at {address} has no password, but one was given"),
            "leave the password out, or set one on the server (`requirepass`)",
        )
    }

    /// TLS is required, and this address is to be spoken to without.
    pub(crate) fn unencrypted(address: &dyn fmt::Display) -> Self {
        Self::new(
            ErrorCode::InvalidArgument,
            format!("the connection to redis at {address} is not encrypted, and TLS is required"),
            "use rediss:// (or rediss+cluster://, rediss+sentinel://)",
        )
    }

    pub(crate) fn timed_out(address: &dyn fmt::Display) -> Self {
        // Nothing of an operation was sent, so this is not ambiguous.
        Self::new(
            ErrorCode::NetworkTimeout,
            format!("redis at {address} did not answer the connection in time"),
            "check the host and the network; raise `connect_timeout` if it is only far away",
        )
    }

    /// Whether nothing was heard at all.
    pub(crate) fn is_silence(&self) -> bool {
        self.code == ErrorCode::NetworkTimeout
    }

    pub(crate) fn is_about_login(&self) -> bool {
        self.code == ErrorCode::AuthFailed
    }

    pub(crate) fn into_lock_error(self) -> LockError {
        LockError::new(self.code, self.message).with_hint(self.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(word: &str) -> (ErrorCode, bool) {
        let error = from_word(word);
        (error.code(), error.is_ambiguous())
    }

    #[test]
    fn every_code_word_has_its_kind_and_none_is_ambiguous() {
        for word in [
            "OOM",
            "BUSY",
            "LOADING",
            "READONLY",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "MISCONF",
            "NOREPLICAS",
            "TRYAGAIN",
            "NOSCRIPT",
        ] {
            assert_eq!(code_of(word), (ErrorCode::ServiceUnavailable, false), "{word}");
        }
        for word in ["NOAUTH", "WRONGPASS", "NOPERM"] {
            assert_eq!(code_of(word), (ErrorCode::AuthFailed, false), "{word}");
        }
        for word in ["CROSSSLOT", "WRONGTYPE", "MOVED", "ASK"] {
            assert_eq!(code_of(word), (ErrorCode::InvalidArgument, false), "{word}");
        }
        for word in ["SYNCGUARDFOREIGN", "SYNCGUARDCOUNTER", "ERR", "WHATEVER"] {
            assert_eq!(code_of(word), (ErrorCode::Internal, false), "{word}");
        }
    }

    #[test]
    fn a_code_that_is_no_code_is_not_repeated() {
        let error = from_word("secret-key");
        assert!(!error.to_string().contains("secret-key"), "{error}");
    }

    #[test]
    fn a_lost_connection_and_a_lost_reply_are_ambiguous_and_a_failed_connect_is_not() {
        let broken = RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        let error = CallError::from(broken).into_lock_error();
        assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::ServiceUnavailable, true));

        let error = CallError::Timeout.into_lock_error();
        assert_eq!((error.code(), error.is_ambiguous()), (ErrorCode::NetworkTimeout, true));

        let refused =
            ConnectError::from_io(&"h:1", &io::Error::from(io::ErrorKind::ConnectionRefused)).into_lock_error();
        assert_eq!((refused.code(), refused.is_ambiguous()), (ErrorCode::ServiceUnavailable, false));
        assert!(refused.to_string().contains("h:1") && refused.hint().is_some());
    }
}
