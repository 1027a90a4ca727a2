//! What went wrong, and what can be done about it?
//!
//! One opaque type for every failure. The [`ErrorCode`] says what kind, [`LockError::is_transient`] whether
//! trying again can help, [`LockError::is_ambiguous`] whether the server may have acted all the same.
//! Neither `Display` nor `Debug` ever shows a key, a lock id or a URL: who may see them asks for
//! [`LockError::key`] and [`LockError::lock_id`].

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Key, LockId};

/// A result whose error is a [`LockError`].
pub type Result<T, E = LockError> = std::result::Result<T, E>;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The backend cannot be reached, is read-only, full, loading, or lost a conflict.
    ServiceUnavailable,
    /// The backend refused the credentials, or they lack a right.
    AuthFailed,
    /// A key, lock id, ttl, option or stored schema is not acceptable. Found before any I/O where possible.
    InvalidArgument,
    /// The backend (or a local pool) asks to slow down.
    RateLimited,
    /// No answer came in time. The server may have acted: see [`LockError::is_ambiguous`].
    NetworkTimeout,
    /// The lock stayed with another owner to the end of the budget. A backend that did not answer is not told so.
    AcquisitionTimeout,
    /// The caller's cancellation token fired.
    Aborted,
    /// The lock was held and is not any more, or must be presumed lost.
    LockLost,
    /// A stored value, a reply or a state that should not exist, or a fence past its limit.
    Internal,
}

impl ErrorCode {
    /// Returns the code as it is written here, in the JSON of the command and in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::AuthFailed => "AuthFailed",
            Self::InvalidArgument => "InvalidArgument",
            Self::RateLimited => "RateLimited",
            Self::NetworkTimeout => "NetworkTimeout",
            Self::AcquisitionTimeout => "AcquisitionTimeout",
            Self::Aborted => "Aborted",
            Self::LockLost => "LockLost",
            Self::Internal => "Internal",
        }
    }
}

