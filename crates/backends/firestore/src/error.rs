//! What does a gRPC status mean for a lock?
//!
//! Decided by the *code* alone. A status text may repeat a document's name, and so a key: it is read for nothing and
//! shown to nobody. Only failures that never left this process keep their cause's text.

use std::error::Error;

use syncguard_core::{ErrorCode, LockError};
use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// Why a call gave no answer.
#[derive(Debug)]
pub(crate) struct RpcError {
    pub(crate) kind: Kind,
    /// The text of a local cause (connection refused, bad certificate). Never the server's.
    cause: Option<String>,
}

/// The kinds that the callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The server answered with this code.
    Answered(Code),
    /// No connection, so the request did not leave.
    NotConnected,
    /// The server could not show that it is the one we asked for, so the request did not leave.
    Untrusted,
    /// The connection broke under the request.
    Broken,
    /// No answer within the bound.
    TimedOut,
    /// No token for the request, so it did not leave. `true` when trying again can help.
    NoToken(bool),
    /// The answer does not make sense.
    BadReply,
}

impl RpcError {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, cause: None }
    }

    pub(crate) fn caused_by(kind: Kind, cause: &dyn Error) -> Self {
        Self { kind, cause: Some(chain(cause)) }
    }

    /// Whether a write that failed so may have been applied all the same.
    pub(crate) fn is_doubtful(&self) -> bool {
        match self.kind {
            Kind::TimedOut | Kind::Broken | Kind::BadReply => true,
            Kind::NotConnected | Kind::Untrusted | Kind::NoToken(_) => false,
            Kind::Answered(code) => matches!(
                code,
                Code::Cancelled
                    | Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Internal
                    | Code::Unavailable
                    | Code::DataLoss
            ),
        }
    }

    /// Whether a conditional write lost against another one. Never applied.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(
            self.kind,
            Kind::Answered(Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists | Code::NotFound)
        )
    }

    pub(crate) fn into_lock_error(self) -> LockError {
        let error = match self.kind {
            Kind::Answered(code) => answered(code),
            Kind::NotConnected => LockError::new(ErrorCode::ServiceUnavailable, "firestore cannot be reached")
                .with_hint("check the network, and FIRESTORE_EMULATOR_HOST if an emulator is meant"),
            Kind::Untrusted => LockError::new(ErrorCode::ServiceUnavailable, "firestore failed the TLS check")
                .with_hint("check the endpoint, its certificate and `tls_ca`; plaintext is never tried instead"),
            Kind::Broken => LockError::new(ErrorCode::ServiceUnavailable, "the connection to firestore broke"),
            Kind::TimedOut => {
                LockError::new(ErrorCode::NetworkTimeout, "firestore did not answer in time").with_hint(SLOW)
            }
            Kind::NoToken(transient) => {
                let code = if transient { ErrorCode::ServiceUnavailable } else { ErrorCode::AuthFailed };
                LockError::new(code, "no access token for firestore").with_hint(
                    "run `gcloud auth application-default login`, or name a key file with `?credentials=FILE`",
                )
            }
            Kind::BadReply => LockError::internal("firestore gave an incomplete answer"),
        };
        match self.cause {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

const SLOW: &str = "the server is slow or the network drops packets; raise `timeout` if this is normal there";

fn answered(code: Code) -> LockError {
    let kind = match code {
        Code::Unavailable | Code::Internal | Code::Aborted | Code::Cancelled | Code::Unknown | Code::DataLoss => {
            ErrorCode::ServiceUnavailable
        }
        Code::DeadlineExceeded => ErrorCode::NetworkTimeout,
        Code::PermissionDenied | Code::Unauthenticated => ErrorCode::AuthFailed,
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::OutOfRange | Code::Unimplemented => {
            ErrorCode::InvalidArgument
        }
        Code::ResourceExhausted => ErrorCode::RateLimited,
        Code::Ok | Code::AlreadyExists => ErrorCode::Internal,
    };
    let error = LockError::new(kind, format!("firestore answered {}", name(code)));
    match hint(code) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn hint(code: Code) -> Option<&'static str> {
    match code {
        Code::PermissionDenied => {
            Some("the account needs the rights of `roles/datastore.user`; see the backend's page")
        }
        Code::Unauthenticated => Some("the credentials were not accepted; are they of this project, and not revoked?"),
        Code::NotFound => {
            Some("the project has no such database; `gcloud firestore databases create` makes one in native mode")
        }
        Code::ResourceExhausted => Some("a quota is used up, or one key is written faster than firestore allows"),
        Code::DeadlineExceeded => Some(SLOW),
        _ => None,
    }
}

/// The code as the protocol's documentation writes it.
pub(crate) fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

impl From<Status> for RpcError {
    fn from(status: Status) -> Self {
        let Some(cause) = status.source() else { return Self::new(Kind::Answered(status.code())) };
        // A status with a cause was made on this side, whatever its code: nobody answered.
        let kind = if find::<TimeoutExpired>(cause) {
            Kind::TimedOut
        } else if failed_the_tls_check(cause) {
            Kind::Untrusted
        } else if find::<ConnectError>(cause) {
            Kind::NotConnected
        } else {
            Kind::Broken
        };
        Self::caused_by(kind, cause)
    }
}

fn find<E: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<E>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// The cause hides in an input error, which passes over it when it is asked for its source.
fn failed_the_tls_check(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if inner.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>) || error.is::<rustls::Error>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// Every cause once: a library's text often repeats that of its source.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_that_came_from_the_server_is_called_an_answer() {
        let local = RpcError::from(Status::from_error(Box::new(std::io::Error::other("reset"))));
        assert_eq!(local.kind, Kind::Broken);
        assert!(local.is_doubtful());
        let error = local.into_lock_error();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
        assert!(!error.to_string().contains("answered"), "{error}");

        let remote = RpcError::from(Status::new(Code::Unknown, "canary-key"));
        assert_eq!(remote.kind, Kind::Answered(Code::Unknown));
        assert_eq!(remote.into_lock_error().to_string(), "firestore answered UNKNOWN");
    }
}