impl ErrorCode {
    /// Returns the code in lower case with hyphens, as every label value of metrics and logs is written.
    pub const fn as_label(self) -> &'static str {
        match self {
            Self::ServiceUnavailable => "service-unavailable",
            Self::AuthFailed => "auth-failed",
            Self::InvalidArgument => "invalid-argument",
            Self::RateLimited => "rate-limited",
            Self::NetworkTimeout => "network-timeout",
            Self::AcquisitionTimeout => "acquisition-timeout",
            Self::Aborted => "aborted",
            Self::LockLost => "lock-lost",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure of a lock operation. Cheap to clone. That somebody else holds a lock is not an error of a single attempt.
///
/// `{}` is the message alone, because reporters such as anyhow and eyre print the causes after it by
/// [`source`](Error::source). They know no hints: `{:#}` is all on one line, the message, its causes and the hint.
///
/// ```
/// use syncguard_core::{ErrorCode, Key};
///
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.code(), ErrorCode::InvalidArgument);
/// assert!(!error.is_transient());
/// assert_eq!(error.to_string(), "the key is empty");
/// ```
#[derive(Clone)]
pub struct LockError(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    code: ErrorCode,
    message: Cow<'static, str>,
    hint: Option<Cow<'static, str>>,
    ambiguous: bool,
    key: Option<Key>,
    lock_id: Option<LockId>,
    free_in: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl LockError {
    /// Makes an error. The message is lower case, without a full stop, and names no key, id or password.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            code,
            message: message.into(),
            hint: None,
            ambiguous: false,
            key: None,
            lock_id: None,
            free_in: None,
            source: None,
        }))
    }

    /// Shorthand for [`ErrorCode::InvalidArgument`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// Shorthand for [`ErrorCode::Internal`].
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.inner().hint = Some(hint.into());
        self
    }

    /// Adds the cause. Its text must not carry a key, a lock id or a password: error reporters print it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.inner().source = Some(Arc::from(source.into()));
        self
    }

    /// Adds the key that the operation was about. The client does this for every backend.
    #[must_use]
    pub fn with_key(mut self, key: &Key) -> Self {
        if self.0.key.is_none() {
            self.inner().key = Some(key.clone());
        }
        self
    }

    /// Adds the lock id that the operation was about. The client does this for every backend.
    #[must_use]
    pub fn with_lock_id(mut self, lock_id: &LockId) -> Self {
        if self.0.lock_id.is_none() {
            self.inner().lock_id = Some(lock_id.clone());
        }
        self
    }

    /// Marks that the request may have left: the server may have acted although no answer came.
    #[must_use]
    pub fn ambiguous(mut self) -> Self {
        self.inner().ambiguous = true;
        self
    }

    /// Adds how long the lock stays taken if its holder does nothing.
    #[must_use]
    pub fn with_free_in(mut self, free_in: Option<Duration>) -> Self {
        self.inner().free_in = free_in;
        self
    }

    // Errors are decorated while they have one owner, so this copies nothing in practice.
    fn inner(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// Returns the kind of failure.
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// Returns what the reader can do about it, if anything is known.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Returns whether the same call may succeed a moment later.
    pub fn is_transient(&self) -> bool {
        matches!(self.0.code, ErrorCode::ServiceUnavailable | ErrorCode::RateLimited | ErrorCode::NetworkTimeout)
    }

    /// Returns whether the server may have acted although this error says it did not answer.
    pub fn is_ambiguous(&self) -> bool {
        self.0.ambiguous
    }

    /// Returns how long the lock stays taken if its holder is dead, where the failure is contention and the backend told
    /// it. A living one may free it sooner or keep it longer. Fit for a `Retry-After`.
    pub fn free_in(&self) -> Option<Duration> {
        self.0.free_in
    }

    /// Returns the status that a service answers with: `409` while somebody else holds the lock, `400` for a bad key or
    /// setting, `503` where trying again may help, also after a loss, otherwise `500`.
    pub fn http_status(&self) -> u16 {
        match self.0.code {
            ErrorCode::AcquisitionTimeout => 409,
            ErrorCode::InvalidArgument => 400,
            ErrorCode::AuthFailed | ErrorCode::Internal => 500,
            ErrorCode::ServiceUnavailable
            | ErrorCode::RateLimited
            | ErrorCode::NetworkTimeout
            | ErrorCode::LockLost
            | ErrorCode::Aborted => 503,
        }
    }

    /// Returns the key the operation was about, where known. Not part of any printed form.
    pub fn key(&self) -> Option<&Key> {
        self.0.key.as_ref()
    }

    /// Returns the lock id the operation was about, where known. Not part of any printed form.
    pub fn lock_id(&self) -> Option<&LockId> {
        self.0.lock_id.as_ref()
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if !f.alternate() {
            return Ok(());
        }
        // Many causes repeat the text of the one below them.
        let mut said = self.0.message.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said.push_str(&text);
            }
            next = cause.source();
        }
        self.hint().map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LockError");
        out.field("code", &self.0.code).field("message", &self.0.message);
        if let Some(hint) = &self.0.hint {
            out.field("hint", hint);
        }
        if self.0.ambiguous {
            out.field("ambiguous", &true);
        }
        if let Some(key) = &self.0.key {
            out.field("key", key);
        }
        // A driver's Debug form may print its whole request; its Display form is what a reader needs.
        if let Some(source) = &self.0.source {
            out.field("source", &format_args!("{source}"));
        }
        out.finish()
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| {
            let source: &(dyn Error + 'static) = source;
            source
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_word_wide() {
        assert_eq!(size_of::<LockError>(), size_of::<usize>());
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn neither_form_shows_the_key_or_the_lock_id() {
        let id = LockId::random();
        let error = LockError::internal("stored value is not a lock")
            .with_key(&Key::new("canary-key").unwrap())
            .with_lock_id(&id);

        let text = format!("{error} {error:#} {error:?} {error:#?}");

        assert!(!text.contains("canary-key"), "{text}");
        assert!(!text.contains(id.as_str()), "{text}");
        assert_eq!(error.key().unwrap().as_str(), "canary-key");
    }

    #[test]
    fn one_line_tells_the_causes_and_the_hint_and_nothing_twice() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let cause = LockError::internal("no route").with_source(LockError::internal("no route").with_source(refused));
        let error = LockError::internal("redis cannot be reached").with_source(cause).with_hint("is it running?");

        assert_eq!(error.to_string(), "redis cannot be reached");
        assert_eq!(format!("{error:#}"), "redis cannot be reached: no route: connection refused (is it running?)");
    }

    #[test]
    fn only_the_three_network_kinds_are_transient() {
        let transient: Vec<_> = [
            ErrorCode::ServiceUnavailable,
            ErrorCode::AuthFailed,
            ErrorCode::InvalidArgument,
            ErrorCode::RateLimited,
            ErrorCode::NetworkTimeout,
            ErrorCode::AcquisitionTimeout,
            ErrorCode::Aborted,
            ErrorCode::LockLost,
            ErrorCode::Internal,
        ]
        .into_iter()
        .filter(|code| LockError::new(*code, "x").is_transient())
        .collect();

        assert_eq!(transient, [ErrorCode::ServiceUnavailable, ErrorCode::RateLimited, ErrorCode::NetworkTimeout]);
    }
}
